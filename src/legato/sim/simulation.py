"""The simulator: the scheduling core driven by a virtual clock.

Each group of alike hosts has one worker here, with a scheduler of its own. A worker's step:

    forward  0 1 2 … L-1     layer i waits until tensor i of the step before is complete
    backward L-1 … 2 1 0     after layer i, tensor i is ready

The workers and the network exchange events through one queue; nothing else passes between them, so what is simulated
are the core and the plan that also run over process groups.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from itertools import pairwise
from typing import Literal, Protocol

from legato.core import (
    Command,
    Complete,
    Event,
    Finished,
    Part,
    Plan,
    Ready,
    Scheduler,
    Sent,
    Stage,
    Start,
    Task,
    Workload,
)
from legato.errors import InputError
from legato.sim.cluster import Architecture, Cluster, Group
from legato.sim.engine import Engine, scheduled
from legato.sim.network import Arrival, Network, Progress, make_network, make_rate


class Observer(Protocol):
    """Sees what one worker does."""

    def event(self, now_s: float, what: Event | Command) -> None:
        """An event that its scheduler was given, or a command that came out."""

    def worked(
        self, work: Literal["forward", "backward", "wait"], layer: str, step: int, begin_s: float, end_s: float
    ) -> None:
        """It went through a layer, or has waited for what the layer needs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """The steady state of a simulated run."""

    iteration_s: float
    """Mean time from one forward pass to the next."""
    bound_s: float
    """T*: no schedule is shorter."""
    compute_s: float
    """Forward and backward of the slowest worker."""
    communication_s: float
    """Time the busiest link needs for the bytes of one step."""
    bytes_sent: float
    """Bytes that leave one host in a step."""
    steps_s: tuple[float, ...]
    """Time of each measured step."""
    trace: tuple[Complete, ...]
    """The life of every task of the first group's worker in the measured steps, in order of completion."""

    @property
    def exposed_s(self) -> float:
        """Communication that computation does not hide."""
        return self.iteration_s - self.compute_s

    @property
    def ratio(self) -> float:
        """Iteration over T*; 1 is the best there is."""
        return self.iteration_s / self.bound_s


class _Worker:
    """One host's computation, and the scheduler it feeds."""

    def __init__(self, workload: Workload, group: Group, plan: Plan) -> None:
        self.forward_s = [layer.forward_s / group.speed for layer in workload.layers]
        self.backward_s = [layer.backward_s / group.speed for layer in workload.layers]
        self.scheduler = Scheduler(workload.tensors, plan)
        self.step = 0
        self.layer = 0
        self.in_backward = False
        self.waiting = False
        self.since_s = 0.0
        """When it began to compute the layer, or to wait."""
        self.began_s: list[float] = []
        # How often each layer's tensor has been synchronised: forward of step s needs s times.
        self.synchronised = [0] * len(workload.layers)
        self.completed_tasks = 0
        self.num_scattered: Counter[int] = Counter()
        """Parts of each step whose first half is over, where that is counted."""


