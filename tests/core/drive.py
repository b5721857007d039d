"""Drives a scheduler through steps with arbitrary orders of readiness and completion, and keeps the books."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random

from legato.core import Command, Complete, Finished, Part, Plan, Ready, Replan, Scheduler, Start, Task, Tensor


@dataclass
class Books:
    """What a driven scheduler did."""

    started: list[Part] = field(default_factory=list)
    completed: list[Task] = field(default_factory=list)
    peak_over_credit: int = 0
    """Most bytes in flight beyond the credit, when more than one part was in flight."""

    def bytes_by_bucket(self) -> dict[tuple[int, int, int], list[tuple[int, int]]]:
        ranges: dict[tuple[int, int, int], list[tuple[int, int]]] = defaultdict(list)
        for part in self.started:
            ranges[part.step, part.bucket, part.stage].append((part.offset, part.length))
        return ranges


class Driver:
    def __init__(self, tensors: Sequence[Tensor], plan: Plan, random: Random) -> None:
        self.scheduler = Scheduler(tensors, plan)
        self.books = Books()
        self._num_tensors = len(tensors)
        self._random = random
        self._credit_bytes = plan.credit_bytes
        self._in_flight: list[Part] = []
        self._now = 0.0

    def run_step(self, step: int, *, replan_to: Plan | None = None) -> None:
        """Make every task of a step ready in a random order, finishing started parts at random moments between."""
        order = list(range(self._num_tensors))
        self._random.shuffle(order)
        for place, tensor in enumerate(order):
            if replan_to is not None and place == len(order) // 2:
                self._take(self.scheduler.handle(self._tick(), Replan(step + 1, replan_to)))
            self._take(self.scheduler.handle(self._tick(), Ready(Task(step, tensor))))
            while self._in_flight and self._random.random() < 0.5:
                self.finish_one()

    def drain(self) -> None:
        while self._in_flight:
            self.finish_one()

    def finish_one(self) -> None:
        part = self._in_flight.pop(self._random.randrange(len(self._in_flight)))
        self._take(self.scheduler.handle(self._tick(), Finished(part)))

    def _tick(self) -> float:
        self._now += 1.0
        return self._now

    def _take(self, commands: list[Command]) -> None:
        for command in commands:
            if isinstance(command, Start):
                self.books.started.append(command.part)
                self._in_flight.append(command.part)
            elif isinstance(command, Complete):
                self.books.completed.append(command.task)
                assert command.ready_s <= command.started_s <= command.finished_s == self._now
        if self._credit_bytes is not None and len(self._in_flight) > 1:
            over = sum(part.length for part in self._in_flight) - self._credit_bytes
            self.books.peak_over_credit = max(self.books.peak_over_credit, over)
