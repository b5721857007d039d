"""The timeline of a simulated run: the same picture, from the same core on a virtual clock."""

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from legato.core import Command, Event, Plan, Workload
from legato.observe import chrome
from legato.observe.events import CoreEvents
from legato.observe.notes import Moment, Notes, Stretch, TimelineConfig, What
from legato.observe.spans import spans


class SimulatedWorker:
    """Watches one simulated worker."""

    def __init__(self, config: TimelineConfig, workload: Workload, plan: Plan) -> None:
        self.notes = Notes(config)
        self._has_tensor = {layer.name for layer in workload.layers if layer.num_bytes}
        self._events = CoreEvents(self.notes.moment, workload.tensors, plan)

    def event(self, now_s: float, what: Event | Command) -> None:
        self._events(now_s, what)

    def worked(
        self, work: Literal["forward", "backward", "wait"], layer: str, step: int, begin_s: float, end_s: float
    ) -> None:
        begin_ns, end_ns = round(begin_s * 1e9), round(end_s * 1e9)
        self.notes.stretch(Stretch(work, layer, begin_ns, end_ns, step))
        if work == "forward" and step and layer in self._has_tensor:
            # The update itself takes no simulated time.
            self.notes.moment(Moment(begin_ns, What.APPLIED, (layer,), step - 1))


def write(path: Path, workers: Sequence[tuple[str, SimulatedWorker]]) -> None:
    """One file with all workers, each with its title."""
    ranks = [chrome.events(rank, title, spans(worker.notes)) for rank, (title, worker) in enumerate(workers)]
    path.write_text(chrome.document(ranks))
