"""Collectives: the three stages of a part as operations of a torch.distributed process group.

Gloo's reduce-scatter moves as many bytes as its all-reduce, and MPI's needs equal pieces in a list; an all-to-all and
a local sum moves half of it on any backend:

    rank 0   a0 a1 a2        a0 b0 c0 → Σ0  ┐
    rank 1   b0 b1 b2   ──►  a1 b1 c1 → Σ1  │ in the owner's piece of the part
    rank 2   c0 c1 c2        a2 b2 c2 → Σ2  ┘

NCCL has a reduce-scatter of its own.

Note: streams. On an accelerator every operation is issued on one stream of ours, S, from whatever thread starts it: a
backend orders its own streams behind the one that is current, which for the caller's thread is all of backward and for
the listener's nothing at all. Solid lines are streams, each arrow is a wait:

    packing stream P   pack bucket ─┐ ready
                                    ▼
    our stream S                   issue ─┐                            ┌─► land: sum rows, divide ─┐ over
                                          ▼                            │                           ▼
    backend's own          Gloo: to the host, sum, back to the device ─┤              the listener waits on the host,
                           NCCL: kernels ──────────────────────────────┘              then the part has finished

The listener is S's only other user: Gloo's work ends on the host, so it lands when the listener has waited for it;
NCCL's is a matter of streams alone, so it lands at once. Either way a part that has finished is finished on the device,
and whoever hears of it may read the result on any stream. The next stage of a part is issued on S again, behind `land`.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Protocol

import torch
import torch.distributed as dist

from legato.core.part import Stage

all_gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
_reduce_scatter = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor
"""Renamed in torch 2.13; the former names warn there."""

_OPS: dict[str, Any] = {
    "sum": dist.ReduceOp.SUM,
    "average": dist.ReduceOp.SUM,  # only NCCL averages by itself; dividing the owner's piece costs little
    "min": dist.ReduceOp.MIN,
    "max": dist.ReduceOp.MAX,
    "product": dist.ReduceOp.PRODUCT,
}
REDUCTIONS = tuple(_OPS)
_OF_ROWS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "sum": lambda rows: rows.sum(0, dtype=rows.dtype),
    "average": lambda rows: rows.sum(0, dtype=rows.dtype),
    "min": lambda rows: rows.amin(0),
    "max": lambda rows: rows.amax(0),
    "product": lambda rows: rows.prod(0, dtype=rows.dtype),
}


@dataclass(frozen=True, slots=True)
class Cargo:
    """The memory of one part."""

    source: torch.Tensor
    destination: torch.Tensor
    reduction: str
    ready: "torch.cuda.Event | None"
    """Passed when the source holds its values; None where memory has no streams."""
    scattered: "Callable[[torch.Tensor], None] | None" = None
    """Is given this rank's share of a sum, on the stream that has put it in its place, before the part has finished."""


class Flight(Protocol):
    """An operation under way."""

    def landed(self) -> bool:
        """Whether `wait` would return at once."""

    def wait(self, timeout_s: float) -> bool:
        """Until its result is in place; False when the time ran out. What fails is torch's own error."""


class HostFlight:
    """The work of a backend that this thread waits for, and what is left to do when it has ended."""

    def __init__(self, work: Any, land: Callable[[], None], stream: "torch.cuda.Stream | None" = None) -> None:
        self._work = work
        self._land = land
        self._stream = stream
        self._on_stream: AbstractContextManager[object] = nullcontext() if stream is None else torch.cuda.stream(stream)

    def landed(self) -> bool:
        return self._work is None or bool(self._work.is_completed())

    def wait(self, timeout_s: float) -> bool:
        if self._work is None:
            return True
        with self._on_stream:
            try:
                # Its host part is over then, and our stream is behind its copy to the device.
                self._work.wait(timedelta(seconds=timeout_s))
            except RuntimeError:
                if not self._work.is_completed():
                    return False
                # It failed, or it ended between the end of that wait and this line: only asking again tells which.
                self._work.wait()
            self._land()
        if self._stream is not None:
            _passed(self._stream).synchronize()
        return True


