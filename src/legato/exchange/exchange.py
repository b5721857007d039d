"""The exchange: the tensors of one model, averaged over all workers step after step.

A tensor is known by its place in the list that the exchange was made with. Its memory reaches the engine through the
collector, from Python (`add`) or from native code (`address` and native/collector_api.h), whichever the framework has:

    ready at its place ─► collector: is its bucket whole? ─► engine: parts, in the plan's order ─► done, or an error
"""

import threading
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from legato._native import LAST_STEP, Collector
from legato.compression import PLAIN, Scheme, Selection
from legato.core import Plan, Tensor
from legato.errors import JobError, LegatoError
from legato.exchange.measure import Measure
from legato.exchange.planner import NativePlanner
from legato.exchange.plans import agree_on_plan
from legato.exchange.watch import Watch
from legato.transports.declaration import Declaration, Operation
from legato.transports.native.group import NativeGroup
from legato.transports.native.handle import TaskHandle
from legato.tuning.candidate import Candidate


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """A tensor, as all ranks agree on it."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    """`float32`, and so on: `legato.transports.declaration.ITEM_BYTES`."""


class Exchange:
    """Averages tensors over all ranks. Every rank makes it with the same tensors in the same order.

    The plan is the job's if this is what plans count the steps of, the first that asks for it. Otherwise it is this
    exchange's alone, and the engine follows only its order.
    """

    def __init__(
        self,
        group: NativeGroup,
        prefix: str,
        tensors: Sequence[TensorSpec],
        *,
        planner: NativePlanner | None = None,
        selection: Selection = PLAIN,
        staleness: int | None = None,
        backups: int = 0,
        follows_plans: bool = True,
        urgency: int = 0,
        first_steps: Sequence[int] | None = None,
        order: Sequence[int] | None = None,
    ) -> None:
        """`prefix` goes before the tensors' names in what ranks agree on. Priorities are the order of the tensors
        until somebody knows the order of their use (`set_order`).

        With a `staleness`, what comes back is the average of all that has ever been added (`Declaration`). With
        `backups`, it is the average of those who came in time, and the handle says `without` whom. What is averaged
        beside the training, a metric say, leaves the job's plans to the gradients: `follows_plans=False`. Then an
        `urgency`, 0 for the highest, places it among the others.

        What goes on where an exchange of an earlier group ended has `first_steps`, by place, and the `order` of use.
        """
        self._group = group
        self._prefix = prefix
        self._urgency = urgency
        self._planner = planner or NativePlanner()
        self._player = player = group.session.player
        self._operation = operation = _operation(staleness, backups, follows_plans)
        self._backups = backups
        self.is_planned = operation is Operation.PUSH_PULL and player.is_plannable and bool(tensors)
        """Whether its steps are those that the job's plans count."""
        declared = [
            Declaration(
                name=f"{prefix}/{tensor.name}",
                shape=tensor.shape,
                dtype=tensor.dtype,
                operation=operation,
                compression=_compression(selection, tensor),
                staleness=staleness,
                backups=backups,
                place=place if self.is_planned else None,
            )
            for place, tensor in enumerate(tensors)
        ]
        group.declare([*declared, *(scale for tensor in declared if (scale := tensor.scale) is not None)])
        self._channels = [group.channel(tensor) for tensor in declared]
        self.num_bytes = [tensor.num_bytes for tensor in declared]
        """What travels of each tensor before it is compressed."""
        self._tensors = [
            Tensor(name=tensor.name, num_bytes=tensor.num_bytes, priority=place, item_bytes=tensor.item_bytes)
            for place, tensor in enumerate(declared)
        ]
        self._gate = player.gate if operation is Operation.PUSH_PULL else None
        self.collector = Collector(
            group.session.engine,
            self._gate,
            [
                (
                    player.number(tensor.name),
                    tensor.name,
                    tensor.num_bytes,
                    None if (scale := tensor.scale) is None else player.number(scale.name),
                )
                for tensor in declared
            ],
        )
        group.keep([tensor.name for tensor in declared], self.collector)
        if first_steps is not None:
            self.collector.set_next_steps(first_steps)
        player.keep(self.collector, is_planned=self.is_planned)
        self._partition_bytes = player.period(0).partition_bytes
        """The transport's own, before any plan."""
        if order is not None:
            self._tensors = self._in_order(order)
        self._plan = self._agree()
        self._watch: Watch | None = None

    # ---- tensors ----

    def add(self, place: int, address: int, num_bytes: int, absent: bool, memory: object) -> None:
        """A tensor of the next step is ready, and its average comes back to the same address; `memory` owns it.

        A rank that is `absent` has nothing to add. InputError where it is not what was declared.
        """
        try:
            self.collector.add(place, address, num_bytes, absent, memory)
        except (ValueError, RuntimeError) as error:
            raise self.refusal(place, error) from None

    def begin(self, place: int) -> tuple[int, list[tuple[int, int]]]:
        """The step of which a tensor is added next, and (offset, length) of its parts: no plan changes them any more.

        For what is encoded before it is added. While members agree on a plan for that step, this waits for them.
        """
        step = self.collector.next_step(place)
        if self._gate is not None and not self._gate.admit(step):
            channel, has_begun = self._channels[place], threading.Event()
            self._gate.begin(step, has_begun.set)
            if not has_begun.wait(channel.timeout_s):
                raise channel.lateness(step, channel.timeout_s, [])
        return step, self._parts_at(place, step)

    def scheme(self, place: int) -> Scheme | None:
        """How a tensor is compressed."""
        return self._channels[place].tensor.scheme()

    def number(self, place: int) -> int:
        """The engine's of a tensor."""
        return self._player.number(self._channels[place].tensor.name)

    def poll(self, place: int) -> bool:
        """Whether `wait` would return at once."""
        return self.collector.poll(place)

    def wait(self, place: int) -> TaskHandle[None]:
        """Wait until the average is there, or nobody had anything to add (`empty`) and the memory is as it was."""
        handle = self.sent(place)
        handle.wait()
        self.collector.forget(place)
        return handle

    def wait_first(self, place: int, num_bytes: int) -> int:
        """Wait until so many of the average's first bytes are there; how many are. They are the caller's."""
        return self.sent(place).wait_first(num_bytes)

    def sent(self, place: int) -> TaskHandle[None]:
        """The newest step of a tensor as soon as the engine has it: at once, unless members agree on a plan.

        Somebody needs it: its bucket waits no longer for the others of it.
        """
        channel = self._channels[place]
        try:
            self.collector.send(place)
            task = self.collector.sent(place, channel.timeout_s)
        except (ValueError, RuntimeError) as error:
            raise self.refusal(place, error) from None
        step = self.collector.step(place)
        if task is None:
            raise channel.lateness(step, channel.timeout_s, [])
        return TaskHandle(channel, step, task, None)

    def absence(self, place: int, step: int) -> JobError | None:
        """Why a step of a tensor can never be done: ranks have left without it. None where none have."""
        return self._channels[place].absence(step)

    def outcome(self, place: int, step: int) -> bool | None:
        """After the end of the group, of a tensor's step: None where its average has not arrived, else whether there is
        one."""
        if self.collector.step(place) != step:
            return None  # it was not taken any more
        try:
            task = self.collector.sent(place, 0.0)
        except ValueError:
            return None
        return None if task is None or not task.poll() or task.failure is not None else not task.empty

    # ---- measures ----

    @property
    def can_measure(self) -> bool:
        """Whether those who sum know what workers will have: not where ranks do not wait for each other, nor where
        servers that do not train would need a scale that only workers know."""
        waits = self._operation is not Operation.ACCUMULATE and not self._backups
        scaled = any(channel.tensor.scale is not None for channel in self._channels)
        return waits and not (scaled and self._player.deployment.num_servers)

    def set_measured(self) -> None:
        """From now on what is added is measured."""
        self.collector.set_measured(True)

    def measure(self, place: int) -> Measure:
        """Of the average of a tensor's newest step, which was added measured: there before the average is."""
        return Measure(*self.sent(place).wait_measured())

    def parts(self, place: int) -> list[tuple[int, int]]:
        """(offset, length) of each part in which a tensor's newest step travels: measures add up in this order."""
        return self._parts_at(place, max(self.collector.step(place), 0))

    def _parts_at(self, place: int, step: int) -> list[tuple[int, int]]:
        return [(part.offset, part.length) for part in self._player.layout(self.number(place), step)]

    def refusal(self, place: int, error: Exception) -> LegatoError:
        """Why a tensor was not taken."""
        channel = self._channels[place]
        channel.check_open()
        step = self.collector.step(place)
        return channel.absence(step) or self._group.session.refusal(error, channel.tensor.name, step)

    # ---- those who do not wait: native code of a framework, streams of an accelerator ----

    @property
    def address(self) -> int:
        """What the functions of native/collector_api.h take; native code does not wait."""
        self.watch()
        return self.collector.address

    def watch(self) -> None:
        """From now on whatever is late fails at the job's timeout: for those who do not wait, somebody has to look."""
        if self._watch is None:
            self._watch = Watch(self._group.session, self.collector, self._channels)

    def check(self) -> None:
        """The error that has ended the job, if one has."""
        if self._watch is not None and self._watch.error is not None:
            raise self._watch.error
        session = self._group.session
        failure = session.engine.failure
        if failure is not None:
            raise self._explain(session.explain(failure))
        if session.member.error is not None:  # heard from the conductor, before the engine noticed anything
            raise session.member.error

    def _explain(self, error: JobError) -> JobError:
        """Who left before a step is to blame, also where others have gone for that reason since."""
        absences = (
            channel.absence(step) for channel, step in zip(self._channels, self.collector.latest_steps, strict=True)
        )
        return next(filter(None, absences), error)

    # ---- plans ----

    @property
    def plan(self) -> Plan:
        """What the newest step follows."""
        return self.plan_at(self.num_steps - 1)

    def plan_at(self, step: int) -> Plan:
        """What a step follows, as far as that is agreed on now."""
        period = self._player.period(max(step, 0)) if self.is_planned else None
        return self._plan if period is None or period.plan is None else period.plan

    def plan_for(self, candidate: Candidate) -> Plan:
        """What a tuner has chosen, for these tensors."""
        return self._planner.follow(candidate, self._tensors, self._partition_bytes)

    def set_order(self, order: Sequence[int]) -> None:
        """Priorities from the observed order of first use: the most urgent place first. On every rank."""
        self._tensors = self._in_order(order)
        self._plan = self._agree()

    def _in_order(self, order: Sequence[int]) -> list[Tensor]:
        priority = {place: rank for rank, place in enumerate(order)}
        return [replace(tensor, priority=priority[place]) for place, tensor in enumerate(self._tensors)]

    @property
    def num_steps(self) -> int:
        """Steps that have begun here."""
        return self.collector.latest_step + 1

    def end_totals(self) -> None:
        """What is added next is this rank's last: nobody waits for it any more."""
        self.collector.set_next_steps([LAST_STEP] * len(self._tensors))

    def close(self) -> None:
        if self._watch is not None:
            self._watch.close()

    def _agree(self) -> Plan:
        """Rank 0's plan from the next step on, where it is the job's; otherwise this rank's own."""
        if not self.is_planned:
            plan = self._write()
            ranked = [
                (bucket, push + self._urgency, pull + self._urgency) for bucket, push, pull in plan.ranked_buckets
            ]
            self.collector.follow(self.num_steps, ranked)
            return plan
        plan = agree_on_plan(self._group.rank, self._write, self._broadcast)
        self._group.set_plan(plan, self.num_steps, everyone=True)
        return plan

    def _write(self) -> Plan:
        owners = self._player.deployment.owners()
        return self._planner.write(self._tensors, self._partition_bytes, len(owners))

    def _broadcast(self, text: str | None) -> str:
        mine = np.frombuffer((text or "").encode(), np.uint8)
        return self._group.allgather(f"{self._prefix}/plan", mine).tobytes().decode()


def _operation(staleness: int | None, backups: int, follows_plans: bool) -> Operation:
    if staleness is not None:
        return Operation.ACCUMULATE
    # A plan may change how a tensor travels only where no rank can be several steps behind.
    return Operation.ALL_REDUCE if backups or not follows_plans else Operation.PUSH_PULL


def _compression(selection: Selection, tensor: TensorSpec) -> str | None:
    scheme = selection.scheme(tensor.name, tensor.dtype, int(np.prod(tensor.shape, dtype=np.int64)))
    return None if scheme is None else scheme.words()
