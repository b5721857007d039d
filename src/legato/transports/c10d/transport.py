"""The c10d transport: parts move over any torch.distributed process group (Gloo, NCCL, MPI, UCC).

A process group matches operations by the order in which ranks issue them, so all ranks must start the same parts in
the same order: give it plans with a `sequence`. The group must be this transport's own (`dist.new_group`): whatever
else were issued on it, from another thread, would come between.
"""

import json
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import partial

import torch
import torch.distributed as dist

from legato.core.part import Part, Stage
from legato.core.plan import Plan
from legato.core.scheduler import Finished, Sent
from legato.errors import ClosedError, DeadlineError, InputError, JobError, PeerLostError, PlanError
from legato.transports.base import bucket_declaration, check_plans, check_stages, check_tensors
from legato.transports.buffer import Buffer
from legato.transports.c10d.collectives import REDUCTIONS, Cargo, Collectives, Flight, TextExchange
from legato.transports.declaration import Declaration

Scattered = Callable[[Part, torch.Tensor], None]
"""Is given this rank's share of the sum of a part, when the first half of it is over (`Cargo.scattered`)."""


@dataclass(slots=True)
class _Offer:
    source: torch.Tensor
    destination: torch.Tensor
    reduction: str
    ready: torch.cuda.Event | None
    unfinished_bytes: int
    """Of the last stage."""
    scattered: Scattered | None

    def cargo(self, part: Part) -> Cargo:
        source, destination = self.source, self.destination
        if part.length < source.nbytes:
            item = source.element_size()
            piece = slice(part.offset // item, (part.offset + part.length) // item)
            source, destination = source[piece], destination[piece]
        scattered = None if self.scattered is None else partial(self.scattered, part)
        return Cargo(source, destination, self.reduction, self.ready, scattered)


class C10dTransport:
    """One rank's end of a process group."""

    stages = frozenset(Stage)
    reports_sent = False

    def __init__(
        self,
        group: dist.ProcessGroup,
        *,
        device: torch.device | None = None,
        is_nccl: bool = False,
    ) -> None:
        device = torch.device("cpu") if device is None else device
        self.rank = group.rank()
        self.size = group.size()
        self._collectives = Collectives(group, device=device, is_nccl=is_nccl)
        self._texts = TextExchange(group, device)
        self._changed = threading.Condition()
        self._tensors: list[Declaration] = []
        self._plans: list[tuple[int, Plan]] = []
        self._latest_step = -1
        self._offers: dict[tuple[int, int], _Offer] = {}
        self._flights: dict[Part, Flight] = {}
        self._error: JobError | None = None

    # ---- agreement: collective, while nothing is in flight ----

    def declare(self, tensors: Sequence[Declaration]) -> None:
        said = self._exchange(json.dumps([asdict(tensor) for tensor in tensors]), "the tensors")
        check_tensors([json.loads(text) for text in said])
        self._tensors += tensors

    def set_plan(self, plan: Plan, from_step: int) -> None:
        check_stages(self, plan)
        for bucket in plan.buckets:
            bucket_declaration([self._tensors[index] for index in bucket])
        with self._changed:
            mine = [plan.digest(), from_step, self._latest_step]
        check_plans([json.loads(text) for text in self._exchange(json.dumps(mine), "the plan")])
        earlier = [entry for entry in self._plans if entry[0] < from_step]
        self._plans = [*earlier[-1:], (from_step, plan)]

    def broadcast(self, text: str | None) -> str:
        """What rank 0 says, on every rank; the others give None."""
        self._check_open()
        with translated(self.rank, lambda: "a word from rank 0"):
            return self._texts.broadcast(text)

    def _exchange(self, text: str, what: str) -> list[str]:
        self._check_open()
        with translated(self.rank, lambda: f"the agreement on {what}"):
            return self._texts.exchange(text)

    # ---- parts ----

    def offer(
        self,
        step: int,
        bucket: int,
        source: Buffer,
        destination: Buffer,
        *,
        reduction: str = "sum",
        scattered: Scattered | None = None,
    ) -> None:
        if reduction not in REDUCTIONS:
            raise InputError(f"reduction is {reduction!r}, accepted are {', '.join(REDUCTIONS)}")
        if not self._plans or step < self._plans[0][0]:
            raise PlanError(f"step {step} has no plan; call set_plan first")
        values = _tensor_of(source)
        ready = None
        if values.is_cuda:
            # The caller's stream writes the source; ours must not read it before (collectives.py, "streams").
            ready = torch.cuda.Event()
            ready.record(torch.cuda.current_stream(values.device))
        arrives = values if destination is source else _tensor_of(destination)
        offer = _Offer(values, arrives, reduction, ready, values.nbytes, scattered)
        with self._changed:
            self._check_open()
            self._latest_step = max(self._latest_step, step)
            self._offers[step, bucket] = offer

    def start(self, part: Part) -> None:
        with self._changed:
            self._check_open()
            if (part.step, part.bucket) not in self._offers:
                raise InputError(f"{part} cannot start: its bucket has not been offered")
            if part in self._flights:
                raise InputError(f"{part} has been started before on rank {self.rank}")
            cargo = self._offers[part.step, part.bucket].cargo(part)
            with translated(self.rank, partial(self._describe, part)):
                self._flights[part] = self._collectives.start(part.stage, cargo)
            self._changed.notify_all()

    def events(self, timeout_s: float) -> list[Sent | Finished]:
        """One part that has landed, or else the one that is longest in flight, waited for by this thread.

        A callback of torch would run on the thread that moves the bytes and keep it from the next operation while it
        waits for the interpreter's lock.
        """
        deadline_s = time.monotonic() + timeout_s
        with self._changed:
            self._changed.wait_for(lambda: bool(self._flights) or self._error is not None, timeout_s)
            self._check_open()
            if not self._flights:
                return []
            oldest = next(iter(self._flights))
            part = next((part for part, flight in self._flights.items() if flight.landed()), oldest)
            flight = self._flights[part]
        with translated(self.rank, partial(self._describe, part)):
            if not flight.wait(max(deadline_s - time.monotonic(), 0.001)):
                return []
        with self._changed:
            del self._flights[part]
            self._settle(part)
        return [Finished(part)]

    def close(self) -> None:
        with self._changed:
            self._error = ClosedError("the transport is closed; make a new one to go on", rank=self.rank)
            self._offers.clear()
            self._changed.notify_all()

    def _plan_at(self, step: int) -> Plan:
        return next(plan for from_step, plan in reversed(self._plans) if from_step <= step)

    def _describe(self, part: Part) -> str:
        bucket = self._plan_at(part.step).buckets[part.bucket]
        names = ", ".join(repr(self._tensors[index].name) for index in bucket[:3])
        return f"{part.stage.name} of {names}{', …' * (len(bucket) > 3)} in step {part.step}"

    def _settle(self, part: Part) -> None:
        """Forget the memory of a bucket whose last stage has finished."""
        offer = self._offers.get((part.step, part.bucket))
        if offer is not None and part.stage is self._plan_at(part.step).stages[-1]:
            offer.unfinished_bytes -= part.length
            if offer.unfinished_bytes <= 0:
                del self._offers[part.step, part.bucket]

    def _check_open(self) -> None:
        if self._error is not None:
            raise self._error


def buffer_of(tensor: torch.Tensor) -> Buffer:
    """A tensor's memory, for `offer`: it stays a tensor, on whatever device."""
    dtype = str(tensor.dtype).removeprefix("torch.")
    return Buffer(address=tensor.data_ptr(), shape=tuple(tensor.shape), dtype=dtype, owner=tensor)


def _tensor_of(buffer: Buffer) -> torch.Tensor:
    if isinstance(buffer.owner, torch.Tensor):
        return buffer.owner.view(-1)
    array = torch.from_numpy(buffer.array()).view(-1)
    return array.view(torch.bfloat16) if buffer.dtype == "bfloat16" else array


@contextmanager
def translated(rank: int, what: Callable[[], str]) -> Iterator[None]:
    """torch's errors in our words; which peer it was, only torch's message knows."""
    try:
        yield
    except RuntimeError as error:
        kind = DeadlineError if "timed out" in str(error).lower() else PeerLostError
        raise kind(f"rank {rank}: {what()} failed: {error}", rank=rank) from error
