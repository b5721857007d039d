"""Large tensors updated slice by slice against updated as a whole, in turns: `python -m bench.updates [--out FILE]`.

VGG16, whose first dense layer is three quarters of the bytes, on two hosts. Layers sleep for as long as they would
compute, but gradients and updates are real and hold the training thread up, as they do where a processor trains.
Computing, with updates, takes as long as communication. Each round has a turn of steps without communication, from
whose times T* comes, one with whole updates and one with slices. T* lets slices be infinitely small.
"""

import argparse
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path

import torch
from torch import nn

import legato.torch as lg
from bench.report import Figure, publish
from bench.sleeper import Device, SleepingLayer, take_step
from bench.testbed import crew, goodput
from bench.testbed.stopwatch import Marks, Stopwatch
from bench.testbed.testbed import Testbed
from legato.core import Layer, Workload, bound
from legato.sim.zoo import workload
from legato.torch.scheduling import slices

NUM_HOSTS = 2
MODEL = "vgg16"
_PORT = 4600
_NEVER = 1 << 62
"""No tensor is so large that it would be updated in slices."""
_NUM_SLICES = 256
"""Of a layer, for T*."""

OPTIMIZERS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "SGD with momentum": lambda parameters: torch.optim.SGD(parameters, lr=1e-3, momentum=0.9, weight_decay=1e-4),
    "AdamW": lambda parameters: torch.optim.AdamW(parameters, lr=1e-3),
}
SLICE_BYTES = {"alone": _NEVER, "whole": _NEVER, "slices": slices.SLICE_BYTES}
"""By turn."""


@dataclass(frozen=True, kw_only=True)
class Contest:
    """What every rank is told."""

    address: str
    optimizer: str
    communication_s: float
    bytes_by: float
    num_rounds: int
    num_steps: int


@dataclass(kw_only=True)
class Outcome:
    """What one rank has seen."""

    rounds: list[dict[str, float]] = field(default_factory=list)
    """Seconds of a step in each turn, the median of the turn's."""
    layers: list[list[Layer]] = field(default_factory=list)
    """Of each measured step alone; forward times have the update in them."""
    updates_s: list[float] = field(default_factory=list)
    """Of the same steps."""


class Processor(Device):
    """Computes on the training thread: whatever else that does holds it up."""

    def spend(self, seconds: float) -> None:
        time.sleep(seconds)


def shrunk(by: float) -> Workload:
    """VGG16 with this share of its bytes."""
    model = workload(MODEL)
    return replace(
        model, layers=tuple(replace(layer, num_bytes=4 * int(layer.num_bytes * by / 4)) for layer in model.layers)
    )


def train(station: crew.Station, contest: Contest) -> Outcome:
    os.environ.update(
        crew.torchrun_environment(station.rank, NUM_HOSTS, contest.address, _PORT),
        LEGATO_KEY=crew.KEY,
        LEGATO_LOG_LEVEL="WARNING",
    )
    torch.set_num_threads(1)
    lg.init()
    task, processor = shrunk(contest.bytes_by), Processor()
    model = nn.Sequential(*(SleepingLayer(layer, 1.0, processor) for layer in task.layers))
    optimizer = OPTIMIZERS[contest.optimizer](model.parameters())
    by = max(contest.communication_s - _update_s(model, optimizer), 0.2 * contest.communication_s) / task.compute_s
    for layer, planned in zip(model.children(), task.layers, strict=True):
        assert isinstance(layer, SleepingLayer)
        layer.forward_s, layer.backward_s = by * planned.forward_s, by * planned.backward_s
    stopwatch = Stopwatch(model)
    lg.schedule(model, optimizer, transport="native", tuner="off")
    take_step(model, optimizer)
    outcome = Outcome()
    for _ in range(contest.num_rounds):
        steps_s = {}
        for turn, slice_bytes in SLICE_BYTES.items():
            slices.SLICE_BYTES = slice_bytes
            station.meet()
            with lg.no_sync(model) if turn == "alone" else nullcontext():
                steps_s[turn] = _turn(
                    model, optimizer, contest.num_steps, stopwatch, outcome if turn == "alone" else None
                )
            lg.flush(model)
        outcome.rounds.append(steps_s)
        station.tell(steps_s)
    lg.shutdown()
    return outcome


def _update_s(model: nn.Module, optimizer: torch.optim.Optimizer) -> float:
    """Of the whole model, at its second step: the first makes the state."""
    seconds = 0.0
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    for _ in range(2):
        begin_s = time.perf_counter()
        optimizer.step()
        seconds = time.perf_counter() - begin_s
    return seconds


