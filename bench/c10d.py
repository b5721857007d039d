"""Legato, native and over a process group of Gloo, against torch's DDP: `python -m bench.c10d [model ...]`.

4 hosts × 1 Gbit/s, models scaled to 50 MB, layers that sleep, communication as long as computation. All systems take
turns on the same links, so that drift hits all of them. With --buckets, also other bucket sizes and policies.
"""

import argparse
import os
import statistics
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn

import legato.torch as lg
from bench import crew, goodput
from bench.namespace import acquire_permission
from bench.report import Figure, publish
from bench.sections.steps import MODELS, Setting, balanced
from bench.sleeper import sleeping_model, step_times_s
from bench.testbed import Testbed
from legato.core import Workload, bound
from legato.torch.c10d import REGULAR_ROUND, C10dSynchronizer
from legato.torch.compression import Compression
from legato.torch.hooks import Schedule
from legato.torch.process_group import ProcessGroup
from legato.torch.static_plan import StaticConfig

MB = 1 << 20
SETTING = Setting(num_hosts=4, gbps=1, num_bytes=50_000_000, num_steps=4, num_rounds=4, partition_bytes=MB, at_most=1.2)
AT_MOST = {"legato, native": 1.05, "legato, Gloo": 1.2}
TIMEOUT_S = 60.0
_PORT = 4400
_KEEP_FREED_MEMORY = {"MALLOC_MMAP_THRESHOLD_": str(1 << 30), "MALLOC_TRIM_THRESHOLD_": str(1 << 32)}
"""For all systems: otherwise glibc returns every gradient to the kernel, and the next one faults its pages in again."""


@dataclass(frozen=True, kw_only=True)
class System:
    """One way to train."""

    ddp_bucket_mb: float | None = None
    """torch's DDP with this bucket size."""
    legato: StaticConfig | None = None
    """Legato over Gloo with this configuration."""
    is_native: bool = False
    """Legato by its own engine, as `schedule` sets it up. None of the three: training alone."""


