"""What a contest has shown: both systems against each other and against the shortest possible step."""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from bench.contest import SYSTEMS, Outcome, System
from legato.core import Layer, bound

TOLERANCE = 1e-4
"""How far the losses may be apart: sums in another order differ in the last bits, and training amplifies them."""
_NOTICEABLE = 1.03
"""Speed-ups below this are noise on a shared machine."""
_UNDISTURBED = 0.1
"""More idleness than this, while computing alone, is somebody else's work on the same processors."""


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
    speedup: dict[System, float]
    """Over DDP, the median of the rounds: in a round the turns are side by side, so what disturbs one disturbs all."""
    order_gains: list[float]
    """Legato's speed-up over its own transport first come first served, in each round on each rank."""
    idle: float
    """Share of the steps without communication in which a worker had no processor to compute on."""
    loss: dict[System, float]
    """Of the last step, the mean of the ranks."""
    loss_difference: float
    """The largest between DDP and the others, of any step and rank."""

    @property
    def same_training(self) -> bool:
        return self.loss_difference <= TOLERANCE

    @property
    def was_disturbed(self) -> bool:
        """Whether somebody else used the processors: computing alone should keep one busy all the time."""
        return self.idle > _UNDISTURBED

    def verdict(self) -> str:
        """One sentence: whether legato helped, and why."""
        if not self.same_training:
            return f"The losses differ by {self.loss_difference:.2g}: this is a bug, whatever the speed."
        if self.was_disturbed:
            return f"{self._speed()} Something else kept the processors busy meanwhile: take the figures as rough."
        return self._speed()

    def _speed(self) -> str:
        if self.speedup["legato"] >= _NOTICEABLE:
            order = statistics.median(self.order_gains)
            return (
                f"Legato helped, {self.speedup['legato']:.2f}×: its transport alone, first come first served, gains "
                f"{self.speedup['fifo']:.2f}× on DDP over Gloo, and sending first what forward needs first "
                f"{order:.2f}× on that ({min(self.order_gains):.2f} to {max(self.order_gains):.2f} in single rounds)."
            )
        if self.backward_only_s < _NOTICEABLE * self.bound_s:
            return (
                f"Legato had nothing to gain: overlap with backward alone, DDP's way, can reach "
                f"{_ms(self.backward_only_s)}, and no schedule is below {_ms(self.bound_s)}."
            )
        return (
            f"Legato did not help, though steps of {_ms(self.bound_s)} are possible: its own took "
            f"{_ms(self.step_s['legato'])}, in which the processors, which here move the bytes too, "
            f"were busy for {_ms(self.cpu_s['legato'])}."
        )


def compare(outcomes: Sequence[Outcome], bytes_per_s: float) -> Comparison:
    """The figures of all ranks together, with the goodput of the links that they competed on."""
    layers = _median_layers([layers for outcome in outcomes for layers in outcome.layers])
    num_workers = len(outcomes)
    # Each rank sends, and receives, all but its own share of the gradients twice: to be summed, and as sums.
    seconds_per_byte = 2 * (num_workers - 1) / num_workers / bytes_per_s
    forward_s, backward_s = [each.forward_s for each in layers], [each.backward_s for each in layers]
    communication_s = [each.num_bytes * seconds_per_byte for each in layers]
    return Comparison(
        num_bytes=sum(each.num_bytes for each in layers),
        forward_s=sum(forward_s),
        backward_s=sum(backward_s),
        communication_s=sum(communication_s),
        bound_s=bound(forward_s, backward_s, communication_s),
        backward_only_s=sum(forward_s) + _backward_only(backward_s, communication_s),
        step_s={system: statistics.median(_steps_s(outcomes, system)) for system in SYSTEMS},
        cpu_s={system: statistics.median(s for each in outcomes for s in each.cpu_s[system]) for system in SYSTEMS},
        speedup={system: statistics.median(_speedups(outcomes, system, "ddp")) for system in SYSTEMS},
        order_gains=_speedups(outcomes, "legato", "fifo"),
        idle=1
        - statistics.mean(s for each in outcomes for s in each.cpu_s["alone"])
        / statistics.mean(_steps_s(outcomes, "alone")),
        loss={system: statistics.mean(each.losses[system][-1] for each in outcomes) for system in SYSTEMS},
        loss_difference=max(
            abs(ddp - other)
            for each in outcomes
            for system in ("fifo", "legato")
            for ddp, other in zip(each.losses["ddp"], each.losses[system], strict=True)
        ),
    )


def _steps_s(outcomes: Sequence[Outcome], system: System) -> list[float]:
    return [second for each in outcomes for turn in each.turns_s[system] for second in turn]


def _speedups(outcomes: Sequence[Outcome], system: System, over: System) -> list[float]:
    return [
        statistics.median(theirs) / statistics.median(ours)
        for each in outcomes
        for theirs, ours in zip(each.turns_s[over], each.turns_s[system], strict=True)
    ]


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
