"""Buffers: from a gradient's memory to the engine and back."""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from legato._native import LAST_STEP
from legato.compression import PLAIN, Selection
from legato.errors import InputError
from legato.torch.compression import Compressor
from legato.torch.rows import RowsPassage
from legato.torch.staging import Staged, Staging
from legato.torch.synchronizer import Slot
from legato.transports.declaration import ITEM_BYTES, Declaration, Operation
from legato.transports.group import NativeGroup
from legato.transports.handle import Kept, TaskHandle

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


def in_one_stretch(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor itself where its elements fill one stretch of memory, in the order of its layout; else a copy."""
    formats = {4: torch.channels_last, 5: torch.channels_last_3d}
    if tensor.is_contiguous() or (
        tensor.dim() in formats and tensor.is_contiguous(memory_format=formats[tensor.dim()])
    ):
        return tensor
    return tensor.contiguous()


Late = Callable[[int, Sequence[int]], None]
"""Told of a step and the ranks that were too late for a gradient in it."""


@dataclass(slots=True)
class _Passage:
    """One gradient on its way through one step."""

    gradient: torch.Tensor
    """What was submitted, and holds the average in the end."""
    wire: torch.Tensor
    """What is sent of it, on its device."""
    context: Any
    """What is needed to decompress it."""
    handle: TaskHandle[object] | Staged


class NativeSynchronizer:
    """Averages every gradient as a task of its own, in its own memory: the engine cuts, orders and preempts."""

    def __init__(
        self,
        group: NativeGroup,
        prefix: str,
        slots: Sequence[Slot],
        compressor: type[Compressor],
        selection: Selection = PLAIN,
        *,
        ordered: bool,
        staleness: int | None = None,
        backups: int = 0,
        late: Late | None = None,
    ) -> None:
        """With a `staleness`, what comes back is the average of all that has ever been submitted (`Declaration`).

        With `backups`, it is the average of those who came in time, and `late` is told of the others.
        """
        self._group = group
        self._slots = slots
        self._names = [f"{prefix}/{slot.name}" for slot in slots]
        self._compressor = compressor
        self._selection = selection
        self._ordered = ordered
        self._staleness = staleness
        self._backups = backups
        self._late = late
        if backups and any(slot.is_sparse for slot in slots):
            raise InputError(f"backups={backups} do not go with sparse gradients; use sparse=False")
        self._order = list(range(len(slots)))
        self._priorities = self._order if ordered else [0] * len(slots)
        self._steps = [0] * len(slots)
        self._passages: list[_Passage | None] = [None] * len(slots)
        self._staging = Staging() if any(slot.parameter.is_cuda for slot in slots) else None
        if self._staging is not None and selection.schemes:
            _log.info("codecs work on the host: gradients are copied there whole, and the network alone carries less")
        self._rows: dict[int, RowsPassage] = {}
        dense = [(name, slot) for name, slot in zip(self._names, slots, strict=True) if not slot.is_sparse]
        tensors = [self._declaration(name, slot) for name, slot in dense]
        sizes = {tensor.name: tensor.num_bytes for tensor in tensors}
        self._num_bytes = [sizes.get(name, 0) for name in self._names]
        group.declare([*tensors, *(scale for tensor in tensors if (scale := tensor.scale) is not None)])
        self._channels = {tensor.name: group.channel(tensor) for tensor in tensors if tensor.scale is None}

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
        compressed, context = self._compressor.compress(slot.in_order(gradient))
        wire = in_one_stretch(compressed)
        # Counted here and not where it is sent, which on an accelerator is whenever it has come so far.
        step = self._steps[index]
        self._steps[index] = step + 1
        handle: TaskHandle[object] | Staged
        if self._staging is None or not wire.is_cuda:
            handle = self._push_pull(index, step, wire, absent)
        else:
            handle = self._staging.send(index, wire, lambda pinned: self._push_pull(index, step, pinned, absent))
        self._passages[index] = _Passage(gradient, wire, context, handle)

    def poll(self, index: int) -> bool:
        if index in self._rows:
            return self._rows[index].poll()
        passage = self._passages[index]
        assert passage is not None
        return passage.handle.poll()

    def wait(self, index: int) -> bool:
        if index in self._rows:
            return self._rows[index].wait()
        passage = self._passages[index]
        assert passage is not None
        passage.handle.wait()
        if self._late is not None:
            self._late(self._steps[index] - 1, passage.handle.without)
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
        for priority, index in enumerate(order):
            self._order[index] = priority

    def follow_order(self, ordered: bool) -> None:
        """From the next submission on: by first use, or as gradients come."""
        if ordered != self._ordered:
            self._ordered = ordered
            self._priorities = self._order if ordered else [0] * len(self._slots)

    @property
    def sizes(self) -> Sequence[tuple[str, int]]:
        """The name of each slot and what travels of it."""
        return list(zip(self._names, self._num_bytes, strict=True))

    @property
    def num_bytes(self) -> Sequence[int]:
        """What travels of each slot; 0 for sparse ones, whose rows no plan cuts."""
        return self._num_bytes

    @property
    def num_steps(self) -> int:
        """Steps that have begun here, as plans count them."""
        return max(self._steps)

    def end_totals(self) -> None:
        """What is submitted next is this rank's last: nobody waits for it any more."""
        self._steps = [LAST_STEP] * len(self._slots)

    def close(self) -> None:
        if self._staging is not None:
            self._staging.close()

    def _push_pull(self, index: int, step: int, wire: torch.Tensor, absent: bool) -> TaskHandle[object]:
        name = self._names[index]
        channel = self._channels.get(name)
        if channel is None:
            return self._group.push_pull_async(
                name, raw(wire), reduction="average", priority=self._priorities[index], step=step, absent=absent
            )
        # A gradient has its parameter's dtype and size, which all ranks have agreed on: there is nothing to look up.
        address = wire.data_ptr()
        return channel.launch(
            source=address,
            destination=address,
            num_bytes=wire.numel() * wire.element_size(),
            result=Kept(wire, None),
            reduction="average",
            priority=self._priorities[index],
            step=step,
            absent=absent,
        )

    def _declaration(self, name: str, slot: Slot) -> Declaration:
        compressed, _ = self._compressor.compress(
            slot.parameter.detach()[:0] if slot.parameter.dim() else slot.parameter
        )
        dtype, num_items = dtype_name(compressed.dtype), slot.parameter.numel()
        scheme = self._selection.scheme(slot.name, dtype, num_items)
        words = None if scheme is None else scheme.words()
        return Declaration(
            name=name,
            shape=(num_items,),
            dtype=dtype,
            operation=self._operation,
            compression=words,
            staleness=self._staleness,
            backups=self._backups,
        )

    @property
    def _operation(self) -> Operation:
        if self._staleness is not None:
            return Operation.ACCUMULATE
        # A plan may change how a tensor travels only where no rank can be several steps behind.
        return Operation.ALL_REDUCE if self._backups else Operation.PUSH_PULL
