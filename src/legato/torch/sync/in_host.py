"""In the host: ranks of one host sum their gradients over their own process group, and each sends a share of the sum.

    rank 0   gradients ─► bucket ─┐                  ┌─► share 0 ─► engine ◄─► other hosts ─┐              ┌─► averages
                                  ├─ reduce-scatter ─┤                                      ├─ all-gather ─┤
    rank 1   gradients ─► bucket ─┘                  └─► share 1 ─► engine ◄─► other hosts ─┘              └─► averages

So an accelerator's bytes cross from device to device inside a host (NCCL), a rank's link to its host's memory carries
1/k of them, and a host sends each of them once. The engine knows only shares: it cuts, orders and preempts them as it
does gradients (native.py), among the ranks that have the same place on their hosts (replicas.py).

Note: order. A process group matches operations by the order in which its ranks issue them, so in the host there is one
sequence, whatever comes when:

    round n     reduce-scatter of each bucket, the last used first; then all-gather of each, the first used first
    round n+1   the same

Every parameter takes part in every round once, on every rank: whoever has not been submitted when somebody waits enters
with nothing. All all-gathers are issued as soon as the last gradient of a round has entered, by the thread that brings
it: a rank that looks at an average must not need neighbours who come only when they look, too. Meanwhile they may wait
for this rank, in an operation of the user's say.

Which parameters have a gradient anywhere (decision 002) is a tensor of flags, averaged by the engine over all ranks;
only a rank that had none itself waits for it. In a bucket such a gradient is zeros.

Note: streams, on an accelerator. Each arrow is a wait. All operations in the host are on one stream of ours, S, in the
order above; the copies of shares to the host and back have their own (pieces.py).

    caller's stream   backward of layer i ─┐ a                                           ┌─ c ─► update
                                           ▼                                             │
    stream S                             pack, reduce-scatter ─┐ b    ▲ f      all-gather, copy home
                                                               ▼      │
    pieces.py                                         share to the host … and home

`b` is `a` of pieces.py and `f` its `f`. Gradients stay alive in their passages until `c`. Buckets, which live as long
as the synchronizer, are touched on S alone. Over NCCL no thread of the host waits; over any other backend it waits in
each operation until its neighbours have come.
"""

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from copy import copy
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import nn

from legato.core import Plan, Tensor
from legato.core.fusion import Buckets as Members
from legato.core.part import Stage
from legato.errors import InputError, JobError
from legato.exchange import Exchange, TensorSpec
from legato.exchange.measure import Measure
from legato.torch.sync.c10d_buckets import Buckets
from legato.torch.sync.c10d_plan import LEAST_BYTES, NUM_BUCKETS, buckets_of
from legato.torch.sync.native import NativeSynchronizer
from legato.torch.sync.pieces import PIECE_BYTES
from legato.torch.sync.process_group import ProcessGroup
from legato.torch.sync.replicas import Replicas
from legato.torch.sync.synchronizer import Slot
from legato.transports.c10d.collectives import Cargo, Collectives
from legato.transports.c10d.transport import translated
from legato.transports.native.group import NativeGroup

_REASON_S = 3.0
"""How long the job's reason for a failed operation may take: neighbours notice first that one has gone, but torch does
not say who."""

_NO_STREAM = nullcontext()


@dataclass(slots=True)
class _Passage:
    """One gradient on its way through one round."""

    round: int
    gradient: torch.Tensor | None
    """What was submitted; later the average, or None still where nobody had one."""
    place: torch.Tensor
    """Where the average will be."""
    by_default: bool
    """Entered with nothing because somebody waited."""
    unclaimed: "_Passage | None" = None
    """An earlier one with an average, which others had when this rank entered by default: its next submission's."""
    is_home: bool = False
    """The average has been taken from its place, or there is none."""
    home: torch.cuda.Event | None = None
    """Passed when it has."""


