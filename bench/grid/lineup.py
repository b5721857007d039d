"""The names of the systems, and what they mean: nothing here needs a framework.

A name is a family and its variations, with colons between:

    no-overlap                  backward, then one all-reduce, then the update
    ddp, ddp:2MB, ddp:tuned     torch's DDP over Gloo: as it comes, with that bucket size, with the best one tried
    ddp:bf16                    with torch's hook that sends half of the bytes
    c10d, c10d:rsag, c10d:rsag:2MB      legato over Gloo, with that policy and bucket size
    legato, legato:fifo         legato's engine, every worker serving its share; first come, first served
                                (both in parts of the size that the twin finds best in simulation)
    legato:servers              with the extra servers of the recipe as well
    legato:p3, legato:dear      with that policy, and the partition and credit that it has by default
    legato:bo, legato:autobyte  with the partition and credit that these tuners find in simulation
    ddp:clip, legato:clip       the same, with gradients clipped to half of their norm: DDP by torch's function, legato
                                by its own
    legato:clip-torch           legato by torch's function

All of legato's are calls of `legato.torch.schedule`: calls.py has their arguments.
"""

from dataclasses import dataclass

from legato.core.policies import POLICIES
from legato.errors import InputError
from legato.units import parse_bytes

ALONE = "alone"
"""Training without communication: always measured, because T* is made of it."""
_VARIATIONS: dict[str, tuple[str, ...]] = {
    ALONE: (),
    "no-overlap": (),
    "ddp": ("tuned", "bf16"),
    "c10d": ("auto", *POLICIES),
    "legato": ("servers", "bo", "autobyte", *POLICIES),
}
_SIZED = ("ddp", "c10d")
_CLIPS: dict[str, tuple[str, ...]] = {
    "ddp": ("clip",),
    "c10d": ("clip", "clip-torch"),
    "legato": ("clip", "clip-torch"),
}
"""The last word of a name, if it is one of these."""


@dataclass(frozen=True, slots=True, kw_only=True)
class System:
    """One of the systems."""

    name: str
    family: str
    variation: str = ""
    bucket_bytes: int | None = None
    clip: str = ""
    """By whose function: `clip` is the system's own, `clip-torch` is torch's; none by default."""

    @property
    def uses_servers(self) -> bool:
        return self.variation == "servers"

    @property
    def is_native(self) -> bool:
        return self.family == "legato"

    @property
    def policy(self) -> str:
        """What legato is asked for."""
        return self.variation if self.variation in POLICIES else "auto"

    @property
    def sums_in_halves(self) -> bool:
        """Whether legato's sums are two operations, between which gradients can be measured."""
        return self.policy in POLICIES and len(POLICIES[self.policy].stages) > 1

    @property
    def sums(self) -> str:
        """Where gradients are summed."""
        if self.family == ALONE:
            return ""
        return "PS" if self.is_native else "all-reduce"


def system(name: str) -> System:
    """What a name means."""
    family, *words = name.split(":")
    if family not in _VARIATIONS or family == ALONE:
        families = ", ".join(each for each in _VARIATIONS if each != ALONE)
        raise InputError(f"system {name!r} is unknown; accepted: {families}, with variations (docs/benchmark.md)")
    clip = words.pop() if words and words[-1] in _CLIPS.get(family, ()) else ""
    variation = words.pop(0) if words and words[0] in _VARIATIONS[family] else ""
    bucket_bytes = None
    if words and family in _SIZED and variation not in ("tuned", "bf16"):
        try:
            bucket_bytes = parse_bytes(words.pop(0))
        except InputError as error:
            raise InputError(f"system {name!r}: {error}, nor one of {', '.join(_VARIATIONS[family])}") from None
    if words:
        accepted = ", ".join((*_VARIATIONS[family], *_CLIPS.get(family, ()))) or "nothing"
        raise InputError(f"system {name!r}: {words[0]!r} is unknown; accepted: {accepted}")
    return System(name=name, family=family, variation=variation, bucket_bytes=bucket_bytes, clip=clip)
