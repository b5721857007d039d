"""Buffers: from a gradient's memory to the engine and back."""

import logging
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import torch

from legato._native import LAST_STEP
from legato.compression import PLAIN, Selection
from legato.core import Plan, Tensor
from legato.errors import InputError
from legato.torch.compression import Compressor, NoneCompressor
from legato.torch.sync.native_plan import NativePlanner
from legato.torch.sync.plans import agree_on_plan
from legato.torch.sync.rows import RowsPassage
from legato.torch.sync.staging import Staged, Staging
from legato.torch.sync.synchronizer import Slot
from legato.transports.declaration import ITEM_BYTES, Declaration, Operation
from legato.transports.native.channel import Channel, Ranks, launch_bucket
from legato.transports.native.group import NativeGroup
from legato.transports.native.handle import TaskHandle
from legato.tuning.candidate import Candidate

_log = logging.getLogger(__name__)


def dtype_name(dtype: torch.dtype) -> str:
    """The name that ranks agree on: `float32` for torch.float32."""
    name = str(dtype).removeprefix("torch.")
    if name not in ITEM_BYTES:
        raise InputError(f"dtype {dtype} cannot be synchronised; accepted are {', '.join(ITEM_BYTES)}")
    return name


def raw(tensor: torch.Tensor) -> tuple[int, int, str]:
    """A tensor's memory as the transports take it."""
    return tensor.data_ptr(), tensor.numel() * tensor.element_size(), dtype_name(tensor.dtype)


_FORMATS = {4: torch.channels_last, 5: torch.channels_last_3d}


def is_in_one_stretch(tensor: torch.Tensor) -> bool:
    """Whether its elements fill one stretch of memory, in the order of its layout."""
    return tensor.is_contiguous() or (
        tensor.dim() in _FORMATS and tensor.is_contiguous(memory_format=_FORMATS[tensor.dim()])
    )


Late = Callable[[int, Sequence[int]], None]
"""Told of a step and the ranks that were too late for a gradient in it."""


@dataclass(slots=True)
class _Passage:
    """One gradient on its way through one step."""

    step: int
    gradient: torch.Tensor
    """What was submitted, and holds the average in the end."""
    wire: torch.Tensor
    """What is sent of it, on its device."""
    context: Any
    """What is needed to decompress it."""
    absent: bool
    """This rank has nothing to add."""
    handle: TaskHandle[Any] | Staged | None = None
    """None while its bucket waits for the others of it."""


