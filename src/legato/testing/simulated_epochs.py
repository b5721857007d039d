"""A simulated elastic job: ranks, tensors and faults without processes, so that thousands of schedules take a second.

What decides in a real job decides here: `legato.elastic.progress`. A seeded random order of events stands for the
network and the machines: gradients are submitted and averages arrive in any order that the protocol allows, and at any
point between two events ranks die, or an epoch ends though everybody lives, also while survivors give each other what
they lack. The oracle knows for every average whose gradients are in it.
"""

from dataclasses import dataclass, field
from random import Random

from legato.elastic.progress import Progress, settle

Average = tuple[int, frozenset[int]]
"""The step, and the ranks whose gradients are in it."""


@dataclass(slots=True)
class _Rank:
    """One rank; a tensor has two homes, as in training: that of the step it has begun last, in which a sum is made from
    then on, and that of the step before."""

    identity: int
    begun: list[int]
    completed: list[int]
    homes: list[Average | None]
    earlier: list[Average | None]
    applied: list[list[Average]]
    """By tensor, what the optimizer has seen."""


@dataclass(slots=True)
class SimulatedJob:
    """`run` takes a job of `num_ranks` through `num_steps`, with about `fault_rate` faults an event."""

    random: Random
    num_ranks: int
    num_tensors: int
    num_steps: int
    fault_rate: float
    num_faults: int = 0
    ranks: list[_Rank] = field(default_factory=list)
    _sums: dict[tuple[int, int], frozenset[int]] = field(default_factory=dict)
    """Of this epoch, by tensor and step: what has been summed and may arrive."""

    def run(self) -> None:
        count = self.num_tensors
        self.ranks = [
            _Rank(each, [0] * count, [0] * count, [None] * count, [None] * count, [[] for _ in range(count)])
            for each in range(self.num_ranks)
        ]
        while True:
            events = self._events()
            if not events:
                break
            if self.random.random() < self.fault_rate:
                self._fault()
                continue
            kind, rank, tensor = self.random.choice(events)
            if kind == "submit":
                self._submit(rank, tensor)
            else:
                self._arrive(rank, tensor)
        self._check()

    def _events(self) -> list[tuple[str, _Rank, int]]:
        """What may happen next, on any rank."""
        events: list[tuple[str, _Rank, int]] = []
        for rank in self.ranks:
            tensor = self._next_gradient(rank)
            if tensor is not None:
                events.append(("submit", rank, tensor))
            for tensor in range(self.num_tensors):
                step = rank.completed[tensor]
                if rank.begun[tensor] > step and (tensor, step) in self._sums:
                    events.append(("arrive", rank, tensor))
        return events

    def _next_gradient(self, rank: _Rank) -> int | None:
        """The last tensor's gradient comes first. A step's backward pass follows its forward pass, which needs every
        average of the step before."""
        step = min(rank.begun)
        if step == self.num_steps:
            return None
        if max(rank.begun) == step and min(rank.completed) < step:
            return None
        return max(tensor for tensor in range(self.num_tensors) if rank.begun[tensor] == step)

    def _submit(self, rank: _Rank, tensor: int) -> None:
        rank.begun[tensor] += 1
        rank.homes[tensor], rank.earlier[tensor] = None, rank.homes[tensor]
        self._sum(tensor)

    def _sum(self, tensor: int) -> None:
        """Once everybody in the epoch has contributed a step that not everybody has."""
        step = min(rank.begun[tensor] for rank in self.ranks) - 1
        if step >= 0 and any(rank.completed[tensor] <= step for rank in self.ranks):
            self._sums.setdefault((tensor, step), frozenset(rank.identity for rank in self.ranks))

    def _arrive(self, rank: _Rank, tensor: int) -> None:
        step = rank.completed[tensor]
        rank.homes[tensor] = (step, self._sums[tensor, step])
        self._complete(rank, tensor)

    def _complete(self, rank: _Rank, tensor: int) -> None:
        average = rank.homes[tensor]
        assert average is not None
        assert average[0] == rank.completed[tensor], "an average of another step"
        rank.completed[tensor] += 1
        rank.applied[tensor].append(average)

    def _fault(self) -> None:
        """The epoch ends: ranks die, or none does, since a link breaks or a server dies, which holds nothing. Survivors
        bring each other to the same step."""
        self.num_faults += 1
        victims = self.random.choice([0, 1, 1, 2])
        for _ in range(min(victims, len(self.ranks) - 1)):
            self.ranks.remove(self.random.choice(self.ranks))
        self._sums.clear()
        settlement = settle(
            [
                Progress(tuple(rank.begun), tuple(rank.completed), (False,) * self.num_tensors, None)
                for rank in self.ranks
            ]
        )
        for gift in settlement.gifts:
            giver = self.ranks[gift.giver]
            behind = [rank for rank in self.ranks if rank.completed[gift.place] < settlement.completed[gift.place]]
            self.random.shuffle(behind)
            for rank in behind:
                if self.random.random() < self.fault_rate:
                    self._fault()  # in the middle of it: those who have their gift keep it
                    return
                has_begun_another = giver.begun[gift.place] > settlement.completed[gift.place]
                rank.homes[gift.place] = (giver.earlier if has_begun_another else giver.homes)[gift.place]
                self._complete(rank, gift.place)
        for tensor in range(self.num_tensors):
            self._sum(tensor)

    def _check(self) -> None:
        """Everybody who is left has applied every step of every tensor once, the same on all, with everybody's
        gradients in it who is left."""
        left = frozenset(rank.identity for rank in self.ranks)
        for rank in self.ranks:
            for tensor, applied in enumerate(rank.applied):
                assert [step for step, _ in applied] == list(range(self.num_steps)), "a step was lost, or applied twice"
                assert applied == self.ranks[0].applied[tensor], "ranks differ"
                assert all(left <= contributors for _, contributors in applied), "a gradient was lost"


def inject(seed: int, num_faults: int) -> int:
    """Jobs of all shapes, one after another, until so many faults have been injected; how many there were."""
    random = Random(seed)
    injected = 0
    while injected < num_faults:
        job = SimulatedJob(
            random,
            num_ranks=random.randint(2, 6),
            num_tensors=random.randint(1, 4),
            num_steps=random.randint(1, 6),
            fault_rate=random.choice([0.02, 0.1, 0.3]),
        )
        state = random.getstate()
        try:
            job.run()
        except AssertionError as error:
            raise AssertionError(f"{error}: {job!r:.200}, random state {hash(state)}, seed {seed}") from error
        injected += job.num_faults
    return injected
