"""Commands on the pages: programs, subcommands, options, targets and extras exist. The quick start's are run."""

import re
import shlex
import tomllib
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import pytest
import typer
from torch.distributed.run import get_args_parser
from typer.exceptions import TyperException

from legato.cli import app
from tests.docs.blocks import PAGES, ROOT, blocks

MAKEFILE = (ROOT / "Makefile").read_text()
EXTRAS = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
FOREIGN = {
    ".": "needs the environment that the line before it makes; bench.newcomer runs both",
    "jq": "needs jq",
    "kubectl": "needs a cluster; tests/test_launching.py checks what it applies",
}
"""Programs that are not ours, and why nothing is run."""


def legato(words: list[str]) -> None:
    command = typer.main.get_command(app)
    context = command.make_context("legato", list(words))
    while hasattr(command, "resolve_command"):
        rest = [*context._protected_args, *context.args]
        name, command, rest = command.resolve_command(context, rest)
        context = command.make_context(name, rest, parent=context)
    if context.info_name == "run" and context.args:
        script = context.args[1:] if context.args[0] == "python" else context.args
        get_args_parser().parse_args(script)


def torchrun(words: list[str]) -> None:
    script = Path(get_args_parser().parse_args(words).training_script)
    assert len(script.parts) == 1 or (ROOT / script).exists(), f"{script} does not exist"


def python(words: list[str]) -> None:
    if words[0] == "-m":
        assert find_spec(words[1]) is not None, f"there is no module {words[1]}"
    else:
        assert len(Path(words[0]).parts) == 1 or (ROOT / words[0]).exists(), f"{words[0]} does not exist"


def make(words: list[str]) -> None:
    for target in words:
        assert re.search(rf"^{target}:", MAKEFILE, re.MULTILINE), f"there is no target {target}"


def pip(words: list[str]) -> None:
    assert words[0] == "install"
    for extras in re.findall(r"(?:legato|\.whl\))\[([\w,]+)\]", " ".join(words)):
        assert set(extras.split(",")) <= set(EXTRAS)


PROGRAMS: dict[str, Callable[[list[str]], None]] = {
    "legato": legato,
    "make": make,
    "pip": pip,
    "python": python,
    "python3": python,
    "torchrun": torchrun,
}


def commands() -> list[tuple[str, str]]:
    """Where a command stands, and the command: lines of blocks for a shell, and what else begins like one of ours."""
    found = []
    for block in blocks(PAGES, "sh", "bash", "console", ""):
        if "#SBATCH" in block.text:
            continue  # tests/test_launching.py runs these scripts
        for line in block.text.replace("\\\n", " ").splitlines():
            if block.language or line.startswith(tuple(f"{program} " for program in PROGRAMS)):
                found.append((str(block), line))
    for page in PAGES:
        for span in re.findall(r"(?<!`)`((?:legato|make|torchrun|python -m) [^`]+)`(?!`)", (ROOT / page).read_text()):
            if not re.search(r"…|\.\.\.", span):
                found.append((page, " ".join(span.split())))
    return found


@pytest.mark.parametrize("where", sorted({where for where, _ in commands()}))
def test_commands(where: str) -> None:
    for place, line in commands():
        if place != where:
            continue
        words = shlex.split(re.sub(r"\$\(.*?\)", "", line), comments=True)
        while words and re.match(r"export$|[A-Z_]+=", words[0]):
            words.pop(0)
        if words and words[0] not in FOREIGN:
            try:
                PROGRAMS[words[0]](words[1:])
            except typer.Exit:
                pass  # --help
            except (SystemExit, TyperException) as error:
                # A sentence may name a command without its arguments; a block may not.
                if place not in PAGES or type(error).__name__ not in ("MissingParameter", "NoArgsIsHelpError"):
                    raise AssertionError(f"{line}: {error!r}") from error
