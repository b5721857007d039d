"""What a contest has shown: both systems against each other and against the shortest possible step."""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from bench.contest import Outcome, System
from legato.core import Layer, bound

TOLERANCE = 1e-4
"""How far the losses may be apart: sums in another order differ in the last bits, and training amplifies them."""
_NOTICEABLE = 1.03
"""Speed-ups below this are noise on a shared machine."""
_UNDISTURBED = 0.85
"""Share of a step without communication that a processor computes, at least: the rest is waiting for a processor."""


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """The figures of one contest; seconds are medians over steps and ranks."""

    num_bytes: int
    """The gradients of a step."""
    forward_s: float
    """Computing alone; the update is part of it."""
    backward_s: float
    communication_s: float
    """What the gradients need on a link at the goodput measured."""
    bound_s: float
    """T*."""
    backward_only_s: float
    """The shortest step whose communication overlaps with backward alone: what DDP aims at."""
    step_s: dict[System, float]
    cpu_s: dict[System, float]
    """Processor time of one worker for a step: computing, and moving bytes."""
    loss: dict[System, float]
    """Of the last step, the mean of the ranks."""
    loss_difference: float
    """The largest between the two systems, of any step and rank."""

    @property
    def speedup(self) -> float:
        return self.step_s["ddp"] / self.step_s["legato"]

    @property
    def same_training(self) -> bool:
        return self.loss_difference <= TOLERANCE

    @property
    def was_disturbed(self) -> bool:
        """Whether somebody else used the processors: computing alone should keep one busy all the time."""
        return self.cpu_s["alone"] < _UNDISTURBED * self.step_s["alone"]

    def verdict(self) -> str:
        """One sentence: whether legato helped, and why."""
        legato_s = self.step_s["legato"]
        if not self.same_training:
            return f"The losses differ by {self.loss_difference:.2g}: this is a bug, whatever the speed."
        if self.speedup >= _NOTICEABLE and legato_s < self.backward_only_s:
            return (
                f"Legato helped: overlap with backward alone, DDP's way, cannot go below {_ms(self.backward_only_s)}; "
                "legato did, for it sends first what the next forward pass needs first and lets that run meanwhile."
            )
        if self.speedup >= _NOTICEABLE:
            return (
                f"Legato was faster, but not by its order: overlap with backward alone could reach "
                f"{_ms(self.backward_only_s)}, so what it gained is what DDP and Gloo lose on the way there."
            )
        if self.backward_only_s < _NOTICEABLE * self.bound_s:
            return (
                f"Legato had nothing to gain: overlap with backward alone, DDP's way, can reach "
                f"{_ms(self.backward_only_s)}, and no schedule is below {_ms(self.bound_s)}."
            )
        return (
            f"Legato did not help, though steps of {_ms(self.bound_s)} are possible: in its {_ms(legato_s)} "
            f"the processors, which here move the bytes too, were busy for {_ms(self.cpu_s['legato'])}."
        )


def compare(outcomes: Sequence[Outcome], bytes_per_s: float) -> Comparison:
    """The figures of all ranks together, with the goodput of the links that they competed on."""
    layers = _median_layers([layers for outcome in outcomes for layers in outcome.layers])
    num_workers = len(outcomes)
    # Each rank sends, and receives, all but its own share of the gradients twice: to be summed, and as sums.
    seconds_per_byte = 2 * (num_workers - 1) / num_workers / bytes_per_s
    forward_s, backward_s = [each.forward_s for each in layers], [each.backward_s for each in layers]
    communication_s = [each.num_bytes * seconds_per_byte for each in layers]
    systems = list(outcomes[0].steps_s)
    return Comparison(
        num_bytes=sum(each.num_bytes for each in layers),
        forward_s=sum(forward_s),
        backward_s=sum(backward_s),
        communication_s=sum(communication_s),
        bound_s=bound(forward_s, backward_s, communication_s),
        backward_only_s=sum(forward_s) + _backward_only(backward_s, communication_s),
        step_s={system: statistics.median(s for each in outcomes for s in each.steps_s[system]) for system in systems},
        cpu_s={system: statistics.median(s for each in outcomes for s in each.cpu_s[system]) for system in systems},
        loss={system: statistics.mean(each.losses[system][-1] for each in outcomes) for system in systems},
        loss_difference=max(
            abs(ddp - legato)
            for each in outcomes
            for ddp, legato in zip(each.losses["ddp"], each.losses["legato"], strict=True)
        ),
    )


def _backward_only(backward_s: Sequence[float], communication_s: Sequence[float]) -> float:
    """From the loss to the last sum, each gradient leaving as soon as it is there and the link is free."""
    computed_s = sent_s = 0.0
    for backward, communication in zip(reversed(backward_s), reversed(communication_s), strict=True):
        computed_s += backward
        sent_s = max(sent_s, computed_s) + communication
    return sent_s


def _median_layers(steps: Sequence[Sequence[Layer]]) -> list[Layer]:
    """Every layer with the median of its times."""
    return [
        Layer(
            times[0].name,
            times[0].num_bytes,
            statistics.median(each.forward_s for each in times),
            statistics.median(each.backward_s for each in times),
        )
        for times in zip(*steps, strict=True)
    ]


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.0f} ms"