class NativeSynchronizer:
    """Averages gradients in their own memory. Buckets go to the engine as they fill; it cuts, orders and preempts.

    The plan is the job's if this is what plans count the steps of, the first that asks for it. Otherwise it is this
    synchronizer's alone, and the engine follows only its order.
    """

    def __init__(
        self,
        group: NativeGroup,
        prefix: str,
        slots: Sequence[Slot],
        compressor: type[Compressor],
        selection: Selection = PLAIN,
        *,
        planner: NativePlanner | None = None,
        staleness: int | None = None,
        backups: int = 0,
        late: Late | None = None,
    ) -> None:
        """With a `staleness`, what comes back is the average of all that has ever been submitted (`Declaration`).

        With `backups`, it is the average of those who came in time, and `late` is told of the others.
        """
        self._group = group
        self._player = group.session.player
        self._prefix = prefix
        self._slots = slots
        self._names = [f"{prefix}/{slot.name}" for slot in slots]
        self._compressor = compressor
        self._selection = selection
        self._planner = planner or NativePlanner()
        self._staleness = staleness
        self._backups = backups
        self._late = late
        if backups and any(slot.is_sparse for slot in slots):
            raise InputError(f"backups={backups} do not go with sparse gradients; use sparse=False")
        self._steps = [0] * len(slots)
        self._passages: list[_Passage | None] = [None] * len(slots)
        self._staging = Staging() if any(slot.parameter.is_cuda for slot in slots) else None
        if self._staging is not None and selection.schemes:
            _log.info("codecs work on the host: gradients are copied there whole, and the network alone carries less")
        self._rows: dict[int, RowsPassage] = {}
        self._dense = [index for index, slot in enumerate(slots) if not slot.is_sparse]
        """The slots that plans name, by their place there."""
        self.is_planned = self._operation is Operation.PUSH_PULL and self._player.is_plannable and bool(self._dense)
        """Whether its steps are those that the job's plans count."""
        declared = [self._declaration(place, index) for place, index in enumerate(self._dense)]
        group.declare([*declared, *(scale for tensor in declared if (scale := tensor.scale) is not None)])
        self._channels: list[Channel | None] = [None] * len(slots)
        """Of what no rank has to agree on a scale for first."""
        self._numbers = [0] * len(slots)
        """The engine's, of the same."""
        for index, tensor in zip(self._dense, declared, strict=True):
            if tensor.scale is None:
                self._channels[index] = channel = group.channel(tensor)
                self._numbers[index] = channel.number
        self._tensors = [
            Tensor(name=tensor.name, num_bytes=tensor.num_bytes, priority=place, item_bytes=tensor.item_bytes)
            for place, tensor in enumerate(declared)
        ]
        self._num_bytes = [0] * len(slots)
        for index, tensor in zip(self._dense, declared, strict=True):
            self._num_bytes[index] = tensor.num_bytes
        self._as_it_is = [compressor is NoneCompressor and is_in_one_stretch(slot.parameter) for slot in slots]
        """Whether a gradient in its slot's order can be sent from its own memory."""
        self._lock = threading.Lock()
        """Of what waits for its bucket: autograd has a thread for each device, and all of them submit."""
        self._newest_step = -1
        self._partition_bytes = self._player.period(0).partition_bytes
        """The transport's own, before any plan."""
        self._buckets = _Buckets(self._agree(), self._dense)

    def submit(self, index: int, gradient: torch.Tensor | None) -> None:
        absent = gradient is None
        slot = self._slots[index]
        if slot.is_sparse:
            self._rows[index] = RowsPassage(self._group, self._names[index], slot, gradient)
            return
        if gradient is None:
            gradient = torch.empty_like(slot.parameter, requires_grad=False)
        elif gradient.is_sparse:
            raise InputError(f"parameter {slot.name!r} has a sparse gradient, but is not of an embedding")
        wire, context = slot.in_order(gradient), None
        if not self._as_it_is[index]:
            compressed, context = self._compressor.compress(wire)
            wire = compressed if is_in_one_stretch(compressed) else compressed.contiguous()
        if self._staging is not None and wire.is_cuda:
            self._staging.copy(index, wire)  # now: the stream that has made it is the current one
        step = self._steps[index]
        self._steps[index] = step + 1
        with self._lock:
            if step > self._newest_step:
                self._begin(step)
            self._passages[index] = _Passage(step, gradient, wire, context, absent)
            if (filled := self._buckets.add(index)) is not None:
                self._send(filled)

    def poll(self, index: int) -> bool:
        if index in self._rows:
            return self._rows[index].poll()
        passage = self._passages[index]
        assert passage is not None
        return passage.handle is not None and passage.handle.poll()

    def wait(self, index: int) -> bool:
        if index in self._rows:
            return self._rows[index].wait()
        passage = self._passages[index]
        assert passage is not None
        if passage.handle is None:
            with self._lock:
                if passage.handle is None:  # nobody else who waits has sent it meanwhile
                    self._send(self._buckets.take(index))
        assert passage.handle is not None
        passage.handle.wait()
        if self._late is not None:
            self._late(passage.step, passage.handle.without)
        if passage.handle.empty:
            return False
        if isinstance(passage.handle, Staged):
            assert self._staging is not None
            self._staging.bring_back(index, passage.wire)
        # On an accelerator a cast is its own: what travels to the host and back has the size of what is sent.
        average = self._compressor.decompress(passage.wire, passage.context)
        if average.data_ptr() != passage.gradient.data_ptr():
            passage.gradient.copy_(average)
        return True

    def result(self, index: int) -> torch.Tensor:
        if index in self._rows:
            return self._rows.pop(index).result()
        passage, self._passages[index] = self._passages[index], None
        assert passage is not None
        return passage.gradient

    def set_order(self, order: Sequence[int]) -> None:
        priority = {index: place for place, index in enumerate(order)}
        self._tensors = [
            replace(tensor, priority=priority[index]) for index, tensor in zip(self._dense, self._tensors, strict=True)
        ]
        plan = self._agree()
        with self._lock:
            self._follow(plan)

    @property
    def plan(self) -> Plan:
        return self._buckets.plan

    def plan_for(self, candidate: Candidate) -> Plan:
        """What a tuner has chosen, for these gradients."""
        return self._planner.follow(candidate, self._tensors, self._partition_bytes)

    @property
    def num_bytes(self) -> Sequence[int]:
        """What travels of each slot; 0 for sparse ones, whose rows no plan cuts."""
        return self._num_bytes

    @property
    def num_steps(self) -> int:
        """Steps that have begun here, as plans count them."""
        return max(self._steps, default=0)

    def end_totals(self) -> None:
        """What is submitted next is this rank's last: nobody waits for it any more."""
        self._steps = [LAST_STEP] * len(self._slots)

    def close(self) -> None:
        if self._staging is not None:
            self._staging.close()

    # ---- plans ----

    def _agree(self) -> Plan:
        """Rank 0's plan from the next step on, where it is the job's; otherwise this rank's own."""
        if not self.is_planned:
            return self._write()
        plan = agree_on_plan(self._group.rank, self._write, self._broadcast)
        self._group.set_plan(plan, self.num_steps, everyone=True)
        return plan

    def _write(self) -> Plan:
        return self._planner.write(self._tensors, self._partition_bytes)

    def _broadcast(self, text: str | None) -> str:
        mine = np.frombuffer((text or "").encode(), np.uint8)
        return self._group.allgather(f"{self._prefix}/plan", mine).tobytes().decode()

    def _begin(self, step: int) -> None:
        """A step begins: by its own plan, if there is a new one."""
        self._newest_step = step
        if self.is_planned and (plan := self._plan_at(step)) is not self._buckets.plan:
            self._follow(plan)

    def _follow(self, plan: Plan) -> None:
        for waiting in self._buckets.take_all():
            self._send(waiting)
        self._buckets = _Buckets(plan, self._dense)

    def _plan_at(self, step: int) -> Plan:
        plan = self._player.period(step).plan if self.is_planned else None
        return self._buckets.plan if plan is None else plan

    # ---- on their way ----

    def _send(self, indices: Sequence[int]) -> None:
        """Gradients of one bucket; mostly of one step, unless somebody has waited for some of them before."""
        passages = [self._passage(index) for index in indices]
        step = passages[0].step
        if len(indices) > 1 and any(passage.step != step for passage in passages):
            for index in indices:
                self._send([index])
            return
        ranks = self._buckets.ranks(indices[0])
        handles: list[TaskHandle[Any] | Staged] = []
        if self._staging is None or not passages[0].wire.is_cuda:
            handles += self._push_pull(step, ranks, indices, [passage.wire for passage in passages])
        else:
            handles += self._staging.send(indices, lambda pinned: self._push_pull(step, ranks, indices, pinned))
        for passage, handle in zip(passages, handles, strict=True):
            passage.handle = handle

    def _push_pull(
        self, step: int, ranks: Ranks, indices: Sequence[int], wires: Sequence[torch.Tensor]
    ) -> Sequence[TaskHandle[Any]]:
        """On an accelerator this runs on the thread that has waited for the copies."""
        channels = [channel for index in indices if (channel := self._channels[index]) is not None]
        if len(channels) < len(indices):
            return [self._push_pull_one(step, ranks, index, wire) for index, wire in zip(indices, wires, strict=True)]
        # A gradient has its parameter's dtype and size, which all ranks have agreed on: there is nothing to look up.
        tensors = [
            (self._numbers[index], wire.data_ptr(), wire.nbytes, self._passage(index).absent)
            for index, wire in zip(indices, wires, strict=True)
        ]
        later = partial(self._ranks, step, indices)
        return launch_bucket(channels, tensors, wires, step=step, ranks=ranks, ranks_later=later)

    def _push_pull_one(self, step: int, ranks: Ranks, index: int, wire: torch.Tensor) -> TaskHandle[Any]:
        """Of a bucket in which a codec makes ranks agree on a scale first."""
        return self._group.push_pull_async(
            self._names[index],
            raw(wire),
            reduction="average",
            priority=ranks[0],
            step=step,
            absent=self._passage(index).absent,
        )

    def _ranks(self, step: int, indices: Sequence[int]) -> list[Ranks]:
        """By the plan that governs the step now."""
        buckets = _Buckets(self._plan_at(step), self._dense)
        return [buckets.ranks(index) for index in indices]

    def _passage(self, index: int) -> _Passage:
        passage = self._passages[index]
        assert passage is not None
        return passage

    def _declaration(self, place: int, index: int) -> Declaration:
        slot = self._slots[index]
        compressed, _ = self._compressor.compress(
            slot.parameter.detach()[:0] if slot.parameter.dim() else slot.parameter
        )
        dtype, num_items = dtype_name(compressed.dtype), slot.parameter.numel()
        scheme = self._selection.scheme(slot.name, dtype, num_items)
        words = None if scheme is None else scheme.words()
        return Declaration(
            name=self._names[index],
            shape=(num_items,),
            dtype=dtype,
            operation=self._operation,
            compression=words,
            staleness=self._staleness,
            backups=self._backups,
            place=place if self.is_planned else None,
        )

    @property
    def _operation(self) -> Operation:
        if self._staleness is not None:
            return Operation.ACCUMULATE
        # A plan may change how a tensor travels only where no rank can be several steps behind.
        return Operation.ALL_REDUCE if self._backups else Operation.PUSH_PULL


