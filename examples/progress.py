"""Progress: what an example prints while it trains, on rank 0 only."""

import time

import torch

import legato.torch as lg

_WARM_UP = 2
"""Steps that do not count for the speed: they allocate, connect, and show legato the order of the layers."""


class Progress:
    """Prints the loss about ten times, and the speed at the end."""

    def __init__(self, num_steps: int, samples_per_step: int, unit: str) -> None:
        self._num_steps = num_steps
        self._every = max(num_steps // 10, 1)
        self._samples = samples_per_step * lg.size()
        self._unit = unit
        self._ends_s: list[float] = []

    def step(self, loss: torch.Tensor) -> None:
        """After each optimizer step."""
        value = loss.item()
        self._ends_s.append(time.perf_counter())
        done = len(self._ends_s)
        if done == 1 or done % self._every == 0 or done == self._num_steps:
            self.say(f"step {done:4d}  loss {value:.4f}")

    def summary(self, name: str) -> None:
        """After the last."""
        ends_s = self._ends_s[min(_WARM_UP, len(self._ends_s) - 2) :]
        step_s = (ends_s[-1] - ends_s[0]) / (len(ends_s) - 1)
        workers = f"{lg.size()} worker{'s' if lg.size() > 1 else ''}"
        self.say(f"{name}, {workers}: {step_s * 1e3:.1f} ms a step, {self._samples / step_s:.0f} {self._unit} a second")

    def say(self, line: str) -> None:
        if lg.rank() == 0:
            print(line, flush=True)
