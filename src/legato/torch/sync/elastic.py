"""Gradients of an elastic job: a fault ends the epoch in which they travel, and they go on in the next one.

A gradient stays in its memory until its average is there, and the average in a home of its own until everybody has it.
So whatever was under way when an epoch ended can be summed again, or given by a rank that has it (progress.py).

Note: two homes. Whoever sums a part makes the sum where it will arrive, from its own contribution on
(native/engine/server/slot.hpp). So a step's home is lost when a rank begins it, while others may still lack the average
of the step before: that one is in the other home. When a rank begins the step after, everybody has it.

Note: learners. A rank that joins gets the others' state in a `Lesson` of several steps, while they train. It takes part
in every sum with nothing to add, and knows of their steps by that alone: one sum of each gradient, and then that of
`begin_step`. It reads averages only of what it has the state of: the others' links carry no more than it can use. Where
a script does anything else, the epoch ends (`_check_lesson`), and the learner starts over. So it does after any fault:
until the lesson is over it has nothing that anybody needs.
"""

import math
from collections import deque
from collections.abc import Callable, Container, Mapping, Sequence
from typing import Generic, Protocol, TypeVar

import numpy as np
import torch

from legato.core import Plan
from legato.elastic.membership import Change, Membership
from legato.elastic.progress import Progress, settle
from legato.errors import InputError, JobError, PeerLostError
from legato.exchange.measure import Measure
from legato.torch.sync.broadcast import Stateful, broadcast_value
from legato.torch.sync.native import NativeSynchronizer, raw
from legato.torch.sync.synchronizer import Slot
from legato.transports.native.group import NativeGroup

Make = Callable[
    [NativeGroup, Sequence[Slot], list[torch.Tensor | None], Sequence[int], Sequence[int] | None], NativeSynchronizer
]
"""What averages gradients in one epoch: over a group, slots, their homes, from these steps on, in this order of use."""
_ROUNDING = 1e-3
"""What the average of whole numbers may be above them."""
_MOST_BEHIND = 4
"""Steps whose averages a learner keeps while their batches are on the way: with more the others would have to wait."""

Rates = TypeVar("Rates", contravariant=True)


class Lesson(Protocol[Rates]):
    """Rank 0's state on its way to a learner."""

    @property
    def num_steps(self) -> int:
        """That it takes: two or more, since ranks tell each other of its end in the last but one."""

    def give(self, number: int, rates: Rates) -> bool:
        """On rank 0, in the n-th step; False where it cannot."""

    def expect(self, number: int) -> Container[torch.Tensor]:
        """On the learner, before anything of the n-th step arrives: the parameters whose averages it will take."""

    def has_come(self) -> bool:
        """Whether `take` would not wait."""

    def take(self, averages: Mapping[torch.Tensor, torch.Tensor | None]) -> None:
        """On the learner: what has been given in a step, and the step's update, by these averages."""


class Meeting(Protocol[Rates]):
    """What ranks do together when an epoch with newcomers begins."""

    def meet(self, group: NativeGroup, *, teaches: bool) -> Lesson[Rates] | None:
        """Compare models, and give newcomers what the others have: at once, or in a lesson that begins now."""

    def can_teach(self) -> bool:
        """Whether there can be a lesson."""

    def forget(self) -> None:
        """The lesson has ended early."""


