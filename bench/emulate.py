"""A training step on the engine alone: layers that sleep for as long as they would compute, real gradients on the wire.

      forward     wait(0) f0  wait(1) f1  …        wait(i): until the sum of tensor i of the step before has arrived
      backward    bn  submit(n) …  b0  submit(0)   submit(i): the gradient of layer i goes to the transport

There is no framework in it, by design: `legato bench` measures such steps through `legato.torch.schedule`. Training in
torch takes 27 (VGG16) to 79 ms (BERT-large) more of a processor for a step of 50 MB, which four hosts on two cores do
not have at 4 Gbit/s. A sleeping process leaves its core to the engine's threads and to the other workers: two cores
stand for many devices.
"""

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from bench.testbed import crew
from bench.testbed.launch import Launch
from legato.core import Layer, Workload
from legato.transports.declaration import Declaration
from legato.transports.native.group import NativeGroup
from legato.transports.native.handle import Handle

Priority = Callable[[int], int]
"""The priority of the gradient of a layer, by the layer's position."""


def by_position(position: int) -> int:
    """The order of first use: what legato does."""
    return position


def by_arrival(position: int) -> int:  # noqa: ARG001 (a Priority)
    """All the same, so the first to come is the first to go."""
    return 0


POLICIES: dict[str, Priority] = {"priority": by_position, "fifo": by_arrival}


@dataclass(frozen=True, kw_only=True)
class StepTimes:
    """Seconds of each measured step on one rank."""

    alone: list[float]
    """Without communication."""
    policies: dict[str, list[float]]
    """With each of `POLICIES`."""


class Pace:
    """A clock that sleeps to absolute instants, so that late wake-ups do not add up."""

    def __init__(self) -> None:
        self.now_s = time.monotonic()

    def spend(self, seconds: float) -> None:
        """Be busy for so long."""
        self.now_s += seconds
        while (left_s := self.now_s - time.monotonic()) > 0:
            time.sleep(left_s)

    def catch_up(self) -> None:
        """Go on from the real time: what came before was not a sleep."""
        self.now_s = max(self.now_s, time.monotonic())


class Trainer:
    """One worker's model: its gradients, where their sums arrive, and what is under way."""

    def __init__(self, group: NativeGroup, workload: Workload) -> None:
        self._group = group
        self._layers = workload.layers
        self._gradients = {
            layer.name: np.full(layer.num_bytes // 4, group.rank + 1, np.float32) for layer in workload.layers
        }
        self._sums = {name: np.zeros_like(gradient) for name, gradient in self._gradients.items()}
        self._handles: dict[str, Handle[object]] = {}
        self._step = 0
        tensors = [
            Declaration(name=layer.name, shape=(layer.num_bytes // 4,), dtype="float32")
            for layer in workload.layers
            if layer.num_bytes
        ]
        group.declare(tensors)
        self._channels = {tensor.name: group.channel(tensor) for tensor in tensors}

    def run(self, priority: Priority | None, num_steps: int) -> list[float]:
        """Seconds from the end of one backward to the end of the next; without a priority, nothing is sent."""
        pace = Pace()
        ends_s = []
        for _ in range(num_steps + 1):
            for layer in self._layers:
                self._wait(layer, pace)
                pace.spend(layer.forward_s)
            for position, layer in reversed(list(enumerate(self._layers))):
                pace.spend(layer.backward_s)
                if priority is not None and layer.num_bytes:
                    self._submit(layer, priority(position))
            self._step += 1
            ends_s.append(time.monotonic())
        for layer in self._layers:
            self._wait(layer, pace)
        return [end - begin for begin, end in pairwise(ends_s)]

    def check(self) -> None:
        """Every sum is that of all ranks, exactly."""
        size = self._group.size
        for name, total in self._sums.items():
            if not np.all(total == size * (size + 1) / 2):
                raise AssertionError(f"the sum of {name} is wrong on rank {self._group.rank}")

    def _wait(self, layer: Layer, pace: Pace) -> None:
        handle = self._handles.pop(layer.name, None)
        if handle is None:
            return
        was_late = not handle.poll()
        handle.wait()
        if was_late:
            pace.catch_up()

    def _submit(self, layer: Layer, priority: int) -> None:
        gradient, total = self._gradients[layer.name], self._sums[layer.name]
        # As legato.torch does where nothing has to be agreed on before the step.
        self._handles[layer.name] = self._channels[layer.name].launch(
            source=gradient.ctypes.data,
            destination=total.ctypes.data,
            num_bytes=gradient.nbytes,
            memory=(gradient, total),
            result=total,
            priority=priority,
            step=self._step,
        )


def train(
    station: crew.Station,
    launch: Launch,
    workload: Workload,
    *,
    partition_bytes: int,
    num_steps: int,
    num_rounds: int,
) -> StepTimes:
    """One rank of the measurement: without communication and with each policy, in turns, so that drift hits all."""
    alone: list[float] = []
    policies: dict[str, list[float]] = {name: [] for name in POLICIES}
    with launch.group(station.rank, partition_bytes=partition_bytes) as group:
        trainer = Trainer(group, workload)
        for _ in range(num_rounds):
            station.meet()
            alone += trainer.run(None, 1)
            for name, priority in POLICIES.items():
                station.meet()
                policies[name] += trainer.run(priority, num_steps)
        trainer.check()
    return StepTimes(alone=alone, policies=policies)


def shortest_step_s(workload: Workload, times: Sequence[StepTimes], num_workers: int, bytes_per_s: float) -> float:
    """T* of a joint job, with the compute that this run measured alone and the goodput of its links."""
    alone_s = statistics.median(second for rank in times for second in rank.alone)
    stretched = workload.scaled(time_by=alone_s / workload.compute_s)
    return stretched.bound_s(2 * (num_workers - 1) / num_workers / bytes_per_s)
