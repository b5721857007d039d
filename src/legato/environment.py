"""An environment, value by value."""

import math
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Generic, TypeVar

from legato.errors import InputError
from legato.units import parse_bytes

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Format(Generic[T]):
    """How a value is written."""

    parse: Callable[[str], T]
    """A ValueError refuses the text."""
    accepted: str
    """Ends an error: `is a whole number from 1 on`, `are yes, no`."""

    def read(self, name: str, text: str) -> T:
        """The value; a wrong one is an error that says where it was found, what it is, and what is accepted."""
        try:
            return self.parse(text)
        except ValueError:
            raise InputError(f"{name} is {text!r}; accepted {self.accepted}") from None


def whole(at_least: int = 0, below: int | None = None) -> Format[int]:
    def parse(text: str) -> int:
        number = int(text) if re.fullmatch(r"-?\d{1,18}", text) else at_least - 1
        return _checked(number, at_least <= number and (below is None or number < below))

    return Format(parse, f"is a whole number from {at_least}" + (" on" if below is None else f" to {below - 1}"))


def one_of(choices: Mapping[str, T]) -> Format[T]:
    def parse(text: str) -> T:
        _checked(text, text.lower() in choices)
        return choices[text.lower()]

    return Format(parse, f"are {', '.join(choices)}")


TEXT = Format(str, "is any text")
FLAG = one_of({"1": True, "true": True, "0": False, "false": False})
WHOLE = whole()
DECIMAL = Format(
    lambda text: _checked(float(text), 0 <= float(text) < math.inf),
    "is a number from 0 on",
)
SECONDS = Format(
    lambda text: _checked(float(text), 0 < float(text) < math.inf),
    "is a number of seconds above 0",
)
SIZE = Format(
    lambda text: _checked(parse_bytes(text), parse_bytes(text) >= 1),
    "is a size from 1 byte on, such as 65536, 64KB, 4MB or 4MiB",
)


def _checked(value: T, is_right: bool) -> T:
    if not is_right:
        raise ValueError
    return value


def did_you_mean(name: str, known: Iterable[str], prefix: str = "") -> str | None:
    """Of those with this prefix, the name that this one is a slip of the fingers for."""
    rest = [each.removeprefix(prefix) for each in sorted(known) if each.startswith(prefix)]
    found = get_close_matches(name.removeprefix(prefix), rest, n=1)
    return prefix + found[0] if found else None


class Environment:
    """Values of an environment; an empty one is not set."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        self._environ = environ

    def has(self, name: str) -> bool:
        return bool(self._environ.get(name))

    def names(self, prefixes: tuple[str, ...]) -> set[str]:
        """Those that are set and begin with one of these."""
        return {name for name in self._environ if name.startswith(prefixes) and self.has(name)}

    def text(self, name: str) -> str | None:
        return self._environ.get(name) or None

    def value(self, name: str, form: Format[T]) -> T | None:
        text = self.text(name)
        return None if text is None else form.read(name, text)

    def number(self, name: str, default: int | None = None, *, at_least: int = 0, below: int | None = None) -> int:
        form = whole(at_least, below)
        value = self.value(name, form)
        value = default if value is None else value
        if value is None:
            raise InputError(f"{name} is not set; accepted {form.accepted}")
        return value

    def port(self, name: str) -> int:
        return self.number(name, at_least=1, below=65536)
