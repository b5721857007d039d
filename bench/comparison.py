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
    step_s: dict[System, float]
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

    def verdict(self) -> str:
        """One sentence: whether legato helped, and why."""
        communication = f"{self.communication_s * 1e3:.0f} ms of communication"
        backward = f"backward ({self.backward_s * 1e3:.0f} ms)"
        if not self.same_training:
            return f"The losses differ by {self.loss_difference:.2g}: this is a bug, whatever the speed."
        if self.communication_s <= self.backward_s:
            effect = "was faster all the same" if self.speedup >= _NOTICEABLE else "could not help much"
            return f"Legato {effect}: {communication} fit behind {backward}, where DDP hides them too."
        if self.speedup >= _NOTICEABLE:
            return (
                f"Legato helped: {communication} are more than {backward} can hide; DDP waits for the rest, "
                "legato lets the next forward pass run meanwhile, since it sends first what that needs first."
            )
        return (
            f"Legato did not help, though {communication} are more than {backward} can hide: "
            f"its steps took {self.step_s['legato'] / self.bound_s:.2f} T*, "
            "for the processors that compute also move the bytes."
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
        step_s={system: statistics.median(s for each in outcomes for s in each.steps_s[system]) for system in systems},
        loss={system: statistics.mean(each.losses[system][-1] for each in outcomes) for system in systems},
        loss_difference=max(
            abs(ddp - legato)
            for each in outcomes
            for ddp, legato in zip(each.losses["ddp"], each.losses["legato"], strict=True)
        ),
    )


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
