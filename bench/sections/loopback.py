"""Two workers on one machine, in turns with Gloo: throughput idle and beside busy Python, CPU it costs.

The engine alone.
"""

import itertools
import os
import resource
import statistics
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from bench.report import Figure
from bench.testbed import crew
from bench.testbed.launch import Launch
from bench.testbed.testbed import Testbed

NUM_WORKERS = 2
NUM_BYTES = 64_000_000
NUM_ROUNDS = 5
_LOOPBACK = "127.0.0.1"
_GLOO_PORT = 4200

Gradient = npt.NDArray[np.float32]
AllReduce = Callable[[Gradient], object]


@dataclass(frozen=True, kw_only=True)
class Cost:
    """What one all-reduce took on one rank."""

    wall_s: float
    cpu_s: float


Costs = dict[tuple[str, bool], list[Cost]]
"""By system and whether Python was busy."""


def measure() -> Iterator[Figure]:
    """As a job runs by default, through shared memory, and over sockets, which Gloo uses as well."""
    with Testbed(hosts=1) as testbed:
        for path in ("memory", "sockets"):
            launch = Launch(
                num_workers=NUM_WORKERS,
                conductor=_LOOPBACK,
                shared_memory=path == "memory",
            )
            yield from _figures(path, crew.run(testbed, [0] * NUM_WORKERS, take_turns, launch))


def _figures(path: str, ranks: Sequence[Costs]) -> Iterator[Figure]:
    gbps = {key: _gbps([rank[key] for rank in ranks]) for key in ranks[0]}
    details: dict[str, float | str] = {
        f"{system}{' busy' if busy else ''} Gbit/s": rate for (system, busy), rate in gbps.items()
    }
    yield Figure(
        section="loopback",
        case=f"{path}: 64 MB, 2 workers, over Gloo",
        value=gbps["native", False] / gbps["gloo", False],
        unit="× Gloo",
        at_least=1.3,
        details=details,
    )
    yield Figure(
        section="loopback",
        case=f"{path}: beside a spinning main thread, over idle",
        value=gbps["native", True] / gbps["native", False],
        unit="× idle",
        at_least=0.5,
    )
    yield Figure(
        section="loopback",
        case=f"{path}: beside a spinning main thread, over Gloo there",
        value=gbps["native", True] / gbps["gloo", True],
        unit="× Gloo",
        at_least=1.0,
    )
    cpu = {system: _cpu_s_per_gb([rank[system, False] for rank in ranks]) for system in ("native", "gloo")}
    yield Figure(
        section="loopback",
        case=f"{path}: CPU of one worker for a gigabyte of gradients",
        value=cpu["native"],
        unit="s",
        details={"Gloo s": cpu["gloo"]},
    )


def take_turns(station: crew.Station, launch: Launch) -> Costs:
    """One rank: every system idle, then every system beside a busy main thread, over and over."""
    gradient = np.full(NUM_BYTES // 4, station.rank + 1, np.float32)
    costs: Costs = {}
    with native(launch, station.rank) as reduce_native, gloo(station.rank, NUM_WORKERS) as reduce_gloo:
        for _ in range(NUM_ROUNDS + 1):
            for busy in (False, True):
                for system, reduce in (("native", reduce_native), ("gloo", reduce_gloo)):
                    gradient.fill(station.rank + 1)
                    station.meet()
                    costs.setdefault((system, busy), []).append(_timed(reduce, gradient, busy))
                    if not np.all(gradient == NUM_WORKERS * (NUM_WORKERS + 1) / 2):
                        raise AssertionError(f"{system}: the sum is wrong on rank {station.rank}")
    return {key: values[1:] for key, values in costs.items()}  # the first round sets everything up


@contextmanager
def native(launch: Launch, rank: int) -> Iterator[AllReduce]:
    with launch.group(rank) as group:
        steps = itertools.count()
        yield lambda gradient: group.push_pull("gradient", gradient, step=next(steps))


@contextmanager
def gloo(rank: int, num_workers: int) -> Iterator[AllReduce]:
    """PyTorch's own transport for CPUs."""
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"  # the namespace has a loopback and no name service
    import torch
    import torch.distributed as dist

    dist.init_process_group("gloo", init_method=f"tcp://{_LOOPBACK}:{_GLOO_PORT}", rank=rank, world_size=num_workers)
    try:
        yield lambda gradient: dist.all_reduce(torch.from_numpy(gradient))
    finally:
        dist.destroy_process_group()


def _timed(reduce: AllReduce, gradient: Gradient, busy: bool) -> Cost:
    done = threading.Event()
    begin_cpu_s, begin_s = _cpu_s(), time.monotonic()
    end_s = begin_s

    def work() -> None:
        nonlocal end_s
        reduce(gradient)
        end_s = time.monotonic()
        done.set()

    if busy:
        worker = threading.Thread(target=work)
        worker.start()
        while not done.is_set():  # pure Python on the main thread, as a data loader or a logger would be
            pass
        worker.join()
    else:
        work()
    return Cost(wall_s=end_s - begin_s, cpu_s=_cpu_s() - begin_cpu_s)


def _cpu_s() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def _gbps(ranks: list[list[Cost]]) -> float:
    """Gradient bits per second: a round is over when it is over on every rank."""
    seconds: float = statistics.median(max(cost.wall_s for cost in turn) for turn in zip(*ranks, strict=True))
    return NUM_BYTES * 8e-9 / seconds


def _cpu_s_per_gb(ranks: list[list[Cost]]) -> float:
    return statistics.median(cost.cpu_s for rank in ranks for cost in rank) / (NUM_BYTES * 1e-9)
