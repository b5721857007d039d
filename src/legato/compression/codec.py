"""What a codec is: parameters that people write, and the native kernels that they stand for."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import ClassVar, Self

from legato import _native
from legato.errors import InputError

MIN_COMPRESS_BYTES = 65536
"""Below it a tensor gains too little to lose anything: BytePS's default."""


@dataclass(frozen=True, slots=True)
class Codec:
    """One way to encode float32 items: a subclass has its parameters as fields and checks them when it is made."""

    name: ClassVar[str]
    """What it is called in a scheme."""
    main: ClassVar[str | None] = None
    """The parameter that may be written without its name."""
    min_bytes: ClassVar[int] = MIN_COMPRESS_BYTES
    """Smaller tensors travel as they are, unless the user says otherwise."""
    loses_sums: ClassVar[bool] = False
    """Whether encoding a sum loses something, so that error feedback needs a memory at the server too."""
    agrees_on_scale: ClassVar[bool] = False
    """Whether the workers agree on a scale before each step."""

    def push(self, num_items: int) -> _native.Codec:
        """The kernel for the contributions to a tensor of so many items."""
        raise NotImplementedError

    def pull(self, num_items: int, num_workers: int) -> _native.Codec:
        """The kernel for sums of so many contributions: the same, unless a codec can lose less."""
        del num_workers
        return self.push(num_items)

    def words(self) -> str:
        """The shortest way to write it: what `make` reads, and what ranks agree on."""
        changed = [
            _text(value) if field.name == self.main else f"{field.name}={_text(value)}"
            for field in fields(self)
            if (value := getattr(self, field.name)) != field.default
        ]
        return ":".join([self.name, ",".join(changed)]) if changed else self.name

    @classmethod
    def make(cls, given: Mapping[str, str]) -> Self:
        """From what a user wrote, by parameter."""
        types = {field.name: field.type for field in fields(cls)}
        for key in given:
            if key not in types:
                accepted = f"it has {', '.join(types)}" if types else "it has none"
                raise InputError(f"codec {cls.name}: parameter {key!r} is unknown; {accepted}")
        missing = [field.name for field in fields(cls) if field.name == cls.main and field.name not in given]
        if missing:
            raise InputError(f"codec {cls.name}: {missing[0]} is missing; write {cls.name}:{missing[0]}=...")
        return cls(**{key: _value(cls.name, key, types[key], text) for key, text in given.items()})


def check_choice(codec: str, name: str, value: str, accepted: tuple[str, ...]) -> None:
    if value not in accepted:
        raise InputError(f"codec {codec}: {name} is {value!r}; accepted: {', '.join(accepted)}")


def _text(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)


def _value(codec: str, key: str, kind: object, text: str) -> bool | int | float | str:
    """A parameter of the kind that its field declares."""
    try:
        if kind is bool:
            return {"true": True, "1": True, "false": False, "0": False}[text.lower()]
        if kind is int:
            return int(text)
        return float(text) if kind is float else text
    except (KeyError, ValueError):
        kinds = {bool: "true or false", int: "a whole number", float: "a number"}
        accepted = next(words for known, words in kinds.items() if known is kind)
        raise InputError(f"codec {codec}: {key} is {text!r}; accepted is {accepted}") from None
