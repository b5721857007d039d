"""Which transport training chooses by itself, and what the choice costs: `python -m bench.choice [--out FILE]`.

Emulated models on 4 hosts × 1 Gbit/s, communication as long as computation, in jobs that have a process group (Gloo):
legato's engine, legato over the group, and `transport="auto"`, whose first steps decide between the two.
"""

import argparse
import os
import statistics
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.distributed as dist

import legato.torch as lg
from bench.report import Figure, publish
from bench.sleeper import sleeping_model, step_times_s
from bench.testbed import crew
from bench.testbed.namespace import acquire_permission
from bench.testbed.testbed import Testbed
from legato.sim.zoo import workload
from legato.testing.log import said

NUM_HOSTS = 4
GBPS = 1.0
NUM_BYTES = 25_000_000
COMPUTE_S = 0.315
"""Of a step: as long as communication."""
MODELS = ("resnet50", "gpt2")
TRANSPORTS = ("native", "c10d", "auto")
WARM_UP = {"native": 10, "c10d": 10, "auto": 60}
"""Steps before those that count: a choice is made within 54."""
NUM_STEPS = 20
_PORT = 4700


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What one rank has seen."""

    early_s: list[float]
    """Seconds of each step of the warm-up."""
    steps_s: list[float]
    log: list[str]


def train(station: crew.Station, address: str, name: str) -> dict[str, Outcome]:
    """One rank, under each transport in a job of its own."""
    os.environ.update(
        crew.torchrun_environment(station.rank, NUM_HOSTS, address, _PORT),
        GLOO_SOCKET_IFNAME="eth0",
        LEGATO_KEY=crew.KEY,
    )
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    shape = workload(name)
    emulated = shape.scaled(bytes_by=NUM_BYTES / shape.num_bytes, time_by=COMPUTE_S / shape.compute_s)
    outcomes = {}
    for transport in TRANSPORTS:
        station.meet()
        lg.init()
        model = sleeping_model(emulated, 1.0)
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
        with said("legato.torch.tuning.transport_trial") as lines:
            lg.schedule(model, optimizer, transport=transport)
            early_s = step_times_s(model, optimizer, WARM_UP[transport])
            steps_s = step_times_s(model, optimizer, NUM_STEPS)
        outcomes[transport] = Outcome(early_s=early_s, steps_s=steps_s, log=lines)
        lg.shutdown()
    dist.destroy_process_group()
    return outcomes


def measure(name: str) -> Iterator[Figure]:
    with Testbed(hosts=NUM_HOSTS, gbps=GBPS) as testbed:
        ranks = crew.run(testbed, range(NUM_HOSTS), train, testbed.address(0), name)
    step_ms = {
        transport: 1e3
        * statistics.median(max(each) for each in zip(*(r[transport].steps_s for r in ranks), strict=True))
        for transport in TRANSPORTS
    }
    early_s = [max(each) for each in zip(*(rank["auto"].early_s for rank in ranks), strict=True)]
    details: dict[str, float | str] = {f"{transport} ms": step_ms[transport] for transport in TRANSPORTS}
    yield Figure(
        section="choice",
        case=f"{name}: a step after the choice, over the better of the two",
        value=step_ms["auto"] / min(step_ms["native"], step_ms["c10d"]),
        unit="",
        details={**details, "log": "; ".join(ranks[0]["auto"].log)},
    )
    yield Figure(
        section="choice",
        case=f"{name}: the first {len(early_s)} steps, over those after the choice",
        value=1e3 * statistics.mean(early_s) / step_ms["auto"],
        unit="",
        details={"s": sum(early_s)},
    )


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.choice", description=__doc__)
    parser.add_argument("--out", type=Path, help="append the figures to this file, a JSON object a line")
    arguments = parser.parse_args(argv)
    acquire_permission()
    return publish((figure for name in MODELS for figure in measure(name)), arguments.out)


if __name__ == "__main__":
    sys.exit(main())
