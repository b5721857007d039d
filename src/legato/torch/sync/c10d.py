"""Gradients over a process group of torch.distributed, in an order that all ranks follow.

Rounds. Every parameter takes part in every round of operations once, on every rank, or the ranks' orders would differ:

    submitted       it enters the round that it has not been in yet
    waited for      whoever has not entered that round by then enters it with nothing (an unused parameter)
    submitted None  where it has already been entered with nothing, that was it
    all have come   the presence goes, too: for which parameters this rank had a gradient

A new plan begins with a round: when the order of first use is known, then when steps have become regular, and after
that now and then, ever more rarely, from what has been recorded since the one before.

Note: streams, on an accelerator. Each arrow is a wait; transports/c10d/collectives.py draws what becomes of a bucket.

    caller's stream    backward of layer i ─┐ put           wait: copy home ─┬─► update           on any other stream:
                                            ▼                    ▲           │ home ────────────► wait(j) of its bucket
    packing stream P                     compress, pack ─┐ ready │           └─► the next put
    the host                                             ▼       │
                                                       collective, finished on the device

Backward does not wait for the packing. A gradient and what was made of it stay alive in its passage until its average
is home, so nothing that P or a collective uses goes back to the allocator before; what is given back then was P's, and
P waits for `home` before it makes anything new of it.
"""

import threading
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from legato.core import Command, Event, Finished, Plan, Replan, Task, Tensor
from legato.errors import InputError, LegatoError
from legato.exchange.measure import Measure
from legato.exchange.plans import agree_on_plan
from legato.observe import Timeline
from legato.observe.events import CoreEvents
from legato.runtime import Record, Runtime
from legato.torch.compression import Compression, Compressor
from legato.torch.sync.c10d_buckets import Buckets
from legato.torch.sync.c10d_measures import ShareMeasures, Shares
from legato.torch.sync.c10d_plan import StaticConfig, StaticPlanner
from legato.torch.sync.process_group import ProcessGroup
from legato.torch.sync.synchronizer import Slot
from legato.transports.c10d.transport import C10dTransport, Scattered, buffer_of
from legato.transports.declaration import Declaration

REGULAR_ROUND = 5
"""By this round, what is only slow the first time (allocations, the choice of kernels) is over.

Plans are made again at 2, 4, 8 … times this number: they take a word between the ranks, and times change.
"""
CLOSE_S = 5.0
"""How long an operation that nobody waits for may hold up the end; where a rank is gone it never ends by itself."""

_NO_STREAM = nullcontext()


@dataclass(slots=True)
class _Passage:
    """One gradient on its way through one round."""

    round: int
    gradient: torch.Tensor | None
    """What was submitted; later the average, or None still where nobody had one."""
    place: torch.Tensor
    """Where the average will be."""
    context: Any
    """What is needed to decompress it."""
    by_default: bool
    """Entered with nothing because somebody waited."""
    unclaimed: "_Passage | None" = None
    """The one before, with an average that nobody has asked for: this one's, unless it has its own."""
    landed: bool = False
    """The average has been taken from its place."""
    home: torch.cuda.Event | None = None
    """Passed when it has: copies go home a bucket at a time, on the stream of whoever waits for the first of it."""


