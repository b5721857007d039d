"""legato.toml: settings that stay with a project."""

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from legato.errors import InputError

FILE_NAME = "legato.toml"


@dataclass(frozen=True, slots=True)
class Entry:
    """A value as an environment would hold it, and where it stands."""

    text: str
    line: int


@dataclass(frozen=True, slots=True)
class ConfigFile:
    """What a file sets, by key."""

    path: Path
    entries: Mapping[str, Entry]

    def where(self, key: str) -> str:
        return f"{self.path}:{self.entries[key].line}"


def find_config_file(folder: Path) -> Path | None:
    """The nearest one: in this folder or, in a repository, in one above it up to the repository's root.

    Elsewhere nothing above the folder counts: /tmp/legato.toml may be anybody's.
    """
    folders = (folder, *folder.parents)
    root = next((each for each in folders if (each / ".git").exists()), folder)
    for each in folders[: folders.index(root) + 1]:
        if (each / FILE_NAME).is_file():
            return each / FILE_NAME
    return None


def read_config_file(path: Path) -> ConfigFile:
    """Keys and values; whoever knows the settings checks them."""
    try:
        text = path.read_text()
        values = tomllib.loads(text)
    except OSError as error:
        raise InputError(f"{path} cannot be read ({error.strerror}); accepted is a TOML file") from None
    except (ValueError, RecursionError) as error:  # what is not TOML, or not UTF-8
        raise InputError(f"{path} is not a TOML file: {error}") from None
    return ConfigFile(path, {key: _entry(path, text, key, value) for key, value in values.items()})


def _entry(path: Path, text: str, key: str, value: object) -> Entry:
    written = re.search(rf"""^[ \t]*(\[\s*)?["']?{re.escape(key)}["']?\s*[\].=]""", text, re.MULTILINE)
    line = 1 + text.count("\n", 0, written.start()) if written else 1
    if not isinstance(value, str | int | float):
        raise InputError(f"{path}:{line}: {key} is {value!r:.60}; accepted is one text, number, true or false")
    return Entry(str(value).lower() if isinstance(value, bool) else str(value), line)
