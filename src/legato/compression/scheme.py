"""Schemes: a codec with what goes around it, as people write it: `topk:0.01+ef+nesterov:0.9`."""

from dataclasses import dataclass
from functools import cache

from legato import _native
from legato.compression.codec import Codec
from legato.compression.codecs import Bf16, Dithering, Fp16, Int8, OneBit, RandomK, TopK
from legato.errors import InputError

CODECS: dict[str, type[Codec]] = {codec.name: codec for codec in (Fp16, Bf16, OneBit, TopK, RandomK, Dithering, Int8)}
NESTEROV_MU = 0.9


@dataclass(frozen=True, slots=True, kw_only=True)
class Scheme:
    """How a tensor is compressed."""

    codec: Codec
    """How items become bytes."""
    error_feedback: bool = False
    """What an encoding loses is added before the next one."""
    momentum: float = 0.0
    """Nesterov's momentum of each worker's gradients before they are encoded; 0 is none."""

    def __post_init__(self) -> None:
        if not 0 <= self.momentum < 1:
            raise InputError(f"nesterov is {self.momentum:g}; accepted is a number from 0 up to but not 1")

    def words(self) -> str:
        """What `parse` reads, and what ranks agree on."""
        text = self.codec.words() + "+ef" * self.error_feedback
        return f"{text}+nesterov:{self.momentum:g}" if self.momentum else text

    def coding(self, num_items: int, num_workers: int) -> _native.Coding:
        """What the engine is told about a tensor of so many items."""
        return _native.Coding(
            push=self.codec.push(num_items),
            pull=self.codec.pull(num_items, num_workers),
            feeds_back=self.error_feedback,
            server_feeds_back=self.error_feedback and self.codec.loses_sums and not self.codec.agrees_on_scale,
            momentum=self.momentum,
            has_agreed_scale=self.codec.agrees_on_scale,
        )


@cache
def parse(text: str) -> Scheme | None:
    """The scheme that somebody wrote; None for `none`.

    A codec, its parameters after a colon, and what goes around it: `fp16`, `onebit:scaling=false+ef`, `topk:0.01+ef`,
    `dithering:4,partition=natural+ef+nesterov:0.9`.
    """
    head, *rest = text.strip().split("+")
    if head == "none" and not rest:
        return None
    name, _, parameters = head.partition(":")
    if name not in CODECS:
        raise InputError(f"compression {text!r}: codec {name!r} is unknown; accepted: none, {', '.join(CODECS)}")
    codec = CODECS[name]
    values: dict[str, str] = {}
    for place, each in enumerate(parameters.split(",") if parameters else []):
        key, equals, value = each.partition("=")
        if not equals and (place or codec.main is None):
            raise InputError(f"compression {text!r}: {each!r} has no name; write it as name=value")
        values.update({key.strip(): value.strip()} if equals else {str(codec.main): key.strip()})
    momenta = [_momentum(text, word) for word in rest if word != "ef"]
    if len(momenta) > 1 or rest.count("ef") > 1:
        raise InputError(f"compression {text!r} says the same twice")
    return Scheme(codec=codec.make(values), error_feedback="ef" in rest, momentum=sum(momenta))


def _momentum(text: str, word: str) -> float:
    name, _, value = word.partition(":")
    try:
        if name != "nesterov":
            raise ValueError(name)
        return float(value or NESTEROV_MU)
    except ValueError:
        raise InputError(f"compression {text!r}: {word!r} is unknown; accepted: ef, nesterov, nesterov:0.9") from None
