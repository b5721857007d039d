"""Clocks: when something happens on what computes. A processor says it at once, an accelerator when it has come so far.

An accelerator works off what it is given long after the hooks have run, so marks are events on its own stream. By the
next step() it has made every gradient of the step before, since their sums are here: that is when its times are asked
for, one step late. What its stream was idle for while the host waited lies between two marks, as on a processor.
"""

import time
from collections.abc import Sequence
from typing import Any, Protocol

import torch

Stamp = Any
"""What a clock makes of a moment until its time is asked for."""


class Clock(Protocol):
    @property
    def lag_steps(self) -> int:
        """How many steps later times are known."""

    @property
    def rest_steps(self) -> int:
        """How many steps to go without marks now and then, because they cost the thread that trains its time."""

    def begin(self) -> int:
        """Now, in nanoseconds since some beginning."""

    def stamp(self) -> Stamp:
        """A mark, here."""

    def times_ns(self, stamps: Sequence[Stamp]) -> Sequence[int]:
        """When the marks of a step were, `lag_steps` steps later; the last one is the step's end."""


class HostClock:
    lag_steps = 0
    rest_steps = 0

    def begin(self) -> int:
        return time.monotonic_ns()

    def stamp(self) -> int:
        return time.monotonic_ns()

    def times_ns(self, stamps: Sequence[int]) -> Sequence[int]:
        return stamps


class DeviceClock:
    """Of one CUDA device."""

    lag_steps = 1
    rest_steps = 90
    """Marks of ResNet50's 161 tensors took 2 % of a step on an H200: one window of ten steps in ten makes that 0.2."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._free: list[torch.cuda.Event] = []
        self._base = self.stamp()
        self._base_ns = 0

    def begin(self) -> int:
        self._base, self._base_ns = self.stamp(), 0
        return 0

    def stamp(self) -> torch.cuda.Event:
        event = self._free.pop() if self._free else torch.cuda.Event(enable_timing=True)
        event.record(torch.cuda.current_stream(self._device))
        return event

    def times_ns(self, stamps: Sequence[torch.cuda.Event]) -> Sequence[int]:
        last = stamps[-1]
        last.synchronize()
        times_ns = [self._base_ns + int(self._base.elapsed_time(event) * 1e6) for event in stamps]
        # Events are timed in single precision: from the step before, not from the beginning.
        self._free += [self._base, *stamps[:-1]]
        self._base, self._base_ns = last, times_ns[-1]
        return times_ns


def clock_of(device: torch.device) -> Clock:
    """The clock of what computes there."""
    return DeviceClock(device) if device.type == "cuda" else HostClock()
