"""A contest: the same real training, by torch's DDP over Gloo and by legato, in turns on the same links.

The model is VGG-like: convolutions that compute and fully connected layers that weigh. The data are scikit-learn's
digits, enlarged. All systems start from the same weights and see the same batches, so their losses can be compared.
"""

import os
import statistics
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

import torch
import torch.distributed as dist
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import legato.torch as lg
from bench.recorded import DdpRecording
from bench.testbed import goodput
from bench.testbed.crew import Station, torchrun_environment
from bench.testbed.pacing import pace_all
from bench.testbed.stopwatch import Marks, Stopwatch
from legato.core import Layer

System = Literal["alone", "ddp", "fifo", "legato"]
"""`fifo` is legato without its order, first come first served: it tells apart what the order and the transport gain."""
SYSTEMS: tuple[System, ...] = ("alone", "ddp", "fifo", "legato")

_SIDE = 32
_PORT = 4300
_RECORDED_STEPS = 6
_PROBED_STEPS = 3
MAX_GBPS = 1.0
"""Of links that are matched to computation: two cores, which compute too, move no more bytes undisturbed."""


@dataclass(frozen=True, kw_only=True)
class Contest:
    """What every rank is told."""

    num_workers: int
    """Ranks that train."""
    addresses: tuple[str, ...]
    """Where the ranks are."""
    interface: str
    """The interface by which ranks reach each other."""
    key: str = field(repr=False)
    """Legato's key: it talks beyond loopback."""
    num_rounds: int
    """How often every system has its turn."""
    num_steps: int
    """Measured steps of a turn, after one that is not."""
    batch: int
    """Images of each rank and step."""
    hidden: int
    """Width of the fully connected layers, which hold nearly all weights."""
    gbps: float | None
    """Rate of the links; None: that at which communication takes as long as computation, where scheduling matters most,
    but no more than `MAX_GBPS`."""
    is_paced: bool
    """Whether ranks limit their own connections, together to that rate, because nobody shapes the links."""
    folder: Path
    """Where recordings of DDP's and legato's steps go."""

    def environment(self, rank: int) -> dict[str, str]:
        """What torchrun would set, for a rank on a host of its own."""
        return {
            **torchrun_environment(rank, self.num_workers, self.addresses[0], _PORT),
            "GLOO_SOCKET_IFNAME": self.interface,
            "LEGATO_KEY": self.key,
            # Ranks on one host would leave the links alone.
            "LEGATO_SHARED_MEMORY": str(int(not self.is_paced)),
        }

    @property
    def recordings(self) -> dict[System, list[Path]]:
        """The files of each system that is recorded."""
        ranks = [self.folder / f"ddp.rank{rank}.json" for rank in range(self.num_workers)]
        return {"ddp": ranks, "legato": [self.folder / "legato.json"]}


def _nothing_yet() -> dict[System, list[Any]]:
    return {system: [] for system in SYSTEMS}


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What one rank has seen."""

    turns_s: dict[System, list[list[float]]] = field(default_factory=_nothing_yet)
    """Seconds of each measured step, turn by turn."""
    cpu_s: dict[System, list[float]] = field(default_factory=_nothing_yet)
    """Seconds of processor time for a step, of all threads of this rank; one figure a turn."""
    losses: dict[System, list[float]] = field(default_factory=_nothing_yet)
    """The loss of each step, measured or not, on this rank's batch."""
    layers: list[list[Layer]] = field(default_factory=list)
    """The layers' times in each measured step alone."""
    received: list[float] = field(default_factory=list)
    """What raw TCP brought to this rank over the same links (goodput.py)."""


def compete(station: Station, contest: Contest) -> Outcome:
    """One rank of the contest; rank 0 tells how it goes."""
    os.environ.update(contest.environment(station.rank))
    torch.set_num_threads(1)
    lg.init()
    dist.init_process_group("gloo")
    try:
        outcome = Outcome()
        trainers = {system: Trainer(system, contest) for system in SYSTEMS}
        gbps = contest.gbps or _matching_gbps(trainers["alone"])
        station.tell(gbps)
        pace = gbps * 1e9 / 8 / max(contest.num_workers - 1, 1) if contest.is_paced else None
        if pace is not None:
            pace_all(pace)
        station.meet()  # the links have their rate
        outcome.received.extend(goodput.flow(station, contest.addresses, pace_bytes_per_s=pace))
        for number in range(1, contest.num_rounds + 1):
            _tell(f"round {number}/{contest.num_rounds}")
            for system, trainer in trainers.items():
                station.meet()
                steps_s = trainer.turn(contest.num_steps, outcome)
                _tell(f"   {system} {sum(steps_s) / len(steps_s) * 1e3:4.0f} ms, loss {outcome.losses[system][-1]:.4f}")
            _tell("\n")
        station.meet()
        trainers["legato"].record(contest.folder / "legato.json")
        station.meet()
        _record_ddp(contest)
        station.meet()
        return outcome
    finally:
        lg.shutdown()
        dist.destroy_process_group()