class InHostSynchronizer:
    """Averages gradients in buckets, of which each rank of a host sends a share."""

    def __init__(
        self,
        group: NativeGroup,
        host: ProcessGroup,
        replicas: Replicas,
        make_inner: Callable[[Sequence[Slot]], NativeSynchronizer],
        prefix: str,
        slots: Sequence[Slot],
        *,
        fusion_bytes: int | None = None,
    ) -> None:
        """`group` has all ranks, `host` those of this one; `make_inner` makes what averages shares among `replicas`.

        What is smaller than `fusion_bytes` is merged until it reaches that; None goes by the model.
        """
        self._group = group
        self._host = host
        self._replicas = replicas
        self._prefix = prefix
        self._slots = slots
        self._lock = threading.RLock()
        reals = [slot.as_reals(slot.weight()) for slot in slots]
        kinds = [each.new_empty(0) for each in reals]
        [self._device] = {slot.device for slot in slots}
        self._stream = torch.cuda.Stream(self._device) if self._device.type == "cuda" else None
        self._collectives = Collectives(host.handle, device=self._device, is_nccl=host.is_nccl)
        members = _members(slots, reals, host.size, fusion_bytes)
        shapes = [each.shape for each in reals]
        self._buckets = Buckets(members, shapes, kinds, host.size, grain=host.size)
        self._wholes: list[torch.Tensor | None] = [None] * len(members)
        """What travels of a bucket between its reduce-scatter and its all-gather."""
        self._inner = make_inner(_shares(members, slots, reals, host.size))
        self._presence = Exchange(
            group, prefix, [TensorSpec("presence", (len(slots),), "float32")], follows_plans=False
        )
        self._present = [False] * len(slots)
        """Of this round: for which parameters this rank has a gradient."""
        self._anywhere = torch.zeros(len(slots))
        """The same over all ranks, of the last complete round; the engine's until it has been waited for."""
        self._asks_presence = False
        """Whether the engine has it."""
        self._passages: list[_Passage | None] = [None] * len(slots)
        self._next_round = [0] * len(slots)
        self._round = -1
        self._num_entered = self._num_scattered = self._num_gathered = 0
        self._error: JobError | None = None
        """What has ended a round: there is no other."""
        self._gather_order = _in_order(members, range(len(slots)))
        self._next_order: list[int] | None = None
        """From the next round on."""
        self._plans: tuple[Plan, Plan] | None = None

    def submit(self, index: int, gradient: torch.Tensor | None) -> bool:
        if gradient is not None:
            slot = self._slots[index]
            slot.check(gradient)
            gradient = slot.written(gradient)
            if gradient.is_sparse:
                raise InputError(f"parameter {slot.name!r} has a sparse gradient; use sparse=False for it")
        with self._lock:
            self._check()
            passage = self._passages[index]
            if gradient is None and passage is not None and passage.by_default:
                passage.by_default = False
                if passage.round == self._round:
                    return False
            self._enter(index, gradient)
        return False

    def poll(self, index: int) -> bool:
        with self._lock:
            passage = self._passage(index)
            if passage.is_home:
                return passage.home is None or passage.home.query()
            return self._is_complete and (not self._asks_presence or self._presence.poll(0))

    def wait(self, index: int) -> bool:
        with self._lock:
            self._check()
            passage = self._passage(index)
            self._land(index, passage)
            return passage.gradient is not None

    def arrives_in_place(self, index: int) -> bool:
        del index
        return False

    def wait_first(self, index: int, num_items: int) -> int:
        raise AssertionError(f"gradient {index} arrives as a whole, not {num_items} items first")

    def result(self, index: int) -> torch.Tensor:
        with self._lock:
            passage, self._passages[index] = self._passage(index), None
        assert passage.gradient is not None
        return passage.gradient

    def set_measured(self) -> None:
        """A share of a bucket says nothing of one gradient: whoever asks waits for averages."""

    def is_measured(self, index: int) -> bool:
        del index
        return False

    def measure(self, index: int) -> Measure:
        raise AssertionError(f"gradient {index} is not measured")

    def measure_here(self, index: int, average: torch.Tensor) -> Measure:
        return self._slots[index].measure(average)

    def confirm(self) -> None:
        with self._lock, self._explained(self._replicas.renumbered):
            self._inner.confirm()

    def set_order(self, order: Sequence[int]) -> None:
        """As rank 0 says it: neighbours need one order, whatever each of them has observed."""
        agreed = np.array(order, np.int64)
        self._group.broadcast(f"{self._prefix}/order", agreed, root=0)
        with self._lock:
            self._next_order = _in_order(self._buckets.members, agreed.tolist())
            self._inner.set_order(self._next_order)

    @property
    def plan(self) -> Plan:
        """That of the shares, with the gradients that they are of."""
        inner = self._inner.plan
        if self._plans is None or self._plans[0] is not inner:
            members = self._buckets.members
            buckets = tuple(tuple(index for share in shares for index in members[share]) for shares in inner.buckets)
            self._plans = inner, replace(inner, buckets=buckets)
        return self._plans[1]

    def close(self) -> None:
        if self._stream is not None:
            self._stream.synchronize()
        self._inner.close()
        self._presence.close()
        self._host.remove()

    # ---- rounds ----

    @property
    def _is_complete(self) -> bool:
        """Whether all have entered the newest round."""
        return self._num_entered == len(self._slots)

    def _enter(self, index: int, gradient: torch.Tensor | None, *, by_default: bool = False) -> None:
        earlier = self._passages[index]
        if earlier is not None:
            self._land(index, earlier)
        unclaimed = earlier if gradient is None and earlier is not None and earlier.gradient is not None else None
        number = self._next_round[index]
        if number > self._round:
            self._begin_round(number)
        self._next_round[index] = number + 1
        self._present[index] = gradient is not None
        with self._behind_current_stream():  # a
            wire = None if gradient is None else self._slots[index].as_reals(gradient)
            place = self._buckets.put(index, wire)
            self._passages[index] = _Passage(number, gradient, place, by_default, unclaimed)
            self._num_entered += 1
            self._scatter_filled()
        if self._is_complete:
            self._ask_presence()
            self._gather()

    def _begin_round(self, number: int) -> None:
        self._fill()
        self._round = number
        self._num_entered = self._num_scattered = self._num_gathered = 0
        if self._next_order is not None:
            self._gather_order, self._next_order = self._next_order, None

    def _fill(self) -> None:
        """Enter the newest round with nothing for all who have not: somebody waits, or the next one begins."""
        for index, next_round in enumerate(self._next_round):
            if next_round <= self._round:
                self._enter(index, None, by_default=True)

    def _land(self, index: int, passage: _Passage) -> None:
        """Bring the average home, into the gradient that was submitted or a new one."""
        if passage.round == self._round:
            self._fill()
            self._gather()  # what an interrupt has left
        if not passage.is_home:  # this rank had no gradient
            if self._is_anywhere(index):
                passage.gradient = torch.empty_like(self._slots[index].weight())
                with self._behind_current_stream():
                    self._bring_home([index])
            elif passage.unclaimed is not None:
                passage.gradient, passage.home = passage.unclaimed.gradient, passage.unclaimed.home
            passage.is_home = True
        if passage.home is not None:
            torch.cuda.current_stream(self._device).wait_event(passage.home)  # c

    # ---- operations in the host, in their one order ----

    def _scatter_filled(self) -> None:
        """All whose turn it is, on the current stream."""
        order = self._gather_order
        while self._num_scattered < len(order) and self._buckets.is_filled(order[-1 - self._num_scattered]):
            number = order[-1 - self._num_scattered]
            whole = self._wholes[number] = self._buckets.pack(number)
            share = whole.view(self._host.size, -1)[self._host.rank]
            self._run(Stage.REDUCE_SCATTER, number, whole)
            with self._explained(self._replicas.renumbered):
                self._inner.submit(number, share)  # b
            self._num_scattered += 1

    def _gather(self) -> None:
        """All of a complete round."""
        while self._num_gathered < len(self._gather_order):
            number = self._gather_order[self._num_gathered]
            whole = self._wholes[number]
            assert whole is not None
            with self._on_stream():
                with self._explained(self._replicas.renumbered):
                    self._inner.wait(number)  # f
                    self._inner.result(number)
                self._run(Stage.ALL_GATHER, number, whole)
                self._bring_home(self._buckets.members[number])
            self._wholes[number] = None
            self._num_gathered += 1

    def _run(self, stage: Stage, number: int, whole: torch.Tensor) -> None:
        def what() -> str:
            names = [self._slots[index].name for index in self._buckets.members[number]]
            shown = f"{', '.join(map(repr, names[:3]))}{', …' * (len(names) > 3)}"
            return f"{stage.name} of {shown} among the ranks of a host"

        with self._explained(), translated(self._group.rank, what):
            self._collectives.run(stage, Cargo(whole, whole, self._buckets.reduction(number), None))

    def _bring_home(self, indices: Sequence[int]) -> None:
        """On S, those that have a gradient to be the average."""
        homes, averages = [], []
        for index in indices:
            passage = self._passages[index]
            if passage is None or passage.gradient is None or passage.is_home:
                continue
            passage.is_home = True
            if passage.place.data_ptr() != passage.gradient.data_ptr():
                homes.append(self._slots[index].as_reals(passage.gradient))
                averages.append(passage.place)
        if homes:
            torch._foreach_copy_(homes, averages, non_blocking=True)
        if self._stream is not None:
            home = self._stream.record_event()
            for index in indices:
                if (passage := self._passages[index]) is not None and passage.is_home:
                    passage.home = home

    # ---- who has a gradient ----

    def _ask_presence(self) -> None:
        self._hear_presence()
        self._anywhere.copy_(torch.tensor(self._present))
        self._presence.add(0, self._anywhere.data_ptr(), self._anywhere.nbytes, False, self._anywhere)
        self._asks_presence = True

    def _hear_presence(self) -> None:
        if self._asks_presence:
            with self._explained():
                self._presence.wait(0)
            self._asks_presence = False

    def _is_anywhere(self, index: int) -> bool:
        self._hear_presence()
        return self._anywhere[index].item() > 0

    # ---- small things ----

    def _passage(self, index: int) -> _Passage:
        passage = self._passages[index]
        assert passage is not None
        return passage

    def _on_stream(self) -> AbstractContextManager[object]:
        return _NO_STREAM if self._stream is None else torch.cuda.stream(self._stream)

    def _behind_current_stream(self) -> AbstractContextManager[object]:
        if self._stream is not None:
            self._stream.wait_stream(torch.cuda.current_stream(self._device))
        return self._on_stream()

    def _check(self) -> None:
        if self._error is not None:
            raise copy(self._error)

    @contextmanager
    def _explained(self, renumbered: Callable[[JobError], JobError] | None = None) -> Iterator[None]:
        """The job's reason for whatever fails, if it has one: torch does not name a rank, and in the group of the
        shares ranks have other numbers."""
        try:
            yield
        except JobError as error:
            session = self._group.session
            session.member.wait_until_all_left(_REASON_S if renumbered is None else 0.0)
            ended = session.error or self._presence.absence(0, self._round)
            if not isinstance(ended, JobError):
                ended = session.end(error if renumbered is None else renumbered(error))
            self._error = ended
            raise session.blame(copy(ended)) from error


