"""The native player: an engine that follows what the members agree on."""

import hashlib
import json
import math
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from legato._native import Coding, Collector, Engine, StepGate, find_libcrypto
from legato.core.plan import Plan
from legato.core.shards import Deployment, Shards
from legato.errors import InputError, LegatoError, PlanError
from legato.transports.declaration import Declaration, Operation
from legato.transports.native.layout import Layout, lay_out
from legato.transports.rendezvous.join import Joined
from legato.transports.rendezvous.messages import Definition, Welcome
from legato.transports.rendezvous.shared_path import SharedPath

WIRES = ("plain", "authenticated", "encrypted")


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig:
    """How one member moves bytes."""

    num_io_threads: int = 1
    """Threads that read and write sockets."""
    heartbeat_s: float = 5.0
    """How often members show that they live."""
    wire: str = "plain"
    """What protects frames between hosts: one of WIRES; equal on all members."""

    def __post_init__(self) -> None:
        if self.wire not in WIRES:
            raise InputError(f"wire={self.wire!r} must be one of {', '.join(WIRES)}")
        if self.is_protected:
            _check_libcrypto(self.wire)
        if self.num_io_threads < 1:
            raise InputError(f"num_io_threads={self.num_io_threads} must be at least 1")
        if not self.heartbeat_s > 0:
            raise InputError(f"heartbeat_s={self.heartbeat_s} must be more than 0")

    @property
    def is_protected(self) -> bool:
        return self.wire != "plain"


def _check_libcrypto(wire: str) -> None:
    try:
        find_libcrypto()
    except RuntimeError as error:
        raise InputError(
            f"LEGATO_WIRE is {wire!r}, and {error} on this machine: install OpenSSL 3 or 1.1, or set it to plain on "
            "every member"
        ) from None


@dataclass(frozen=True, slots=True)
class PlanPeriod:
    """The steps that one plan governs."""

    from_step: int
    plan: Plan | None
    """None before the first one."""
    partition_bytes: int | None
    """Of tensors that the plan does not name."""
    credit_bytes: int | None
    shards: Shards
    bucket_of: dict[int, int] = field(default_factory=dict)
    """By place in the plan."""

    def partition_of(self, tensor: Declaration) -> int | None:
        """Its largest part."""
        bucket = None if tensor.place is None else self.bucket_of.get(tensor.place)
        return self.partition_bytes if self.plan is None or bucket is None else self.plan.partition_bytes[bucket]