def _turn(
    model: nn.Module, optimizer: torch.optim.Optimizer, num_steps: int, stopwatch: Stopwatch, alone: Outcome | None
) -> float:
    """The median of the seconds from the end of one step() to that of the next; the first step fills the pipe."""
    ends_s = []
    for number in range(num_steps + 1):
        optimizer.zero_grad()
        loss = model(torch.zeros(1, requires_grad=True)).sum()
        forward_end_s = time.perf_counter()
        loss.backward()
        backward_end_s = time.perf_counter()
        optimizer.step()
        ends_s.append(time.perf_counter())
        if number and alone is not None:
            alone.layers.append(stopwatch.layers(Marks(forward_end_s, backward_end_s, ends_s[-1])))
            alone.updates_s.append(ends_s[-1] - backward_end_s)
    return statistics.median(end - begin for begin, end in pairwise(ends_s))


def bound_s(outcomes: Sequence[Outcome], seconds_per_byte: float) -> float:
    """T*, where a layer may be updated while the rest of it arrives, and is used when it has been updated."""
    steps = [layers for outcome in outcomes for layers in outcome.layers]
    update_s = statistics.median(seconds for outcome in outcomes for seconds in outcome.updates_s)
    num_bytes = sum(layer.num_bytes for layer in steps[0])
    forward_s: list[float] = []
    backward_s: list[float] = []
    communication_s: list[float] = []
    for times in zip(*steps, strict=True):
        own_update_s = update_s * times[0].num_bytes / num_bytes
        with_update_s = statistics.median(each.forward_s for each in times)
        forward_s += [own_update_s / _NUM_SLICES] * _NUM_SLICES
        forward_s[-1] += max(with_update_s - own_update_s, 0.0)
        backward_s += [0.0] * (_NUM_SLICES - 1) + [statistics.median(each.backward_s for each in times)]
        communication_s += [times[0].num_bytes * seconds_per_byte / _NUM_SLICES] * _NUM_SLICES
    return bound(forward_s, backward_s, communication_s)


def measure(optimizer: str, arguments: argparse.Namespace) -> Iterator[Figure]:
    task = shrunk(arguments.bytes_by)
    with Testbed(hosts=NUM_HOSTS, gbps=arguments.gbps) as testbed:
        # Two ranks send and receive as many bytes as there are: half of them to be summed, half as sums.
        seconds_per_byte = 1 / goodput.measure(testbed).bytes_per_s
        contest = Contest(
            address=testbed.address(0),
            optimizer=optimizer,
            communication_s=task.num_bytes * seconds_per_byte,
            bytes_by=arguments.bytes_by,
            num_rounds=arguments.rounds,
            num_steps=arguments.steps,
        )
        outcomes = crew.follow(testbed, range(NUM_HOSTS), _tell, train, contest)
    shortest_s = bound_s(outcomes, seconds_per_byte)
    rounds = [steps_s for outcome in outcomes for steps_s in outcome.rounds]
    details: dict[str, float | str] = {
        "T* ms": shortest_s * 1e3,
        "communication ms": contest.communication_s * 1e3,
        "update ms": statistics.median(seconds for outcome in outcomes for seconds in outcome.updates_s) * 1e3,
        **{f"{turn} ms": statistics.median(steps_s[turn] for steps_s in rounds) * 1e3 for turn in SLICE_BYTES},
    }
    case = f"VGG16, {task.num_bytes / 1e6:.0f} MB, {NUM_HOSTS} hosts × {arguments.gbps:g} Gbit/s, {optimizer}"
    for turn in ("whole", "slices"):
        yield Figure(
            section="updates",
            case=f"{case}: {turn}",
            value=statistics.median(steps_s[turn] for steps_s in rounds) / shortest_s,
            unit="× T*",
            details=details,
        )
    yield Figure(
        section="updates",
        case=f"{case}: slices against whole, median of rounds",
        value=statistics.median(steps_s["slices"] / steps_s["whole"] for steps_s in rounds),
        unit="",
        at_most=1.0,
        details={"cores": os.cpu_count() or 0},
    )


def _tell(rank: int, steps_s: dict[str, float]) -> None:
    if rank == 0:
        print("   ".join(f"{turn} {seconds * 1e3:.0f} ms" for turn, seconds in steps_s.items()), flush=True)


def main(argv: Sequence[str] | None = None) -> int:
    """0 when slices are not slower, 1 otherwise."""
    parser = argparse.ArgumentParser(prog="python -m bench.updates", description=__doc__)
    parser.add_argument("--out", type=Path, help="append the figures to this file, a JSON object a line")
    parser.add_argument("--gbps", type=float, default=2.0)
    parser.add_argument("--bytes-by", type=float, default=1.0, help="the share of VGG16's bytes")
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--steps", type=int, default=3, help="measured steps of a turn, after one that is not")
    parser.add_argument("--optimizers", nargs="+", choices=OPTIMIZERS, default=list(OPTIMIZERS))
    arguments = parser.parse_args(argv)
    return publish((figure for name in arguments.optimizers for figure in measure(name, arguments)), arguments.out)


if __name__ == "__main__":
    sys.exit(main())
