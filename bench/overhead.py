"""What legato costs where nothing is to be gained: `python -m bench.overhead [--out FILE]`.

ResNet50, computing for longer than its gradients travel: two workers on one machine train by themselves (nothing is
synchronised), with torch's DDP over Gloo and with legato, in turns, on small images and on larger ones. One worker
alone needs no measurement: `schedule` gives its model back untouched. Each round has its own ratios, because machines
drift. Two workers on two cores leave none to the engine: what it takes to move and add the gradients is in the ratio.
So is that the slower of two computes for both: workers that only meet after each step (`lockstep`) show how much, and
nothing that synchronises gradients is faster. A step's averages and updates reach into the next one, so the first step
of a turn is not timed, and what the last one leaves takes its place.
The cost of a tensor is main-thread processor time of a backward pass that computes nothing: hooks and hand-over.
"""

import argparse
import os
import statistics
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import legato.torch as lg
from bench.report import Figure, publish
from bench.sleeper import sleeping_model
from bench.testbed import crew
from bench.testbed.loopback import Loopback
from examples.models import resnet50
from legato.core import Layer, Workload
from legato.exchange.planner import FUSION_BYTES

NUM_WORKERS = 2
BATCH = 8
NUM_ROUNDS = {64: 12, 96: 8, 160: 6}
"""By the pixels of an image's side."""
TIMED_STEPS = 3
SYSTEMS = ("plain", "lockstep", "ddp", "legato")
HOOK_STEPS = 80
SHRUNK = 64
_PORT = 4500

Cost = tuple[float, float]
"""Seconds of a step, and seconds of its main thread."""
Costs = dict[str, list[Cost]]
"""Of every round, by system."""


def train(station: crew.Station, address: str, side: int) -> Costs:
    """What steps cost on one rank; the first round sets everything up."""
    os.environ.update(crew.torchrun_environment(station.rank, NUM_WORKERS, address, _PORT, on_one_host=True))
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    lg.init()
    images, labels = torch.randn(BATCH, 3, side, side), torch.randint(1000, (BATCH,))
    trainers: dict[str, tuple[nn.Module, torch.optim.Optimizer]] = {}
    for system in SYSTEMS:
        torch.manual_seed(0)
        network = resnet50()
        sgd = torch.optim.SGD(network.parameters(), lr=1e-3, momentum=0.9)
        if system == "legato":
            # The process group is DDP's: steps in turns with others' are no ground to choose a transport on.
            lg.schedule(network, sgd, transport="native")
        trainers[system] = DistributedDataParallel(network) if system == "ddp" else network, sgd
    costs: Costs = {system: [] for system in trainers}
    for _ in range(NUM_ROUNDS[side] + 1):
        for system, (model, optimizer) in trainers.items():
            station.meet()
            for number in range(1 + TIMED_STEPS):
                if number == 1:
                    begin = time.perf_counter(), time.thread_time()
                optimizer.zero_grad()
                nn.functional.cross_entropy(model(images), labels).backward()
                optimizer.step()
                if system == "lockstep":
                    station.meet()
            end = time.perf_counter(), time.thread_time()
            costs[system].append(((end[0] - begin[0]) / TIMED_STEPS, (end[1] - begin[1]) / TIMED_STEPS))
            if system == "legato":
                lg.flush(model)
    lg.shutdown()
    dist.destroy_process_group()
    return {system: values[1:] for system, values in costs.items()}


def measure(side: int) -> Iterator[Figure]:
    with Loopback(hosts=NUM_WORKERS) as hosts:
        ranks = crew.run(hosts, range(NUM_WORKERS), train, hosts.address(0), side)
    case = f"ResNet50, {BATCH} images of {side} × {side}, {NUM_WORKERS} workers, {os.cpu_count()} cores"
    steps_ms = {name: statistics.median(cost[0] for cost, _ in _rounds(ranks, name)) * 1e3 for name in ranks[0]}
    for system, at_most in (("legato", 1.02), ("lockstep", None), ("ddp", None)):
        yield Figure(
            section="overhead",
            case=f"{case}: {system}",
            value=statistics.median(cost[0] / plain[0] for cost, plain in _rounds(ranks, system)),
            unit="× plain PyTorch",
            at_most=at_most,
            details={"plain ms": steps_ms["plain"], f"{system} ms": steps_ms[system]},
        )


def hooks(station: crew.Station, address: str) -> dict[str, float]:
    """Processor seconds of the main thread in a backward pass that computes nothing.

    Tensors have a 64th of ResNet50's sizes and are fused like whole ones: copies and page faults are not asked for.
    """
    os.environ.update(
        crew.torchrun_environment(station.rank, NUM_WORKERS, address, _PORT, on_one_host=True),
        LEGATO_FUSION_BYTES=str(FUSION_BYTES // SHRUNK),
    )
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    lg.init()
    layers = [
        Layer(name.replace(".", "_"), 4 * max(parameter.numel() // SHRUNK, 1), 0.0, 0.0)
        for name, parameter in resnet50().named_parameters()
    ]
    seconds = {}
    for system in ("plain", "ddp", "legato"):
        model: nn.Module = sleeping_model(Workload("resnet50", tuple(layers)), 1.0)
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
        if system == "legato":
            lg.schedule(model, optimizer, transport="native", tuner="off")
        elif system == "ddp":
            model = DistributedDataParallel(model)
        spent = []
        for _ in range(HOOK_STEPS):
            station.meet()
            optimizer.zero_grad()
            loss = model(torch.zeros(1, requires_grad=True)).sum()
            begin_s = time.thread_time()
            loss.backward()
            spent.append(time.thread_time() - begin_s)
            optimizer.step()
        if system == "legato":
            lg.unschedule(model)
        seconds[system] = statistics.median(spent[HOOK_STEPS // 4 :])
    lg.shutdown()
    dist.destroy_process_group()
    return seconds


def measure_hooks() -> Iterator[Figure]:
    with Loopback(hosts=NUM_WORKERS) as hosts:
        ranks = crew.run(hosts, range(NUM_WORKERS), hooks, hosts.address(0))
    num_parameters = len(list(resnet50().parameters()))
    for system, at_most in (("legato", 40.0), ("ddp", None)):
        more_s = statistics.median(rank[system] - rank["plain"] for rank in ranks)
        yield Figure(
            section="overhead",
            case=f"from hook to engine, for each of ResNet50's {num_parameters} tensors: {system}",
            value=more_s / num_parameters * 1e6,
            unit="µs",
            at_most=at_most,
        )


def _rounds(ranks: Sequence[Costs], system: str) -> Iterator[tuple[Cost, Cost]]:
    """What a step of each round took on each rank, beside what it took without synchronisation."""
    return (pair for rank in ranks for pair in zip(rank[system], rank["plain"], strict=True))


def main(argv: Sequence[str] | None = None) -> int:
    """0 when every target is met, 1 otherwise."""
    parser = argparse.ArgumentParser(prog="python -m bench.overhead", description=__doc__)
    parser.add_argument("--out", type=Path, help="append the figures to this file, a JSON object a line")
    parser.add_argument("--sides", type=int, nargs="*", choices=NUM_ROUNDS, default=list(NUM_ROUNDS))
    arguments = parser.parse_args(argv)
    figures = [*measure_hooks(), *(figure for side in arguments.sides for figure in measure(side))]
    return publish(figures, arguments.out)


if __name__ == "__main__":
    sys.exit(main())
