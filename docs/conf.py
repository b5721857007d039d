"""How `make docs` builds these pages: Markdown as it lies here, and the interfaces from their docstrings."""

import re
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from legato import __version__

DOCS = Path(__file__).parent

project = "legato"
version = release = __version__
extensions = ["myst_parser", "sphinx.ext.autodoc"]
highlight_language = "none"
myst_heading_anchors = 4

html_theme = "furo"
html_title = f"legato {__version__}"
html_copy_source = False

autodoc_default_options = {"members": True, "undoc-members": True}
autodoc_inherit_docstrings = False  # those of frameworks are written for other tools
autodoc_typehints_format = "short"
FRAMEWORKS = ("jax", "keras", "mxnet", "optax", "tensorflow", "torch")
autodoc_mock_imports = [name for name in FRAMEWORKS if find_spec(name) is None]
if "mxnet" in autodoc_mock_imports:
    autodoc_mock_imports.append("legato.mxnet.buffers")  # its import takes functions from MXNet's library

LINK = re.compile(r"\[([^\]]+)\]\((\.\./[^)#\s]+)[^)]*\)")
MARKUP = re.compile(r"`([^`]+)`(?=(\w)?)|([*_|\\])")
DRAWN = re.compile(r"^((?: {4}.*\n|\n)+)(?=\S|\Z)", re.MULTILINE)


def name_what_is_elsewhere(_app: Any, page: str, source: list[str]) -> None:
    """Files of the repository outside docs/ are not among these pages: give their path instead of a link."""

    def replaced(link: re.Match[str]) -> str:
        target = (DOCS / page).parent.joinpath(link[2]).resolve()
        return link[0] if target.is_relative_to(DOCS) else f"{link[1]} (`{target.relative_to(DOCS.parent)}`)"

    source[0] = LINK.sub(replaced, source[0])


def to_restructured_text(_app: Any, what: str, _name: str, _what: object, _options: Any, lines: list[str]) -> None:
    """Docstrings are plain text with `code` and indented drawings. Pages introduce modules themselves."""

    def replaced(found: re.Match[str]) -> str:
        code, next_letter, symbol = found.groups()
        return f"\\{symbol}" if symbol else f"``{code}``" + ("\\ " if next_letter else "")

    blocks = [] if what == "module" else DRAWN.split("\n".join(lines) + "\n")
    lines.clear()
    for place, block in enumerate(blocks):
        is_drawn = place % 2 and block.strip()
        lines += ["", "::", "", *block.split("\n"), ""] if is_drawn else MARKUP.sub(replaced, block).split("\n")


def setup(app: Any) -> None:
    app.connect("source-read", name_what_is_elsewhere)
    app.connect("autodoc-process-docstring", to_restructured_text)
