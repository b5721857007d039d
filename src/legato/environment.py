"""An environment, value by value."""

import math
import re
from collections.abc import Mapping
from typing import TypeVar

from legato.errors import InputError

T = TypeVar("T")


class Environment:
    """Values of an environment; a wrong one is an error that says which variable, what it holds, what is accepted."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        self._environ = environ

    def has(self, name: str) -> bool:
        return bool(self._environ.get(name))

    def names(self, prefixes: tuple[str, ...]) -> set[str]:
        """Those that are set and begin with one of these."""
        return {name for name in self._environ if name.startswith(prefixes) and self.has(name)}

    def text(self, name: str) -> str | None:
        return self._environ.get(name) or None

    def number(self, name: str, default: int | None = None, *, at_least: int = 0, below: int | None = None) -> int:
        accepted = f"a whole number from {at_least}" + (f" to {below - 1}" if below is not None else " on")
        value = self.text(name)
        if value is None:
            if default is None:
                raise InputError(f"{name} is not set; accepted is {accepted}")
            return default
        if (
            not re.fullmatch(r"-?\d{1,18}", value)
            or int(value) < at_least
            or (below is not None and int(value) >= below)
        ):
            raise InputError(f"{name} is {value!r}; accepted is {accepted}")
        return int(value)

    def decimal(self, name: str, default: float = 0.0) -> float:
        value = self.text(name)
        try:
            number = default if value is None else float(value)
        except ValueError:
            number = math.nan
        if not 0 <= number < math.inf:
            raise InputError(f"{name} is {value!r}; accepted is a number from 0 on")
        return number

    def seconds(self, name: str, default: float) -> float:
        value = self.text(name)
        try:
            seconds = default if value is None else float(value)
        except ValueError:
            seconds = math.nan
        if not 0 < seconds < math.inf:
            raise InputError(f"{name} is {value!r}; accepted is a number of seconds above 0")
        return seconds

    def flag(self, name: str, *, default: bool = False) -> bool:
        return self.choice(name, {"1": True, "true": True, "0": False, "false": False}, default=default)

    def choice(self, name: str, choices: Mapping[str, T], default: T) -> T:
        value = self.text(name)
        if value is None:
            return default
        try:
            return choices[value.lower()]
        except KeyError:
            raise InputError(f"{name} is {value!r}; accepted are {', '.join(choices)}") from None

    def port(self, name: str) -> int:
        return self.number(name, at_least=1, below=65536)
