"""A harness for the streams of an accelerator: it makes each of them late where it hands over to another.

A wait that is missing is lost only if what should be waited for is late, so every hand-over is delayed by tens of
milliseconds, in turn or at random, and memory that nobody may read holds NaN: pinned memory and buckets before they are
filled and after they are given back. The gradients of `Exact` are small whole numbers, so their averages are the same
bits in any order of summation, in fp32, fp16 and bf16: a run must equal DDP's to the last bit.
"""

import contextlib
import random
import sys
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any
from unittest.mock import patch

import torch
import torch.distributed as dist
from torch import nn

from legato.torch.sync.c10d import C10dSynchronizer
from legato.torch.sync.c10d_buckets import Buckets
from legato.torch.sync.in_host import InHostSynchronizer
from legato.torch.sync.pieces import PieceStaging
from legato.torch.sync.staging import Staging
from legato.transports.c10d import collectives

DELAY_CYCLES = 20_000_000
"""10 ms at 2 GHz, and several times that where processes take turns on the device."""

GRADIENT, COPY, RETURN, PACK, ISSUE, BACKEND, HOME = (
    *("gradient", "copy to the host", "copy back", "pack"),
    *("issue of a collective", "backend's result", "copy home"),
)
NATIVE_SITES = (GRADIENT, COPY, RETURN)
C10D_SITES = (GRADIENT, PACK, ISSUE, BACKEND, HOME)
IN_HOST_SITES = (GRADIENT, PACK, BACKEND, COPY, RETURN, HOME)

_BY_WAIT = {
    "Staging.send": COPY,
    "PieceStaging.send": COPY,
    "C10dSynchronizer._behind_current_stream": PACK,
    "InHostSynchronizer._behind_current_stream": PACK,
    "Collectives.start": ISSUE,
}
"""Who waits for an event: the stream that waits is late with what it does next."""


class _Late:
    """Which hand-overs are late: one in five of these unless told otherwise, or one in twenty of all."""

    def __init__(self, sites: Collection[str] | None, seed: int, chance: float = 0.2) -> None:
        self._sites = sites
        self._chance = 0.05 if sites is None else chance
        self._random = random.Random(seed)

    def hold(self, site: str, times: int = 1) -> None:
        """Delay the current stream, if it is this one's turn."""
        if (self._sites is None or site in self._sites) and self._random.random() < self._chance:
            torch.cuda._sleep(times * DELAY_CYCLES)


_late = _Late((), 0)


@contextlib.contextmanager
def delayed(sites: Collection[str] | None, seed: int = 0, chance: float = 0.2) -> Iterator[None]:
    """Make hand-overs late at these sites, or with None at random; and poison what nobody may read."""
    global _late  # noqa: PLW0603 - the autograd thread and the listener's look at it, too
    _late = _Late(sites, seed, chance)
    replaced: list[tuple[Any, str, Any]] = [
        (torch.cuda.Stream, "wait_event", _wait_event),
        (torch, "empty_like", _empty_like),
        (Staging, "bring_back", _bring_back),
        (PieceStaging, "bring_home", _bring_pieces_home),
        (C10dSynchronizer, "_bring_home", _bring_home),
        (InHostSynchronizer, "_bring_home", _bring_home_in_host),
        (Buckets, "_place", _place),
        *((dist, name, _slow(name)) for name in ("all_reduce", "all_to_all_single")),
        *((collectives, name, _slow(name, collectives)) for name in ("all_gather", "_reduce_scatter")),
    ]
    with contextlib.ExitStack() as stack:
        for owner, name, replacement in replaced:
            stack.enter_context(patch.object(owner, name, replacement))
        yield
    _late = _Late((), 0)


# ---- what replaces the originals ----

_original_wait_event = torch.cuda.Stream.wait_event
_original_empty_like = torch.empty_like
_original_bring_back = Staging.bring_back
_original_bring_pieces_home = PieceStaging.bring_home
_original_bring_home = C10dSynchronizer._bring_home
_original_bring_home_in_host = InHostSynchronizer._bring_home
_original_place = Buckets._place


def _wait_event(stream: torch.cuda.Stream, event: torch.cuda.Event) -> None:
    _original_wait_event(stream, event)
    frame = sys._getframe(1)
    while frame.f_code.co_qualname == "Stream.wait_stream":
        assert frame.f_back is not None
        frame = frame.f_back
    site = _BY_WAIT.get(frame.f_code.co_qualname)
    if site is not None:
        with torch.cuda.stream(stream):
            _late.hold(site)


def _empty_like(tensor: torch.Tensor, **options: Any) -> torch.Tensor:
    made = _original_empty_like(tensor, **options)
    return made.fill_(torch.nan) if made.is_floating_point() else made


def _bring_back(staging: Staging, index: int, tensor: torch.Tensor) -> None:
    _late.hold(RETURN)
    _original_bring_back(staging, index, tensor)
    # Given back as soon as it has been read: the next copy into it comes after the poison.
    poison = torch.cuda.Stream(tensor.device)
    poison.wait_stream(torch.cuda.current_stream(tensor.device))
    with torch.cuda.stream(poison):
        staging._pinned[index].copy_(torch.full_like(tensor, torch.nan), non_blocking=True)
    staging._stream(tensor.device).wait_stream(poison)


