"""Records: dataclasses built from plain JSON values, each field checked against its type."""

import dataclasses
import types
import typing
from enum import Enum, StrEnum

T = typing.TypeVar("T")


def build(kind: type[T], value: object) -> T:
    """The dataclass `kind` from what `json.loads` gave; TypeError or ValueError where it does not fit."""
    return typing.cast("T", fit(kind, value))


def fit(hint: typing.Any, value: typing.Any) -> typing.Any:
    """A value of the type that a field declares; as `build`, and a KeyError where an enumeration lacks a name."""
    if dataclasses.is_dataclass(hint):
        hints = typing.get_type_hints(hint)
        if not isinstance(value, dict) or set(value) != set(hints):
            raise TypeError(f"{hint} needs the fields {sorted(hints)}")
        fields = {name: fit(hints[name], value[name]) for name in hints}
        return typing.cast("typing.Any", hint)(**fields)
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in (types.UnionType, typing.Union):
        return None if value is None and types.NoneType in arguments else fit(arguments[0], value)
    if origin is tuple:
        return _fit_tuple(arguments, value)
    if isinstance(hint, type) and issubclass(hint, Enum):
        return hint(value) if issubclass(hint, StrEnum) else hint[value]
    if type(value) is not hint:
        raise TypeError(f"{value!r:.50} is not {hint}")
    return value


def _fit_tuple(arguments: tuple[typing.Any, ...], value: object) -> tuple[typing.Any, ...]:
    if not isinstance(value, list):
        raise TypeError(f"{value!r:.50} is not a list")
    if arguments[-1] is Ellipsis:
        return tuple(fit(arguments[0], item) for item in value)
    return tuple(fit(argument, item) for argument, item in zip(arguments, value, strict=True))