class _Buckets:
    """A plan applied to the slots: which gradients wait for which others."""

    def __init__(self, plan: Plan, dense: Sequence[int]) -> None:
        self.plan = plan
        self._bucket_of = {dense[place]: bucket for place, bucket in plan.bucket_of.items()}
        self._missing = [len(bucket) for bucket in plan.buckets]
        self._waiting: list[list[int]] = [[] for _ in plan.buckets]

    def add(self, index: int) -> list[int] | None:
        """A gradient is there; those that may go now, if it was the last of its bucket."""
        bucket = self._bucket_of[index]
        self._waiting[bucket].append(index)
        self._missing[bucket] -= 1
        if self._missing[bucket]:
            return None
        self._missing[bucket] = len(self.plan.buckets[bucket])
        return self._take(bucket)

    def take(self, index: int) -> list[int]:
        """Those of its bucket that wait: somebody needs one of them, and ranks need not send the same together."""
        return self._take(self._bucket_of[index])

    def ranks(self, index: int) -> Ranks:
        """Of a contribution, and of its sum; the same for all of a bucket."""
        bucket = self._bucket_of[index]
        return self.plan.ranks[0][bucket], self.plan.ranks[-1][bucket]

    def take_all(self) -> list[list[int]]:
        return [self._take(bucket) for bucket, waiting in enumerate(self._waiting) if waiting]

    def _take(self, bucket: int) -> list[int]:
        waiting, self._waiting[bucket] = self._waiting[bucket], []
        return waiting