class Simulation:
    """A run that can be advanced and watched step by step."""

    def __init__(
        self,
        workload: Workload,
        cluster: Cluster,
        plan: Plan,
        observers: Sequence[Observer] | None = None,
        *,
        clipped: bool = False,
    ) -> None:
        """Observers, if any, are those of the workers of `cluster.simulated`.

        With `clipped`, an update waits for the norm of all gradients as well: for all sums of the step, wherever they
        are made. Those are known before averages with arch native and where a plan sums in halves.
        """
        self._names = [layer.name for layer in workload.layers]
        self._observers = observers
        self._layer_of = [place for place, layer in enumerate(workload.layers) if layer.num_bytes]
        self._tensor_of = {layer: tensor for tensor, layer in enumerate(self._layer_of)}
        self._is_native = cluster.architecture is Architecture.NATIVE
        self._network: Network
        self._norms: Engine | None = None
        if self._is_native:
            self.rate = make_rate(cluster)
            self._network = engine = Engine(cluster, self.rate, workload.tensors, plan)
            self._norms = engine if clipped else None
            plan = scheduled(plan)
        else:
            self._network, self.rate = make_network(cluster)
        if clipped and not self._is_native and len(plan.stages) == 1:
            raise InputError(
                "clipped: norms are known before averages with arch native, and where a plan sums in halves (rsag, "
                "dear); elsewhere, give a plan with a step barrier"
            )
        self._is_clipped = clipped
        self._num_parts = sum(map(len, plan.parts(workload.tensors)))
        self._workers = [_Worker(workload, group, plan) for group in cluster.simulated]
        # (when, sequence, worker, what has become of which part, or None for the end of a layer)
        self._events: list[tuple[float, int, int, tuple[Part, Progress] | None]] = []
        self._sequence = 0
        self._stop_step = 0
        self.now_s = 0.0
        self.trace: list[Complete] = []
        for index, worker in enumerate(self._workers):
            self._compute(index, worker)

    @property
    def began_s(self) -> Sequence[float]:
        """When each step of the first group's worker began."""
        return self._workers[0].began_s

    @property
    def bytes_sent(self) -> float:
        """Bytes that have left one host of the first group."""
        return self._network.num_bytes

    def advance(self, steps: int) -> None:
        """Go on until every worker has gone through the backward pass of that many more steps."""
        self._stop_step += steps
        while any(worker.step < self._stop_step for worker in self._workers):
            self._until_computed()

    def _until_computed(self) -> None:
        """Up to the end of the next layer of any worker."""
        while True:
            if self._norms is not None:
                self._wake()
            self.now_s, _, index, arrived = heappop(self._events)
            if arrived is None:
                self._computed(index, self._workers[index])
                return
            part, progress = arrived
            if progress is Progress.FINISHED:
                if self._is_clipped and part.stage is Stage.REDUCE_SCATTER:
                    self._workers[index].num_scattered[part.step] += 1
                self._handle(index, self._workers[index], Finished(part))
                continue
            self._expect(self._network.progressed(self.now_s, index, part, progress))
            if progress is Progress.SENT:
                self._handle(index, self._workers[index], Sent(part))

    def _wake(self) -> None:
        """A norm may have become known, of which no worker hears otherwise."""
        for index, worker in enumerate(self._workers):
            if worker.waiting:
                self._compute(index, worker)

    def _expect(self, arrivals: Iterable[Arrival]) -> None:
        for when, index, part, progress in arrivals:
            heappush(self._events, (when, self._sequence, index, (part, progress)))
            self._sequence += 1

    def _handle(self, index: int, worker: _Worker, event: Event) -> None:
        commands = worker.scheduler.handle(self.now_s, event)
        if self._observers is not None:
            for what in (event, *commands):
                self._observers[index].event(self.now_s, what)
        self._obey(index, worker, commands)

    def _obey(self, index: int, worker: _Worker, commands: Iterable[Command]) -> None:
        for command in commands:
            if isinstance(command, Start):
                self._expect(self._network.start(self.now_s, index, command.part))
            else:
                worker.synchronised[self._layer_of[command.task.tensor]] += 1
                worker.completed_tasks += 1
                if index == 0:
                    self.trace.append(command)
        if worker.waiting:
            self._compute(index, worker)

    def _compute(self, index: int, worker: _Worker) -> None:
        """Begin the worker's next layer, or let it wait for the tensor that is missing."""
        if worker.in_backward:
            duration = worker.backward_s[worker.layer]
        elif self._may_go_forward(worker):
            duration = worker.forward_s[worker.layer]
            if worker.layer == 0:
                worker.began_s.append(self.now_s)
        else:
            if not worker.waiting:
                worker.waiting, worker.since_s = True, self.now_s
            return
        if worker.waiting:
            self._worked(index, worker, "wait")
        worker.waiting, worker.since_s = False, self.now_s
        heappush(self._events, (self.now_s + duration, self._sequence, index, None))
        self._sequence += 1

    def _worked(self, index: int, worker: _Worker, work: Literal["forward", "backward", "wait"]) -> None:
        if self._observers is not None:
            name = self._names[worker.layer]
            self._observers[index].worked(work, name, worker.step, worker.since_s, self.now_s)

    def _may_go_forward(self, worker: _Worker) -> bool:
        if worker.layer in self._tensor_of and worker.synchronised[worker.layer] < worker.step:
            return False
        is_update = worker.layer in self._tensor_of and worker.step > 0
        if self._is_clipped and is_update and not self._has_norm(worker, worker.step - 1):
            return False
        if worker.layer or not worker.step or not worker.scheduler.plan_at(worker.step - 1).step_barrier:
            return True
        return worker.completed_tasks == worker.step * len(self._layer_of)

    def _has_norm(self, worker: _Worker, step: int) -> bool:
        if self._norms is not None:
            return self._norms.is_summed(step)
        return worker.num_scattered[step] == self._num_parts

    def _computed(self, index: int, worker: _Worker) -> None:
        """A layer is through; in backward, its gradient is ready."""
        self._worked(index, worker, "backward" if worker.in_backward else "forward")
        if not worker.in_backward:
            worker.layer += 1
            if worker.layer == len(worker.forward_s):
                worker.in_backward = True
                worker.layer -= 1
        else:
            layer, step = worker.layer, worker.step
            worker.layer -= 1
            if worker.layer < 0:
                worker.layer, worker.step, worker.in_backward = 0, step + 1, False
            tensor = self._tensor_of.get(layer)
            if tensor is not None:
                self._handle(index, worker, Ready(Task(step, tensor)))
        self._compute(index, worker)


def simulate(
    workload: Workload,
    cluster: Cluster,
    plan: Plan,
    *,
    warmup: int = 2,
    steps: int = 4,
    observers: Sequence[Observer] | None = None,
    clipped: bool = False,
) -> Result:
    """Run past the first steps and measure the following ones; `clipped` as a Simulation takes it."""
    if warmup < 1 or steps < 1:
        raise InputError(f"simulate: warmup={warmup} and steps={steps} must be at least 1")
    simulation = Simulation(workload, cluster, plan, observers, clipped=clipped)
    # The last step that is measured ends where the one after it begins, so one more has to run.
    simulation.advance(warmup)
    bytes_before = simulation.bytes_sent
    simulation.advance(steps)
    bytes_sent = (simulation.bytes_sent - bytes_before) / steps
    simulation.advance(1)
    began_s = simulation.began_s[warmup : warmup + steps + 1]
    slowest = min(group.speed for group in cluster.all_groups)
    seconds_per_byte = cluster.seconds_per_byte / simulation.rate.mean(began_s[0], began_s[-1])
    return Result(
        iteration_s=(began_s[-1] - began_s[0]) / steps,
        bound_s=workload.scaled(time_by=1 / slowest).bound_s(seconds_per_byte),
        compute_s=workload.compute_s / slowest,
        communication_s=workload.num_bytes * seconds_per_byte,
        bytes_sent=bytes_sent,
        steps_s=tuple(after - before for before, after in pairwise(began_s)),
        trace=tuple(entry for entry in simulation.trace if warmup <= entry.task.step < warmup + steps),
    )