class C10dSynchronizer:
    """Averages gradients in buckets that leave in the sequence of a plan that rank 0 has made."""

    def __init__(
        self,
        group: ProcessGroup,
        prefix: str,
        slots: Sequence[Slot],
        compressor: type[Compressor],
        *,
        config: StaticConfig,
        timeout_s: float = 60.0,
        timeline: Timeline | None = None,
    ) -> None:
        self._group = group
        self._slots = slots
        self._compressor = compressor
        self._lock = threading.RLock()
        self._presence_index = len(slots)
        devices = {slot.parameter.device for slot in slots} or {torch.device("cpu")}
        if len(devices) > 1:
            raise InputError(
                f"over c10d all parameters must be on one device; these are on {', '.join(sorted(map(str, devices)))}"
            )
        [self._device] = devices
        reals = [slot.as_reals(slot.parameter.detach()) for slot in slots]
        self._kinds = [compressor.compress(each.reshape(-1)[:0])[0] for each in reals]
        self._kinds.append(torch.empty(0, device=self._device))
        self._shapes = [*(each.shape for each in reals), torch.Size([len(slots)])]
        names = [f"{prefix}/{name}" for name in (*(slot.name for slot in slots), "presence")]
        self._tensors = tensors = list(map(_tensor, names, self._shapes, self._kinds))
        self._transport = C10dTransport(group.handle, device=self._device, is_nccl=group.is_nccl)
        self._transport.declare(list(map(_declaration, names, self._shapes, self._kinds)))
        kinds = [*((kind.dtype, kind.device) for kind in self._kinds[:-1]), "presence"]
        self._planner = StaticPlanner(config, tensors, kinds, num_ranks=group.size, is_nccl=group.is_nccl)
        self._order = list(range(len(slots)))
        self._order_is_new = False
        self._record = Record(len(tensors))
        self._next_round = [0] * len(slots)
        self._newest_round = -1
        self._num_entered = 0
        self._passages: list[_Passage | None] = [None] * len(slots)
        self._present = [False] * len(slots)
        self._presence = torch.empty(0)
        self._timeout_s = timeout_s
        # A compressor of a user's own may make anything of what arrives.
        self._can_measure = compressor in vars(Compression).values() and dist.is_gloo_available()
        self._is_asked_to_measure = False
        self._measures: ShareMeasures | None = None
        self._is_measuring = False
        """Whether the newest round is measured."""
        self._measured_rounds: list[int | None] = [None] * len(slots)
        """In which round each gradient was submitted last, where that one is measured."""
        plan = self._plan = self._agree(0)
        self._buckets = self._lay_out(plan)
        self._timeline = Timeline(group.rank, group.size) if timeline is None else timeline
        self._events = CoreEvents(self._timeline.moment, tensors, plan)
        self._runtime = Runtime(self._transport, tensors, plan, timeout_s=timeout_s, observer=self._observe)
        self._stream = torch.cuda.Stream(self._device) if self._device.type == "cuda" else None

    def submit(self, index: int, gradient: torch.Tensor | None) -> bool:
        if gradient is not None:
            self._slots[index].check(gradient)
            gradient = self._slots[index].written(gradient)
            if gradient.is_sparse:
                name = self._slots[index].name
                raise InputError(f"parameter {name!r} has a sparse gradient; use sparse=False for it")
        with self._lock:
            passage = self._passages[index]
            if gradient is None and passage is not None and passage.by_default:
                passage.by_default = False
                if passage.round == self._newest_round:
                    return False
            self._enter(index, gradient)
        return False

    def poll(self, index: int) -> bool:
        with self._lock:
            passage = self._passages[index]
            assert passage is not None
            awaited = [index] if passage.gradient is not None else [index, self._presence_index]
            return passage.landed or all(self._runtime.is_complete(Task(passage.round, each)) for each in awaited)

    def wait(self, index: int) -> bool:
        with self._lock:
            passage = self._passages[index]
            assert passage is not None
            self._land(index, passage)
            return passage.gradient is not None

    def arrives_in_place(self, index: int) -> bool:
        del index
        return False

    def wait_first(self, index: int, num_items: int) -> int:
        raise AssertionError(f"gradient {index} arrives as a whole, not {num_items} items first")

    def result(self, index: int) -> torch.Tensor:
        with self._lock:
            passage, self._passages[index] = self._passages[index], None
        assert passage is not None
        assert passage.gradient is not None
        return passage.gradient

    def set_measured(self) -> None:
        """From the next plan on, which all ranks follow from the same round: the first comes after the first step."""
        self._is_asked_to_measure = self._can_measure

    def is_measured(self, index: int) -> bool:
        return self._measured_rounds[index] is not None

    def measure(self, index: int) -> Measure:
        measures, number = self._measures_of(index)
        with self._lock:
            self._fill(number)
            self._runtime.wait_until(lambda: measures.is_told(number), f"the sums of step {number}")
        return measures.of(number, index)

    def measure_here(self, index: int, average: torch.Tensor) -> Measure:
        measures, number = self._measures_of(index)
        return measures.here(number, index, average)

    def confirm(self) -> None:
        """Whoever has waited has seen its average arrive."""

    def set_order(self, order: Sequence[int]) -> None:
        with self._lock:
            self._order = list(order)
            self._order_is_new = True

    @property
    def policy(self) -> str:
        """What its plans follow."""
        return self._planner.policy.name

    @property
    def plan(self) -> Plan:
        """What runs. Its last tensor says which gradients there were."""
        return self._plan

    def close(self) -> None:
        # Nobody waits for the presence of the last round, but its operation must be over before its group ends.
        with suppress(LegatoError):
            self._runtime.drain(CLOSE_S)
        self._runtime.close()
        if self._measures is not None:
            self._measures.close(CLOSE_S)
        self._group.remove()

    # ---- rounds ----

    def _enter(self, index: int, gradient: torch.Tensor | None, *, by_default: bool = False) -> None:
        earlier = self._passages[index]
        if earlier is not None:
            self._land(index, earlier)
        number = self._next_round[index]
        if number > self._newest_round:
            self._begin_round(number)
        passage = self._passages[index] = self._put(index, number, gradient, by_default)
        if gradient is None and earlier is not None and earlier.gradient is not None:
            passage.unclaimed = earlier
        self._next_round[index] = number + 1
        self._measured_rounds[index] = number if self._is_measuring else None
        self._present[index] = gradient is not None
        self._set_out(index, number)
        self._num_entered += 1
        if self._num_entered == len(self._slots):
            with self._behind_current_stream():
                self._presence = self._buckets.put(self._presence_index, self._present_now())
            self._set_out(self._presence_index, number)

    def _set_out(self, index: int, number: int) -> None:
        """What has been put may go, if it is the last of its bucket."""
        bucket = self._buckets.filled(index)
        if bucket is not None:
            with self._behind_current_stream():
                memory = buffer_of(self._buckets.pack(bucket))
                reduction, scattered = self._buckets.reduction(bucket), self._scattered(index)
                self._transport.offer(number, bucket, memory, memory, reduction=reduction, scattered=scattered)
            self._runtime.ready(*(Task(number, each) for each in self._buckets.companions(index)))

    def _begin_round(self, number: int) -> None:
        if self._newest_round >= 0:
            self._fill(self._newest_round)
        self._newest_round, self._num_entered = number, 0
        times, rest = divmod(number, REGULAR_ROUND)
        if self._order_is_new or (times and not rest and times & (times - 1) == 0):
            self._replan(number)
        self._is_measuring = self._measures is not None and self._measures.begin(number)

    def _fill(self, number: int) -> None:
        """Enter a round with nothing for all who have not: nobody comes any more, and somebody waits."""
        if number < self._newest_round or self._num_entered == len(self._slots):
            return
        for index, next_round in enumerate(self._next_round):
            if next_round <= number:
                self._enter(index, None, by_default=True)

    def _land(self, index: int, passage: _Passage) -> None:
        """Bring the average home, into the gradient that was submitted or a new one."""
        if passage.landed:
            if passage.home is not None:
                torch.cuda.current_stream(self._device).wait_event(passage.home)
            return
        self._fill(passage.round)
        self._runtime.wait(Task(passage.round, index))
        if passage.gradient is None:
            self._runtime.wait(Task(passage.round, self._presence_index))
            if not self._presence[index].item() > 0:
                passage.landed = True
                earlier, passage.unclaimed = passage.unclaimed, None
                if earlier is not None:
                    passage.gradient, passage.home = earlier.gradient, earlier.home
                    self._land(index, passage)
                return
            passage.gradient = torch.zeros_like(self._slots[index].parameter, requires_grad=False)
        # A bucket arrives as a whole: one copy for all of it costs little more than one for each.
        companions = [self._passages[each] for each in self._buckets.companions(index)]
        self._bring_home([each for each in companions if each is not None and each.round == passage.round])

    def _bring_home(self, passages: Sequence[_Passage]) -> None:
        brought, homes, averages = [], [], []
        for each in passages:
            if each.landed or each.gradient is None:
                continue
            each.landed = True
            brought.append(each)
            average = self._compressor.decompress(each.place, each.context)
            if each.gradient.is_complex():
                average = torch.view_as_complex(average)
            if average.data_ptr() != each.gradient.data_ptr():
                homes.append(each.gradient)
                averages.append(average)
        if not homes:
            return
        torch._foreach_copy_(homes, averages, non_blocking=True)
        if self._stream is not None:
            home = torch.cuda.current_stream(self._device).record_event()
            self._stream.wait_event(home)
            for each in brought:
                each.home = home

    # ---- plans ----

    def _agree(self, from_round: int) -> Plan:
        """Rank 0's plan, checked by everybody: its text first, then the digest of what each rank has made of it."""
        plan = agree_on_plan(self._transport.rank, self._write, self._transport.broadcast)
        self._transport.set_plan(plan, from_round)
        return plan

    def _write(self) -> Plan:
        order = [self._presence_index, *self._order]
        return self._planner.plan(
            order,
            ready_s=self._record.ready_s(),
            bytes_per_s=self._record.bytes_per_s,
            measured=self._measures is not None,
        )

    def _replan(self, number: int) -> None:
        for index, passage in enumerate(self._passages):
            if passage is not None:
                self._land(index, passage)
        self._runtime.drain()
        self._agree_to_measure()
        plan = self._agree(number)
        self._runtime.replan(number, plan)
        if self._measures is not None:
            self._measures.follow(self._shares(plan) if len(plan.stages) > 1 else None)
        self._plan = plan
        if plan.buckets != self._buckets.members:
            self._buckets = self._lay_out(plan)
        self._record.forget()
        self._order_is_new = False

    def _observe(self, now_s: float, what: Event | Command) -> None:
        self._record(now_s, what)
        if isinstance(what, Finished) and self._measures is not None and self._measures.finished(what.part):
            self._runtime.wake()
        if self._timeline.on or isinstance(what, Replan):
            self._events(now_s, what)

    # ---- measures ----

    def _agree_to_measure(self) -> None:
        """One rank that asks is enough, and none stops again: who clips, clips in every step."""
        if self._measures is None:
            asked = self._group.allgather("measured", np.array([self._is_asked_to_measure], np.uint8))
            if asked.any():
                # A group of its own: when the last share is here differs between ranks, and so would the order.
                on_cuda = self._device.type == "cuda"
                group = ProcessGroup(self._timeout_s, dist.Backend.GLOO)
                self._measures = ShareMeasures(group, self._timeout_s, on_cuda=on_cuda)

    def _shares(self, plan: Plan) -> Shares:
        size, rank = self._transport.size, self._transport.rank
        return Shares(plan, self._tensors, num_tensors=len(self._slots), num_ranks=size, rank=rank)

    def _scattered(self, index: int) -> Scattered | None:
        """What measures a tensor between the halves of its sum; nothing measures the presence."""
        is_measured = self._is_measuring and index != self._presence_index
        return self._measures.scattered if self._measures is not None and is_measured else None

    def _measures_of(self, index: int) -> tuple[ShareMeasures, int]:
        """Where the measure of what was submitted last is to be found, and in which round."""
        number = self._measured_rounds[index]
        assert self._measures is not None
        assert number is not None
        return self._measures, number

    # ---- memory ----

    def _put(self, index: int, number: int, gradient: torch.Tensor | None, by_default: bool) -> _Passage:
        slot = self._slots[index]
        # On the stream that packs it: what compression makes is given back there, so to nobody before it has been read.
        with self._behind_current_stream():
            if gradient is None:
                nothing = torch.zeros_like(slot.parameter, requires_grad=False)
                context = self._compressor.compress(slot.as_reals(nothing))[1]
                return _Passage(number, None, self._buckets.put(index, None), context, by_default)
            wire, context = self._compressor.compress(slot.as_reals(gradient))
            return _Passage(number, gradient, self._buckets.put(index, wire), context, by_default)

    def _present_now(self) -> torch.Tensor:
        present = torch.tensor(self._present, dtype=torch.float32)
        # From pinned memory: copying any other would hold this thread up until the device has caught up with it.
        return present if self._stream is None else present.pin_memory().to(self._device, non_blocking=True)

    def _behind_current_stream(self) -> AbstractContextManager[object]:
        """On the packing stream, after what the caller's stream has been given: the gradient."""
        if self._stream is None:
            return _NO_STREAM
        self._stream.wait_stream(torch.cuda.current_stream(self._device))
        return torch.cuda.stream(self._stream)

    def _lay_out(self, plan: Plan) -> Buckets:
        return Buckets(plan.buckets, self._shapes, self._kinds, self._transport.size)


def _tensor(name: str, shape: torch.Size, kind: torch.Tensor) -> Tensor:
    """What the core knows of what travels; priorities are the planner's."""
    item_bytes = kind.element_size()
    return Tensor(name=name, num_bytes=shape.numel() * item_bytes, priority=0, item_bytes=item_bytes)


def _declaration(name: str, shape: torch.Size, kind: torch.Tensor) -> Declaration:
    return Declaration(name=name, shape=tuple(shape), dtype=str(kind.dtype).removeprefix("torch."))
