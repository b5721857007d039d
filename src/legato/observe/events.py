"""Events: what the core and the engine tell, as moments."""

from collections.abc import Callable, Iterable, Iterator, Sequence

from legato.core import Command, Complete, Event, Finished, Part, Plan, Ready, Replan, Start, Tensor
from legato.observe.notes import Moment, What

EngineEvent = tuple[int, str, int, int, int, int]
"""(nanoseconds, what, tensor, step, offset, length), as `Engine.take_events` gives them."""


class CoreEvents:
    """An observer of a scheduler: of a runtime, or of a simulated worker."""

    def __init__(self, note: Callable[[Moment], None], tensors: Sequence[Tensor], plan: Plan) -> None:
        self._note = note
        self._tensors = tensors
        self._plans = [(0, plan)]

    def __call__(self, now_s: float, what: Event | Command) -> None:
        now_ns = round(now_s * 1e9)
        match what:
            case Ready(task):
                tensor = self._tensors[task.tensor]
                self._note(Moment(now_ns, What.READY, (tensor.name,), task.step, 0, tensor.num_bytes))
            case Start(part):
                self._note(self._part(now_ns, What.START, part))
            case Finished(part):
                self._note(self._part(now_ns, What.FINISH, part))
            case Complete(task):
                self._note(Moment(now_ns, What.DONE, (self._tensors[task.tensor].name,), task.step))
            case Replan(step, plan):
                # A step and the one before it may be under way together, not more.
                earlier = [entry for entry in self._plans if entry[0] < step]
                self._plans = [*earlier[-2:], (step, plan)]

    def _part(self, now_ns: int, what: What, part: Part) -> Moment:
        plan = next(plan for from_step, plan in reversed(self._plans) if from_step <= part.step)
        names = tuple(self._tensors[index].name for index in plan.buckets[part.bucket])
        stage = part.stage.name.lower().replace("_", "-")
        return Moment(now_ns, what, names, part.step, part.offset, part.length, stage)


def engine_moments(events: Iterable[EngineEvent], name_of: Callable[[int], str]) -> Iterator[Moment]:
    """The same from the native engine, which makes every part ready by itself."""
    for ns, what, tensor, step, offset, length in events:
        yield Moment(ns, What(what), (name_of(tensor),), step, offset, length)