ALONE = "alone"
SYSTEMS = {
    ALONE: System(),
    "DDP, 25 MB": System(ddp_bucket_mb=25),
    "DDP, 2 MB": System(ddp_bucket_mb=2),
    "legato, Gloo": System(legato=StaticConfig()),
    "legato, native": System(is_native=True),
}
OTHERS = {
    f"legato, {policy}, {bucket_bytes / MB:g} MB": System(legato=StaticConfig(policy=policy, bucket_bytes=bucket_bytes))
    for policy, bucket_bytes in (
        *(("bytescheduler", size) for size in (MB // 2, MB, 2 * MB, 4 * MB)),
        *((policy, 2 * MB) for policy in ("rsag", "dear", "wfbp")),
    )
}


@dataclass(frozen=True, kw_only=True)
class Times:
    """What one rank has seen of one system."""

    steps_s: list[float]
    cpu_s: float
    """Processor time of a step, all threads of this rank."""


class Trainer:
    """One system's copy of the model."""

    def __init__(self, system: System, workload: Workload, rank: int) -> None:
        model: nn.Module = sleeping_model(workload, rank + 1.0)
        self._optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
        self._schedule: Schedule | None = None
        config = system.legato
        if config is not None:
            self._schedule = Schedule(
                model,
                self._optimizer,
                lambda slots: C10dSynchronizer(
                    ProcessGroup(TIMEOUT_S), "gradients", slots, Compression.none, config=config, timeout_s=TIMEOUT_S
                ),
            )
        elif system.is_native:
            lg.schedule(model, self._optimizer, transport="native")
        elif system.ddp_bucket_mb is not None:
            model = nn.parallel.DistributedDataParallel(model, bucket_cap_mb=system.ddp_bucket_mb)
        self._model = model
        self._is_native = system.is_native

    def turn(self, num_steps: int) -> Times:
        """Some steps; the next turn has the links for itself."""
        begin_s = time.process_time()
        steps_s = step_times_s(self._model, self._optimizer, num_steps)
        if self._schedule is not None:
            self._schedule.flush()
        if self._is_native:
            lg.flush(self._model)
        return Times(steps_s=steps_s, cpu_s=(time.process_time() - begin_s) / (num_steps + 1))

    def finish(self) -> None:
        """All ranks have stepped by the same averages, so all weights are one number."""
        if self._schedule is not None:
            self._schedule.remove()
        if self._is_native:
            lg.unschedule(self._model)
        weights = torch.cat([each.detach().view(-1) for each in self._model.parameters()])
        least, most = weights.aminmax()
        if least != most:
            raise AssertionError(f"the weights are from {least} to {most}, but must be equal")


def train(
    station: crew.Station, address: str, workload: Workload, systems: dict[str, System]
) -> dict[str, list[Times]]:
    """One rank of the measurement."""
    torch.set_num_threads(1)
    os.environ.update(
        GLOO_SOCKET_IFNAME="eth0",
        RANK=str(station.rank),
        WORLD_SIZE=str(SETTING.num_hosts),
        LOCAL_RANK="0",
        LOCAL_WORLD_SIZE="1",
        MASTER_ADDR=address,
        MASTER_PORT=str(_PORT + 1),
        LEGATO_KEY="bench",
    )
    lg.init()
    dist.init_process_group(
        "gloo",
        init_method=f"tcp://{address}:{_PORT}",
        rank=station.rank,
        world_size=SETTING.num_hosts,
        timeout=timedelta(seconds=TIMEOUT_S),
    )
    trainers = {name: Trainer(system, workload, station.rank) for name, system in systems.items()}
    for trainer in trainers.values():
        station.meet()
        trainer.turn(REGULAR_ROUND + 1)  # by then every plan is what it will be
    times: dict[str, list[Times]] = {name: [] for name in systems}
    for _ in range(SETTING.num_rounds):
        for name, trainer in trainers.items():
            station.meet()
            times[name].append(trainer.turn(SETTING.num_steps))
    for trainer in (trainers[name] for name in systems if name != ALONE):
        trainer.finish()
    station.meet()
    lg.shutdown()
    dist.destroy_process_group()
    return times


def measure_model(testbed: Testbed, model: str, systems: dict[str, System]) -> Iterator[Figure]:
    """All systems on one model; goodput is measured right before, because it drifts with the machine."""
    links = goodput.measure(testbed)
    workload = balanced(model, SETTING, links.bytes_per_s)
    ranks = crew.run(testbed, range(SETTING.num_hosts), train, testbed.address(0), workload, systems)
    steps_s = {
        name: statistics.median(second for rank in ranks for turn in rank[name] for second in turn.steps_s)
        for name in systems
    }
    stretch = steps_s[ALONE] / workload.compute_s
    rounds = 2 * (SETTING.num_hosts - 1) / SETTING.num_hosts
    best_s = bound(
        [layer.forward_s * stretch for layer in workload.layers],
        [layer.backward_s * stretch for layer in workload.layers],
        [rounds * layer.num_bytes / links.bytes_per_s for layer in workload.layers],
    )
    for name in systems:
        yield Figure(
            section="c10d",
            case=f"{model}, {SETTING.num_hosts} × {SETTING.gbps:g} Gbit/s, {name}",
            value=steps_s[name] / best_s,
            unit="T*",
            at_most=AT_MOST.get(name),
            details={
                "step ms": steps_s[name] * 1e3,
                "T* ms": best_s * 1e3,
                "cpu ms": statistics.median(turn.cpu_s for rank in ranks for turn in rank[name]) * 1e3,
                "goodput": links.bytes_per_s * 8e-9 / SETTING.gbps,
            },
        )


def main(argv: Sequence[str] | None = None) -> int:
    """0 when every target is met, 1 otherwise; 77 where hosts cannot be made."""
    parser = argparse.ArgumentParser(prog="python -m bench.c10d", description=__doc__)
    parser.add_argument("models", nargs="*", choices=[[], *MODELS], help="what to train (default: all)")
    parser.add_argument("--buckets", action="store_true", help="also other policies and bucket sizes")
    parser.add_argument("--out", type=Path, help="append the figures to this file, a JSON object a line")
    arguments = parser.parse_args(argv)
    acquire_permission()
    os.environ.update(_KEEP_FREED_MEMORY)  # for the processes to come
    systems = {**SYSTEMS, **(OTHERS if arguments.buckets else {})}
    with Testbed(hosts=SETTING.num_hosts, gbps=SETTING.gbps) as testbed:
        models = arguments.models or MODELS
        return publish((figure for model in models for figure in measure_model(testbed, model, systems)), arguments.out)


if __name__ == "__main__":
    sys.exit(main())