class _StreamFlight:
    """Work that a device does in order: it is over when the event behind it has passed."""

    def __init__(self, event: torch.cuda.Event) -> None:
        self._event = event

    def landed(self) -> bool:
        return bool(self._event.query())

    def wait(self, timeout_s: float) -> bool:  # noqa: ARG002 - NCCL's own watchdog ends what takes too long
        self._event.synchronize()
        return True


class Collectives:
    """Starts operations on a process group. The order of its calls must be the same on every rank."""

    def __init__(self, group: dist.ProcessGroup, *, device: torch.device, is_nccl: bool) -> None:
        self._group = group
        self._rank = group.rank()
        self._size = group.size()
        self._is_nccl = is_nccl
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None
        self._spare: dict[torch.dtype, list[torch.Tensor]] = {}

    def start(self, stage: Stage, cargo: Cargo) -> Flight:
        """Issue the operation; returns at once."""
        if not cargo.source.numel():
            return HostFlight(None, _nothing)
        if self._stream is None:
            return HostFlight(*self._issue(stage, cargo))
        if cargo.ready is not None:
            self._stream.wait_event(cargo.ready)
        with torch.cuda.stream(self._stream):
            work, land = self._issue(stage, cargo)
            if not self._is_nccl:
                return HostFlight(work, land, self._stream)
            work.wait()  # does not block: it puts our stream behind NCCL's
            land()
            return _StreamFlight(_passed(self._stream))

    def run(self, stage: Stage, cargo: Cargo) -> None:
        """Issue the operation on the current stream, which goes on behind it; the host, too, except over NCCL."""
        if cargo.source.numel():
            work, land = self._issue(stage, cargo)
            work.wait()
            land()

    def _issue(self, stage: Stage, cargo: Cargo) -> tuple[Any, Callable[[], None]]:
        scattered = cargo.scattered
        if scattered is None or stage is not Stage.REDUCE_SCATTER:
            return self._issue_alone(stage, cargo)
        work, land = self._issue_alone(stage, cargo)

        def land_and_tell() -> None:
            land()
            scattered(cargo.destination[share_of(len(cargo.destination), self._size, self._rank)])

        return work, land_and_tell

    def _issue_alone(self, stage: Stage, cargo: Cargo) -> tuple[Any, Callable[[], None]]:
        if stage is Stage.SYNC:
            return self._sync(cargo)
        if cargo.source.numel() % self._size:
            return self._issue_padded(stage, cargo)
        if stage is Stage.ALL_GATHER:
            return self._gather(cargo.destination), _nothing
        return self._scatter_sum(cargo)

    def _sync(self, cargo: Cargo) -> tuple[Any, Callable[[], None]]:
        whole = cargo.destination
        if whole.data_ptr() != cargo.source.data_ptr():
            whole.copy_(cargo.source)
        work = dist.all_reduce(whole, _OPS[cargo.reduction], self._group, async_op=True)
        return work, lambda: self._average(whole, cargo.reduction)

    def _scatter_sum(self, cargo: Cargo) -> tuple[Any, Callable[[], None]]:
        mine = self._mine(cargo.destination)
        if self._is_nccl:
            # NCCL may reduce into the piece of the input that is this rank's.
            work = _reduce_scatter(mine, cargo.source, _OPS[cargo.reduction], self._group, async_op=True)
            return work, lambda: self._average(mine, cargo.reduction)
        scratch = self._borrow(cargo.source)
        rows = scratch[: cargo.source.numel()]
        work = dist.all_to_all_single(rows, cargo.source, group=self._group, async_op=True)

        def land() -> None:
            mine.copy_(_OF_ROWS[cargo.reduction](rows.view(self._size, -1)))
            self._average(mine, cargo.reduction)
            self._give_back(scratch)

        return work, land

    def _gather(self, whole: torch.Tensor) -> Any:
        """Every rank's piece, in place: the input is a piece of the output."""
        return all_gather(whole, self._mine(whole), self._group, async_op=True)

    def _issue_padded(self, stage: Stage, cargo: Cargo) -> tuple[Any, Callable[[], None]]:
        """A length that the ranks cannot share equally goes through a copy that they can."""
        length = cargo.source.numel()
        padded = cargo.source.new_zeros(-(-length // self._size) * self._size)
        # What a rank has summed stays in its piece of the padded copy's range, so that range is what counts.
        padded[:length] = cargo.source if stage is Stage.REDUCE_SCATTER else cargo.destination
        work, land = self._issue(stage, Cargo(padded, padded, cargo.reduction, None))

        def land_and_copy() -> None:
            land()
            scattered = stage is Stage.REDUCE_SCATTER
            home = share_of(length, self._size, self._rank) if scattered else slice(length)
            cargo.destination[home] = padded[home]

        return work, land_and_copy

    def _mine(self, whole: torch.Tensor) -> torch.Tensor:
        return whole[share_of(whole.numel(), self._size, self._rank)]

    def _average(self, tensor: torch.Tensor, reduction: str) -> None:
        if reduction == "average":
            tensor.div_(self._size, rounding_mode=None if tensor.is_floating_point() else "trunc")

    def _borrow(self, like: torch.Tensor) -> torch.Tensor:
        """Scratch memory, at least as large; fresh pages for every operation would cost as much as the sum itself."""
        spare = self._spare.setdefault(like.dtype, [])
        scratch = spare.pop() if spare else None
        # One that is too small makes way for a larger one: there are never more than operations in flight.
        return torch.empty_like(like) if scratch is None or scratch.numel() < like.numel() else scratch

    def _give_back(self, scratch: torch.Tensor) -> None:
        self._spare[scratch.dtype].append(scratch)


def share_of(num_items: int, num_ranks: int, rank: int) -> slice:
    """What a rank has of a sum between its halves; where ranks cannot share it equally, the last have less."""
    share = -(-num_items // num_ranks)
    return slice(min(rank * share, num_items), min((rank + 1) * share, num_items))


def _passed(stream: torch.cuda.Stream) -> torch.cuda.Event:
    """Passes when the stream has done all it was given."""
    # Blocking: a thread that waits for it must not take a core from the training.
    event = torch.cuda.Event(blocking=True)
    event.record(stream)
    return event


def _nothing() -> None:
    """What there is to do when an operation needs nothing after it."""


def gather_rows(group: dist.ProcessGroup, mine: torch.Tensor) -> list[torch.Tensor]:
    """Every rank's rows, of which each may have another number, on the host."""
    counts = torch.empty(group.size(), dtype=torch.int64, device=mine.device)
    all_gather(counts, torch.tensor([len(mine)], device=mine.device), group)
    padded = mine.new_zeros((int(counts.max()), *mine.shape[1:]))
    padded[: len(mine)] = mine
    everything = padded.new_empty((group.size() * len(padded), *mine.shape[1:]))
    all_gather(everything, padded, group)
    rows = everything.cpu().view(group.size(), *padded.shape)
    return [each[:count] for each, count in zip(rows, counts.tolist(), strict=True)]


class TextExchange:
    """Collective calls: every rank makes the same ones in the same order."""

    def __init__(self, group: dist.ProcessGroup, device: torch.device) -> None:
        self._group = group
        self._device = device
        self._rank = group.rank()

    def exchange(self, text: str) -> list[str]:
        """What every rank says, by rank."""
        return [bytes(each.tolist()).decode() for each in gather_rows(self._group, self._words(text.encode()))]

    def broadcast(self, text: str | None, root: int = 0) -> str:
        """What the root says; the others give None."""
        words = self._words(b"" if text is None else text.encode())
        length = torch.tensor([words.numel()], device=self._device)
        dist.broadcast(length, group_src=root, group=self._group)
        if self._rank != root:
            words = words.new_empty(int(length))
        if words.numel():
            dist.broadcast(words, group_src=root, group=self._group)
        return bytes(words.tolist()).decode()

    def _words(self, data: bytes) -> torch.Tensor:
        return torch.tensor(list(data), dtype=torch.uint8, device=self._device)