class NativePlayer:
    """Owns the engine, the layouts and the gate that holds back the steps which a plan round is about."""

    def __init__(
        self,
        config: EngineConfig,
        deployment: Deployment,
        *,
        partition_bytes: int | None,
        credit_bytes: int | None,
    ) -> None:
        self._config = config
        self._deployment = deployment
        self._lock = threading.Lock()
        self._closing = threading.Lock()
        self._periods = [
            PlanPeriod(0, None, partition_bytes, credit_bytes, Shards(deployment))
        ]  # until the hosts are known
        self._proposed: PlanPeriod | None = None
        self.gate = StepGate()
        """Which steps may begin. Closed while a plan round is about them."""
        self._collectors: list[Collector] = []
        self._planned: Collector | None = None
        """Of the tensors that plans name, once somebody has them."""
        self._definitions: dict[int, Definition] = {}
        self._numbers: dict[str, int] = {}
        self._layouts: dict[int, list[tuple[int, Layout]]] = {}
        self.member = -1
        self.engine: Engine | None = None

    # ---- called by the member ----

    def connect(self, place: Welcome, connections: dict[int, list[Joined]], shared: dict[int, SharedPath]) -> None:
        self.member = place.member
        self._deployment = replace(self._deployment, hosts=place.hosts)
        self._periods = [replace(self._periods[0], shards=Shards(self._deployment))]
        engine = Engine(
            member=place.member,
            num_workers=self._deployment.num_workers,
            num_members=self._deployment.num_members,
            epoch=int(place.job, 16) & 0xFFFFFFFF,
            num_io_threads=self._config.num_io_threads,
            heartbeat_s=self._config.heartbeat_s,
            hosts=place.hosts,
            wire=self._config.wire,
            num_learners=self._deployment.num_learners,
        )
        self.engine = engine
        engine.set_credit(0, self._periods[0].credit_bytes or 0)
        for peer, several in connections.items():
            keys = [(one.keys.sending, one.keys.receiving) for one in several]
            engine.attach(peer, [one.socket.detach() for one in several], keys)
        for peer, path in shared.items():
            engine.attach_shared(peer, path.bell, path.memory)

    def define(self, definitions: Sequence[Definition]) -> None:
        with self._lock:
            for definition in definitions:
                tensor = definition.tensor
                self._definitions[definition.id] = definition
                self._numbers[tensor.name] = definition.id
                self._layouts[definition.id] = []
                assert self.engine is not None
                coding = self._coding(tensor)
                self.engine.declare(
                    definition.id, tensor.name, tensor.num_bytes, tensor.dtype, coding, tensor.staleness, tensor.backups
                )
                # The oldest plan still known governs a new tensor from its first step on, whatever the others' step.
                for period, from_step in zip(
                    self._periods, [0, *(period.from_step for period in self._periods[1:])], strict=True
                ):
                    if not from_step or tensor.operation is Operation.PUSH_PULL:
                        self._lay_out(definition, period, from_step)

    def prepare(self, plan: str, from_step: int) -> str:
        proposed = Plan.from_json(plan)
        if proposed.sequence is not None:
            raise PlanError("plan: it has a sequence, which is for c10d; transport native starts what is ready")
        if proposed.flat and any(len(bucket) > 1 for bucket in proposed.buckets):
            raise PlanError("plan: its buckets are flat; transport native copies nothing together, so give flat=false")
        with self._lock:
            if (places := self._places()) and sorted(places) != sorted(proposed.bucket_of):
                raise PlanError(f"plan: it is for {len(proposed.bucket_of)} tensors, but the job trains {len(places)}")
            if not self.gate.close_from(from_step):
                begun = self.gate.latest_step
                raise PlanError(f"rank {self.member} has begun step {begun} already; choose a later one")
            shards = Shards(self._deployment)
            partition_bytes = proposed.largest_partition_bytes
            period = PlanPeriod(from_step, proposed, partition_bytes, proposed.credit_bytes, shards, proposed.bucket_of)
            self._proposed = period
            layouts = self._cut(period, Shards(self._deployment))
        text = json.dumps([plan, from_step, sorted(layouts.items())])
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def commit(self) -> None:
        with self._lock:
            period = self._proposed
            assert period is not None
            assert self.engine is not None
            earlier = [known for known in self._periods if known.from_step < period.from_step]
            begun = [known for known in earlier if known.from_step <= self.gate.latest_step]
            self._periods = [*begun[-1:], *earlier[len(begun) :], period]
            for definition in self._push_pulls():
                self._lay_out(definition, period, period.from_step)
            self.engine.set_credit(period.from_step, period.credit_bytes or 0)
            assert period.plan is not None
            held = self._places().values() if period.plan.stage_barrier else ()
            self.engine.set_stage_barrier(period.from_step, [*held])
            if self._planned is not None:
                self._planned.follow(period.from_step, period.plan.ranked_buckets)

    def settle(self) -> None:
        with self._lock:
            self._proposed = None
        self.gate.open()

    def fail(self, error: LegatoError) -> None:
        for collector in self._collectors:  # whoever waits hears it from the session, but native code does not wait
            collector.set_reason(str(error))
        self.settle()
        self.close()

    # ---- called by its owner ----

    def close(self) -> None:
        """Stop the engine. Can be called twice, and before it has been started."""
        with self._closing:
            if self.engine is not None:
                self.engine.close()

    def keep(self, collector: Collector, *, is_planned: bool) -> None:
        """Tell it why a job has failed, and, if plans name its tensors, what they say of them."""
        self._collectors.append(collector)
        if is_planned:
            self._planned = collector

    def layout(self, tensor: int, step: int) -> Layout:
        """How a tensor travels in a step."""
        with self._lock:
            return next(layout for start, layout in reversed(self._layouts[tensor]) if start <= step)

    @property
    def deployment(self) -> Deployment:
        """Who is in the job, and on which host once it has begun."""
        return self._deployment

    def period(self, step: int) -> PlanPeriod:
        """What governs a step, as far as it is agreed on now."""
        with self._lock:
            return next((period for period in reversed(self._periods) if period.from_step <= step), self._periods[0])

    @property
    def is_plannable(self) -> bool:
        """Whether plans may still name tensors: none do, and no step has begun."""
        with self._lock:
            return self.gate.latest_step < 0 and not self._places()

    def number(self, name: str) -> int:
        """The engine's number of a defined tensor."""
        return self._numbers[name]

    def definition(self, tensor: int) -> Definition | None:
        return self._definitions.get(tensor)

    # ---- with the lock held ----

    def _push_pulls(self) -> list[Definition]:
        return [known for known in self._definitions.values() if known.tensor.operation is Operation.PUSH_PULL]

    def _places(self) -> dict[int, int]:
        """The engine's numbers of the tensors that plans name, by their place there."""
        places = ((known.tensor.place, known.id) for known in self._definitions.values())
        return {place: number for place, number in places if place is not None}

    def _coding(self, tensor: Declaration) -> Coding | None:
        scheme = tensor.scheme()
        return None if scheme is None else scheme.coding(math.prod(tensor.shape), self._deployment.num_workers)

    def _cut(self, period: PlanPeriod, shards: Shards) -> dict[int, Layout]:
        return {
            definition.id: lay_out(definition.tensor, self._deployment, shards, period.partition_of(definition.tensor))
            for definition in self._push_pulls()
        }

    def _lay_out(self, definition: Definition, period: PlanPeriod, from_step: int) -> None:
        assert self.engine is not None
        layout = lay_out(definition.tensor, self._deployment, period.shards, period.partition_of(definition.tensor))
        every = self._layouts[definition.id]
        known = [entry for entry in every if entry[0] < from_step]
        if known and len(known) == len(every) and known[-1][1] == layout:
            return  # it stays as it is, and with it what codecs owe to its parts
        self.engine.lay_out(definition.id, from_step, layout)
        # Tasks under way are at most one layout behind: the two newest that have begun, and those to come, are kept.
        begun = [entry for entry in known if entry[0] <= self.gate.latest_step]
        self._layouts[definition.id] = [*begun[-2:], *known[len(begun) :], (from_step, layout)]