def _members(slots: Sequence[Slot], reals: Sequence[torch.Tensor], num_ranks: int, fusion_bytes: int | None) -> Members:
    """Which gradients travel together. They stay together: the engine has been told of their shares."""
    tensors = [
        Tensor(name=slot.name, num_bytes=each.nbytes, priority=place, item_bytes=each.element_size())
        for place, (slot, each) in enumerate(zip(slots, reals, strict=True))
    ]
    # A share larger than a piece gains nothing on its way to the host.
    num_bytes = sum(tensor.num_bytes for tensor in tensors)
    limit_bytes = min(max(num_bytes // NUM_BUCKETS[0], LEAST_BYTES), num_ranks * PIECE_BYTES)
    return buckets_of(tensors, [each.dtype for each in reals], fusion_bytes or limit_bytes)


def _shares(members: Members, slots: Sequence[Slot], reals: Sequence[torch.Tensor], num_ranks: int) -> list[Slot]:
    """One of each bucket, as the engine knows it. Of their memory only the kind counts, so all of a dtype have one."""
    sizes = [-(-sum(reals[index].numel() for index in bucket) // num_ranks) for bucket in members]
    largest: dict[torch.dtype, int] = {}
    for bucket, size in zip(members, sizes, strict=True):
        dtype = reals[bucket[0]].dtype
        largest[dtype] = max(largest.get(dtype, 0), size)
    memory = {dtype: torch.empty(size, dtype=dtype, device=reals[0].device) for dtype, size in largest.items()}
    shares = []
    for bucket, size in zip(members, sizes, strict=True):
        more = f" and {len(bucket) - 1} more" * (len(bucket) > 1)
        like = nn.Parameter(memory[reals[bucket[0]].dtype][:size], requires_grad=False)
        shares.append(Slot(f"share of {slots[bucket[0]].name}{more}", like))
    return shares


def _in_order(members: Members, order: Sequence[int]) -> list[int]:
    """The numbers of buckets, by which of their gradients is used first. Backward fills them the other way round."""
    priority = {index: place for place, index in enumerate(order)}
    return sorted(range(len(members)), key=lambda number: min(priority[index] for index in members[number]))
