"""What legato costs where nothing is to be gained: `python -m bench.overhead [--out FILE]`.

ResNet50, computing for longer than its gradients travel: two workers on one machine train by themselves (nothing is
synchronised) and with legato, in turns, on small images and on larger ones. One worker alone needs no measurement:
`schedule` gives its model back untouched. The cost of a parameter is main-thread processor time: hooks, hand-over and
update. Two workers on two cores leave none to the engine: what it takes to move and add the gradients is in the ratio.
"""

import argparse
import os
import statistics
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch
from torch import nn

import legato.torch as lg
from bench import crew
from bench.loopback import Loopback
from bench.report import Figure, publish
from examples.models import resnet50

NUM_WORKERS = 2
NUM_ROUNDS = 3
BATCH = 8
SIDES = (64, 96, 160)
"""Pixels of an image's side."""
_PORT = 4500


def train(station: crew.Station, address: str, side: int) -> dict[str, list[tuple[float, float]]]:
    """(seconds, seconds of the main thread) of each step by system; the first round sets everything up."""
    os.environ.update(crew.torchrun_environment(station.rank, NUM_WORKERS, address, _PORT, on_one_host=True))
    torch.set_num_threads(1)
    lg.init()
    images, labels = torch.randn(BATCH, 3, side, side), torch.randint(1000, (BATCH,))
    trainers: dict[str, tuple[nn.Module, torch.optim.Optimizer]] = {}
    for system in ("plain", "legato"):
        torch.manual_seed(0)
        network = resnet50()
        sgd = torch.optim.SGD(network.parameters(), lr=1e-3, momentum=0.9)
        if system == "legato":
            lg.schedule(network, sgd)
        trainers[system] = network, sgd
    costs: dict[str, list[tuple[float, float]]] = {system: [] for system in trainers}
    for _ in range(NUM_ROUNDS + 1):
        for system, (model, optimizer) in trainers.items():
            station.meet()
            begin = time.perf_counter(), time.thread_time()
            for _ in range(2):
                optimizer.zero_grad()
                nn.functional.cross_entropy(model(images), labels).backward()
                optimizer.step()
            end = time.perf_counter(), time.thread_time()
            costs[system].append(((end[0] - begin[0]) / 2, (end[1] - begin[1]) / 2))
            if system == "legato":
                lg.flush(model)
    lg.shutdown()
    return {system: values[1:] for system, values in costs.items()}


def measure(side: int) -> Iterator[Figure]:
    with Loopback(hosts=NUM_WORKERS) as hosts:
        ranks = crew.run(hosts, range(NUM_WORKERS), train, hosts.address(0), side)
    wall_s, thread_s = (
        {system: statistics.median(cost[which] for rank in ranks for cost in rank[system]) for system in ranks[0]}
        for which in (0, 1)
    )
    num_parameters = len(list(resnet50().parameters()))
    case = f"ResNet50, {BATCH} images of {side} × {side}, {NUM_WORKERS} workers"
    yield Figure(
        section="overhead",
        case=case,
        value=wall_s["legato"] / wall_s["plain"],
        unit="× plain PyTorch",
        at_most=1.02,
        details={"plain ms": wall_s["plain"] * 1e3, "legato ms": wall_s["legato"] * 1e3},
    )
    yield Figure(
        section="overhead",
        case=f"{case}: main thread, for each parameter",
        value=(thread_s["legato"] - thread_s["plain"]) / num_parameters * 1e6,
        unit="µs",
        details={"parameters": num_parameters},
    )


def main(argv: Sequence[str] | None = None) -> int:
    """0 when every target is met, 1 otherwise."""
    parser = argparse.ArgumentParser(prog="python -m bench.overhead", description=__doc__)
    parser.add_argument("--out", type=Path, help="append the figures to this file, a JSON object a line")
    arguments = parser.parse_args(argv)
    return publish([figure for side in SIDES for figure in measure(side)], arguments.out)


if __name__ == "__main__":
    sys.exit(main())