def _poison_like(tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
    """NaN, also of what is encoded."""
    if tensor.dtype is torch.uint8:
        return torch.full_like(tensor, 0xFF, device=device)
    return torch.full_like(tensor, torch.nan, device=device)


def _bring_pieces_home(staging: PieceStaging, place: int, tensor: torch.Tensor, mark: int) -> None:
    with torch.cuda.stream(staging._way_of(tensor.device).home):
        _late.hold(RETURN)
    _original_bring_pieces_home(staging, place, tensor, mark)
    poison = torch.cuda.Stream(tensor.device)
    poison.wait_event(staging._home[place])
    with torch.cuda.stream(poison):
        for pinned in staging._pinned[place]:
            pinned.copy_(_poison_like(pinned, tensor.device), non_blocking=True)
    staging._home[place] = poison.record_event()


def _bring_home(synchronizer: C10dSynchronizer, passages: Sequence[Any]) -> None:
    _late.hold(HOME)
    _original_bring_home(synchronizer, passages)
    stream = synchronizer._stream
    if stream is None or not all(each.landed for each in passages):
        return
    poison = torch.cuda.Stream(stream.device)
    poison.wait_stream(torch.cuda.current_stream(stream.device))
    with torch.cuda.stream(poison):
        for each in passages:
            if each.gradient is not None and each.place.data_ptr() != each.gradient.data_ptr():
                each.place.fill_(torch.nan)
    stream.wait_stream(poison)


def _bring_home_in_host(synchronizer: InHostSynchronizer, indices: Sequence[int]) -> None:
    # Gloo's next all-gather waits for it on the host. Nothing waits so for the last one, which is used last, too.
    _late.hold(HOME, 5)
    _original_bring_home_in_host(synchronizer, indices)
    for index in indices:
        passage = synchronizer._passages[index]
        # A rank without a gradient takes the average from there when it knows that there is one.
        gradient = None if passage is None else passage.gradient
        if passage is not None and gradient is not None and passage.place.data_ptr() != gradient.data_ptr():
            passage.place.fill_(torch.nan)


def _place(buckets: Buckets, index: int, number: int) -> torch.Tensor:
    is_new = number not in buckets._flats
    place = _original_place(buckets, index, number)
    if is_new:
        buckets._flats[number].fill_(torch.nan)
    return place


class _SlowWork:
    """The work of a backend whose result reaches the device's memory late: until then NaN is there."""

    def __init__(self, work: Any, result: torch.Tensor, *, by_streams: bool) -> None:
        """`by_streams`: as NCCL, which never holds up a thread of the host; others are late when waited for."""
        self._work = work
        self._result = result
        self._stream = torch.cuda.Stream(result.device)
        self._is_late = by_streams
        if by_streams:
            self._come_late()

    def is_completed(self) -> bool:
        return bool(self._work.is_completed())

    def wait(self, *timeout: Any) -> None:
        if not self._is_late:
            self._come_late(*timeout)
        torch.cuda.current_stream(self._result.device).wait_stream(self._stream)

    def _come_late(self, *timeout: Any) -> None:
        with torch.cuda.stream(self._stream):
            self._work.wait(*timeout)
            arrived = self._result.clone()
            self._result.fill_(torch.nan)
            self._stream.synchronize()  # whoever reads now, reads NaN
            # One process has the device to itself and is soon through with a delay.
            _late.hold(BACKEND, 5 if self._is_late else 1)
            self._result.copy_(arrived)


def _slow(name: str, owner: Any = dist) -> Callable[..., Any]:
    original = getattr(owner, name)

    def operation(result: torch.Tensor, *arguments: Any, **options: Any) -> Any:
        work = original(result, *arguments, **options)
        is_ours = options.get("async_op") and result.is_cuda and result.is_floating_point()
        by_streams = dist.get_backend() == dist.Backend.NCCL
        return _SlowWork(work, result, by_streams=by_streams) if is_ours else work

    return operation


# ---- a model whose gradients are exact ----


class _Hold(torch.autograd.Function):
    """Makes the current stream late, here and in backward: gradients come later than the host believes."""

    @staticmethod
    def forward(ctx: Any, values: torch.Tensor) -> torch.Tensor:
        del ctx
        return values.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> torch.Tensor:
        del ctx
        _late.hold(GRADIENT)
        return gradients[0]


class ExactLayer(nn.Module):
    """(x @ w.T) · k with x and k of -1, 0 and 1: whatever w is, its gradient is a small whole number."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(outputs, inputs))
        self.bias = nn.Parameter(torch.randn(outputs))

    def forward(self, seed: int) -> torch.Tensor:
        device = self.weight.device
        generator = torch.Generator(device).manual_seed(seed)
        outputs, inputs = self.weight.shape
        x = torch.randint(-1, 2, (3, inputs), generator=generator, device=device).to(self.weight.dtype)
        k = torch.randint(-1, 2, (3, outputs), generator=generator, device=device).to(self.weight.dtype)
        y = nn.functional.linear(x, self.weight, self.bias)
        return (_Hold.apply(y) * k).sum()  # type: ignore[no-untyped-call]


class Exact(nn.Module):
    """Layers of very different sizes, one of which only some ranks use in some steps if asked."""

    SIZES = ((1000, 2000), (64, 64), (64, 3000), (700, 700), (64, 64), (2000, 1500))

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(ExactLayer(*sizes) for sizes in self.SIZES)
        self.skipped = nn.ModuleList(ExactLayer(300, 300) for _ in range(2))

    def forward(self, seed: int, skip: bool) -> torch.Tensor:
        total = torch.stack([layer(seed + place) for place, layer in enumerate(self.layers)]).sum()
        return total if skip else total + self.skipped[0](seed + 99)