def _matching_gbps(alone: "Trainer") -> float:
    """The slowest rank decides, the same one for all."""
    seconds = torch.tensor(statistics.median(alone.turn(_PROBED_STEPS, Outcome())))
    dist.all_reduce(seconds, dist.ReduceOp.MAX)
    share = 2 * (dist.get_world_size() - 1) / dist.get_world_size()
    return min(alone.num_bytes * share * 8e-9 / seconds.item(), MAX_GBPS)


class Trainer:
    """One system's copy of the model, on its way through the same batches as the others'."""

    def __init__(self, system: System, contest: Contest) -> None:
        self._system = system
        self._batches = batches(contest.batch, lg.rank())
        torch.manual_seed(0)
        self._model: nn.Module = network(contest.hidden)
        self._optimizer: torch.optim.Optimizer = torch.optim.SGD(self._model.parameters(), lr=0.01, momentum=0.9)
        self._stopwatch = Stopwatch(self._model) if system == "alone" else None
        if system == "ddp":
            # Legato leaves buffers alone, and training does not read them: DDP is spared that work as well.
            self._model = DistributedDataParallel(self._model, forward_sync_buffers=False)
        elif system in ("fifo", "legato"):
            lg.schedule(self._model, self._optimizer, policy="fifo" if system == "fifo" else "auto", tuner="off")

    @property
    def num_bytes(self) -> int:
        """Of the gradients of a step."""
        return sum(parameter.nbytes for parameter in self._model.parameters())

    def turn(self, num_steps: int, outcome: Outcome) -> list[float]:
        """Seconds from the end of one step() to the end of the next; the first step fills the pipe."""
        ends_s = []
        begin_cpu_s = time.process_time()
        for number in range(num_steps + 1):
            marks = self._step(outcome.losses[self._system])
            ends_s.append(marks.update_end_s)
            if number and self._stopwatch is not None:
                outcome.layers.append(self._stopwatch.layers(marks))
        if self._system in ("fifo", "legato"):
            lg.flush(self._model)  # the next turn has the links for itself
        steps_s = [end - begin for begin, end in pairwise(ends_s)]
        outcome.turns_s[self._system].append(steps_s)
        outcome.cpu_s[self._system].append((time.process_time() - begin_cpu_s) / (num_steps + 1))
        return steps_s

    def record(self, path: Path) -> None:
        """More steps, of which the timeline is kept."""
        lg.start_timeline(str(path))
        for _ in range(_RECORDED_STEPS):
            self._step([])
        lg.flush(self._model)
        lg.stop_timeline()

    def _step(self, losses: list[float]) -> Marks:
        images, labels = next(self._batches)
        self._optimizer.zero_grad()
        loss = _loss(self._model, images, labels)
        losses.append(loss.item())
        forward_end_s = time.perf_counter()
        loss.backward()
        backward_end_s = time.perf_counter()
        self._optimizer.step()
        return Marks(forward_end_s, backward_end_s, time.perf_counter())


def _record_ddp(contest: Contest) -> None:
    """With a copy of its own: what takes notes of buckets must be there from the first step on."""
    model = DistributedDataParallel(network(contest.hidden), forward_sync_buffers=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    recording = DdpRecording(model, contest.folder / "ddp.json")
    drawn = batches(contest.batch, lg.rank())
    for _ in range(_RECORDED_STEPS):
        images, labels = next(drawn)
        optimizer.zero_grad()
        recording.step(partial(_loss, model, images, labels), optimizer)
    recording.stop()


def _loss(model: nn.Module, images: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    return nn.functional.cross_entropy(model(images), labels)


def network(hidden: int) -> nn.Sequential:
    """Three pairs of convolutions and three fully connected layers: VGG with batch normalisation, for small images."""

    def layers() -> Iterator[nn.Module]:
        channels = 1
        for width in (32, 64, 128):
            for _ in range(2):
                yield nn.Conv2d(channels, width, 3, padding=1, bias=False)
                yield from (nn.BatchNorm2d(width), nn.ReLU())
                channels = width
            yield nn.MaxPool2d(2)
        yield nn.Flatten()
        yield from (nn.Linear(channels * (_SIDE // 8) ** 2, hidden), nn.ReLU())
        yield from (nn.Linear(hidden, hidden), nn.ReLU(), nn.Linear(hidden, 10))

    return nn.Sequential(*layers())


def batches(size: int, rank: int) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Random batches of digits, the same ones for the same rank each time."""
    images, labels = map(torch.from_numpy, load_digits(return_X_y=True))
    images = nn.functional.interpolate(images.float().view(-1, 1, 8, 8) / 16, size=(_SIDE, _SIDE))
    generator = torch.Generator().manual_seed(rank)
    while True:
        chosen = torch.randint(len(images), (size,), generator=generator)
        yield images[chosen], labels[chosen]


def _tell(text: str) -> None:
    if lg.rank() == 0:
        print(text, end="", flush=True)