class ElasticSynchronizer(Generic[Rates]):
    """A synchronizer that outlives groups. Indices are those of its slots; one more is its own: whether newcomers wait,
    and the epoch that a rank is in.

    These travel with every step, so that all ranks know of a newcomer, and tell of a change, in the same one.
    """

    def __init__(
        self,
        membership: Membership,
        prefix: str,
        slots: Sequence[Slot],
        make: Make,
        *,
        meeting: Meeting[Rates],
        follow: Callable[[Change], None],
        state: Sequence[Stateful],
    ) -> None:
        """`follow` is told between two steps that the workers have changed; `state` is what they share at a meeting
        besides the model and its optimizer."""
        for slot in slots:
            if slot.is_sparse or slot.parameter.device.type != "cpu":
                what = "is sparse" if slot.is_sparse else f"is on {slot.parameter.device}"
                raise InputError(f"LEGATO_ELASTIC: parameter {slot.name!r} {what}; accepted are dense ones on the host")
        self._membership = membership
        self._prefix = prefix
        self._make = make
        self._meeting = meeting
        self._follow = follow
        self._state = state
        self._newcomers = len(slots)
        flag = torch.nn.Parameter(torch.zeros(2), requires_grad=False)
        self._slots = [*slots, Slot("legato/newcomers", flag)]
        count = len(self._slots)
        self._begun = [0] * count
        self._completed = [0] * count
        self._empty = [False] * count
        self._homes: list[torch.Tensor | None] = [None] * count
        """Where the average of the step arrives, or has arrived, that was begun last."""
        self._earlier: list[torch.Tensor | None] = [None] * count
        """Of the step before it."""
        self._gradients: dict[int, torch.Tensor | None] = {}
        """What was submitted and has not been waited for."""
        self._settled: dict[int, torch.Tensor] = {}
        """Of these, averages that an earlier epoch, or another rank, has given."""
        self._order: Sequence[int] | None = None
        self._is_ordered = False
        """Whether the present epoch knows the order."""
        self._changes: list[tuple[int, Change]] = []
        """Of which nobody has been told yet, by epoch."""
        self._lesson: Lesson[Rates] | None = None
        self._first = [0] * count
        """Where the present epoch began with nothing under way: steps that had been begun."""
        self._last = [0] * count
        """Steps that had been begun at the end of the last one."""
        self._can_be_followed: bool | None = None
        """Whether a learner could follow what this script does; no longer so after the first step that it could not."""
        self._inner: NativeSynchronizer
        try:
            self._join()
        except JobError as error:
            self._start_over(error)

    # ---- as any synchronizer ----

    def submit(self, index: int, gradient: torch.Tensor | None) -> bool:
        self._settled.pop(index, None)
        self._gradients[index] = gradient
        self._begun[index] += 1
        self._homes[index], self._earlier[index] = self._earlier[index], self._homes[index]
        try:
            self._check_lesson(index)
            self._inner.submit(index, gradient)
        except JobError as error:
            self._recover(error)
        return False

    def poll(self, index: int) -> bool:
        return index in self._settled or self._inner.poll(index)

    def wait(self, index: int) -> bool:
        while index not in self._settled:
            try:
                has_average = self._inner.wait(index)
            except JobError as error:
                self._recover(error)
                continue
            self._complete(index, has_average)
            self._settled[index] = self._inner.result(index)
        del self._gradients[index]
        return not self._empty[index]

    def result(self, index: int) -> torch.Tensor:
        return self._settled.pop(index)

    def arrives_in_place(self, index: int) -> bool:
        del index
        return False

    def wait_first(self, index: int, num_items: int) -> int:
        raise NotImplementedError("averages of an elastic job arrive apart")

    def set_measured(self) -> None:
        """Nothing is: a measure is known of a sum that may have to be made again."""

    def is_measured(self, index: int) -> bool:
        del index
        return False

    def measure(self, index: int) -> Measure:
        raise NotImplementedError("averages of an elastic job are not measured")

    def measure_here(self, index: int, average: torch.Tensor) -> Measure:
        return self._inner.measure_here(index, average)

    def confirm(self) -> None:
        """Averages are on the host: who has waited has them."""

    def set_order(self, order: Sequence[int]) -> None:
        self._order = [*order, self._newcomers]
        while not self._is_ordered:
            try:
                self._inner.set_order(self._order)
                self._is_ordered = True
            except JobError as error:
                self._recover(error)

    @property
    def plan(self) -> Plan:
        return self._inner.plan

    @property
    def num_steps(self) -> int:
        """Those that the job has taken, before this rank was in it, too."""
        return self._begun[self._newcomers]

    def is_shared(self, given: Stateful) -> bool:
        """Whether newcomers take over the state of this object."""
        return any(each is given for each in self._state)

    def close(self) -> None:
        """When every rank has come here: who leaves earlier might take an average along that others still need."""
        self.begin_step()
        self.wait(self._newcomers)
        self._inner.close()

    # ---- newcomers ----

    def begin_step(self) -> bool:
        """Once a step, before its gradients are waited for: whether an epoch ends after it, as any rank has said in the
        last one, for newcomers who wait or a learner whose lesson is over."""
        newcomers = 0.0
        if self._newcomers in self._gradients:
            self.wait(self._newcomers)
            newcomers, epoch = self.result(self._newcomers).tolist()
            self._tell(math.ceil(epoch - _ROUNDING))
        membership = self._membership
        admits = membership.has_newcomers
        if self._lesson is not None:  # newcomers join one after the other, and this one after the next step
            admits = self._num_rounds(self._newcomers) == self._lesson.num_steps - 2
        self.submit(self._newcomers, torch.tensor([float(admits), float(membership.epoch)]))
        return newcomers > 0

    def end_step(self, rates: Rates | None) -> None:
        """Once a step, when its gradients are under way, and will be applied by these rates; None where somebody has
        looked at them already, or they are applied together."""
        rounds = [begun - last for begun, last in zip(self._begun, self._last, strict=True)]
        self._last = list(self._begun)
        is_plain = rates is not None and rounds.count(1) == len(rounds)
        if is_plain and self._can_be_followed is None:
            self._can_be_followed = True
        elif self._can_be_followed and not is_plain:
            self._can_be_followed = False
        if self._lesson is None or self._membership.rank != 0:
            return
        try:
            number = self._num_rounds(self._newcomers) - 1
            if rates is None or not is_plain or not self._lesson.give(number, rates):
                raise self._membership.session.end(PeerLostError("a learner cannot follow what this script does"))
        except JobError as error:
            self._recover(error)

    def admit(self) -> None:
        """Form an epoch with those who wait. Every rank calls it after the same step; nothing else is under way."""
        self.wait(self._newcomers)
        self.result(self._newcomers)
        self._pass_boundary()

    def learn(self) -> None:
        """As a learner: follow the others until this rank has what they have and is one of them."""
        while self._membership.is_learner:
            try:
                self._follow_lesson()
                self._pass_boundary()
            except JobError as error:
                self._start_over(error)

    def _follow_lesson(self) -> None:
        lesson, inner = self._lesson, self._inner
        assert lesson is not None
        behind: deque[dict[torch.Tensor, torch.Tensor | None]] = deque()
        for number in range(lesson.num_steps):
            known = lesson.expect(number)
            for index, slot in enumerate(self._slots):
                inner.attend(index, reads=slot.parameter in known)
            averages: dict[torch.Tensor, torch.Tensor | None] = {}
            for index, slot in enumerate(self._slots):
                has_average = inner.wait(index)
                average = inner.result(index)
                if slot.parameter in known:
                    averages[slot.parameter] = slot.whole(average) if has_average else None
            behind.append(averages)
            while behind and (len(behind) > _MOST_BEHIND or lesson.has_come()):
                lesson.take(behind.popleft())
        for averages in behind:
            lesson.take(averages)

    def _start_over(self, error: JobError) -> None:
        """As a learner, whose epoch has ended."""
        while True:
            if not self._membership.is_learner:
                raise error
            self._meeting.forget()
            self._membership.rejoin(error)
            try:
                self._join()
                return
            except JobError as again:
                error = again

    def _num_rounds(self, index: int) -> int:
        """Of a tensor, since the epoch began."""
        return self._begun[index] - self._first[index]

    def _check_lesson(self, index: int) -> None:
        """A learner gives nothing to every tensor once a step, as many steps as its lesson has."""
        if self._lesson is None:
            return
        most = min(self._num_rounds(self._newcomers) + (index != self._newcomers), self._lesson.num_steps)
        if self._num_rounds(index) > most:
            raise self._membership.session.end(PeerLostError("a learner cannot follow what this script does"))

    def _pass_boundary(self) -> None:
        while True:
            try:
                self._membership.group.barrier()  # nobody needs anything of this epoch any more
            except JobError as error:
                self._membership.check(error)
            if not self._next_epoch(at_boundary=True):
                continue  # somebody was not as far
            # Before newcomers take the state: they do not hear of the change, and what a script does about it, with its
            # learning rate, is in what they take.
            self._tell(self._membership.epoch)
            try:
                self._join()
            except JobError as error:
                self._membership.check(error)
                continue
            return

    def _tell(self, epoch: int) -> None:
        """Of changes up to an epoch: all ranks are in it, and tell so in the same step."""
        due = [change for at, change in self._changes if at <= epoch]
        self._changes = [(at, change) for at, change in self._changes if at > epoch]
        for change in due:
            self._follow(change)

    # ---- from epoch to epoch ----

    def _join(self) -> None:
        """Begin where rank 0 is. On every rank, in an epoch that has just begun and with nothing under way."""
        group = self._membership.group
        self._lesson = self._meeting.meet(group, teaches=self._membership.has_learners)
        state = broadcast_value(group, f"{self._prefix}/progress", (self._completed, self._order))
        completed, self._order = list(state[0]), state[1]
        self._begun, self._completed = list(completed), completed
        self._first, self._last = list(completed), list(completed)
        self._connect(group)

    def _recover(self, error: JobError) -> None:
        """Finish what was under way among those who are left."""
        self._membership.check(error)
        while self._next_epoch(at_boundary=False) is None:
            pass

    def _next_epoch(self, *, at_boundary: bool) -> bool | None:
        """Whether it began with nothing under way anywhere; None where it has ended before everybody was as far."""
        membership = self._membership
        membership.end_epoch()
        for index in self._gradients.keys() - self._settled.keys():
            has_average = self._inner.outcome(index, self._begun[index] - 1)
            if has_average is not None:
                self._complete(index, has_average)
        self._lesson = None
        was_learner, num_servers = membership.is_learner, membership.num_servers
        teaches = at_boundary and self._can_be_followed is True and self._meeting.can_teach()
        change, is_boundary = membership.regroup(at_boundary=at_boundary, teaches=teaches)
        is_same = not change.joined and not change.lost and membership.num_servers == num_servers
        begins_lesson = membership.has_learners and is_same
        if not was_learner and not begins_lesson:  # who joins does not hear of it
            self._changes.append((membership.epoch, change))
        try:
            if is_boundary:
                return True
            self._finish(membership.group)
            self._connect(membership.group)
            for index in sorted(self._gradients.keys() - self._settled.keys()):
                self._inner.submit(index, self._gradients[index])
        except JobError as error:
            membership.check(error)
            return None
        return False

    def _finish(self, group: NativeGroup) -> None:
        """Bring all ranks to the same step of each gradient."""
        mine = Progress(
            tuple(self._begun),
            tuple(self._completed),
            tuple(self._empty),
            None if self._order is None else tuple(self._order),
        )
        line = np.frombuffer(mine.to_json().encode() + b"\n", np.uint8).copy()
        lines = group.allgather(f"{self._prefix}/progress", line).tobytes().decode().splitlines()
        settlement = settle([Progress.from_json(each) for each in lines])
        for gift in settlement.gifts:
            has_begun_another = self._begun[gift.place] > settlement.completed[gift.place]
            home = (self._earlier if has_begun_another else self._homes)[gift.place]
            assert home is not None
            group.broadcast(f"{self._prefix}/gift/{gift.place}", raw(home), root=gift.giver)
            self._completed[gift.place] = settlement.completed[gift.place]
            self._empty[gift.place] = settlement.empty[gift.place]
        self._order = settlement.order
        for index in self._gradients.keys() - self._settled.keys():
            if self._completed[index] == self._begun[index]:
                if not self._empty[index]:
                    self._inner.take_home(index)
                self._settled[index] = self._inner.result(index)

    def _connect(self, group: NativeGroup) -> None:
        self._inner = self._make(group, self._slots, self._homes, self._completed, self._order)
        self._is_ordered = self._order is not None

    def _complete(self, index: int, has_average: bool) -> None:
        self._completed[index] = self._begun[index]
        self._empty[index] = not has_average
