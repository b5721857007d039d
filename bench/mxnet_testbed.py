"""MXNet on the testbed: its plain `dist_sync`, its P3, legato's ScheduledKVStore and legato's engine, side by side.

python -m bench.mxnet_testbed --models vgg16 resnet50 --gbps 1 2 4 --out mxnet.jsonl

Every host has a worker and a server, host 0 the scheduler too. Computation sleeps (bench/mxnet_worker.py). T* counts
the bytes that one link carries in each direction, 2(n−1)/n of the model's, at the goodput measured between the hosts.
`--waits` shows where the time goes: how long host 0 was idle before the layers of each quarter of the model, and how
long its parts were on their way.
"""

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

from bench.testbed.goodput import measure
from bench.testbed.launch import Launch
from bench.testbed.testbed import Testbed
from legato.core import Workload
from legato.observe.report.intervals import length, union
from legato.sim.zoo import workload

PORT = 9091
WARMUP_STEPS = 3
SYSTEMS: dict[str, tuple[Mapping[str, str], Sequence[str]]] = {
    "dist_sync": ({}, ()),
    "p3": ({"DMLC_PS_VAN_TYPE": "p3"}, ()),
    "legato": ({}, ("--policy", "bytescheduler")),
    "legato fifo": ({}, ("--policy", "fifo")),
    "engine": ({}, ("--engine",)),
}
"""What is set for every process, and what the workers are told."""


@dataclass(frozen=True)
class Parts:
    """The way of a host's parts, over all steps."""

    a_step: float
    to_servers_s: float
    """Median, until one has got there."""
    back_s: float
    """Median, from then until its sum has come back: for all workers' pushes."""
    out_s: float
    """How long any has begun and is not back, of a step."""

    def __str__(self) -> str:
        return (
            f"{self.a_step:.0f} parts a step, {self.to_servers_s * 1e3:.1f} ms to their servers, sums back "
            f"{self.back_s * 1e3:.1f} ms later; some are out for {self.out_s * 1e3:.1f} ms of a step"
        )


class Measured(NamedTuple):
    """A run."""

    steps_s: tuple[float, ...]
    idle_s: Mapping[str, float]
    busy: float
    parts: Parts | None


@dataclass(frozen=True)
class Row:
    """One system on one model at one rate."""

    model: str
    gbps: float
    goodput_gbps: float
    system: str
    hosts: int
    steps_s: tuple[float, ...]
    """Of the slowest worker, after the warm-up."""
    bound_s: float
    idle_s: Mapping[str, float]
    """Of host 0's device before each layer, by its place: the mean of all steps."""
    busy: float
    """The share of the machine's processors, which all hosts share, over all steps."""
    parts: Parts | None
    """Host 0's, where the system has any."""

    @property
    def step_s(self) -> float:
        return statistics.median(self.steps_s)

    def __str__(self) -> str:
        return (
            f"{self.model:10} {self.gbps:5g} Gbit/s  {self.system:12} {self.step_s * 1e3:8.1f} ms a step, "
            f"{self.step_s / self.bound_s:.3f} T*, processors {self.busy:.0%} busy"
        )


def main() -> None:
    options = _arguments()
    for model in options.models:
        work = workload(model, tflops=options.tflops).scaled(bytes_by=options.bytes_by, time_by=options.time_by)
        for gbps in options.gbps:
            with Testbed(hosts=options.hosts, gbps=gbps) as testbed:
                goodput_gbps = measure(testbed).bytes_per_s * 8e-9
                for system in options.systems:
                    found = _measure(testbed, work, system, options)
                    bound_s = _bound(work, options.hosts, goodput_gbps)
                    row = Row(model, gbps, goodput_gbps, system, options.hosts, bound_s=bound_s, **found._asdict())
                    print(row, flush=True)
                    if options.waits:
                        print(_waits(work, row), *([f"{'':10} {row.parts}"] if row.parts else []), sep="\n", flush=True)
                    if options.out is not None:
                        with options.out.open("a") as lines:
                            lines.write(json.dumps(asdict(row)) + "\n")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", default=["vgg16", "resnet50"])
    parser.add_argument("--gbps", nargs="+", type=float, default=[1.0])
    parser.add_argument("--systems", nargs="+", choices=SYSTEMS, default=list(SYSTEMS))
    parser.add_argument("--hosts", type=int, default=4)
    parser.add_argument("--steps", type=int, default=12, help="measured, after a warm-up of 3")
    parser.add_argument("--tflops", type=float, default=9.0, help="of each emulated accelerator")
    parser.add_argument("--bytes-by", type=float, default=1.0, help="scales the models' bytes")
    parser.add_argument("--time-by", type=float, default=1.0, help="scales the models' computation")
    parser.add_argument("--partition", help="largest part of the scheduled systems, such as 4MB")
    parser.add_argument("--credit", help="credit of the scheduled systems, such as 16MB")
    parser.add_argument("--waits", action="store_true", help="show where in the model the device was idle")
    parser.add_argument("--timeout-s", type=float, default=600.0, help="for one system")
    parser.add_argument("--python", default=".venv-mxnet/bin/python", help="MXNet's interpreter")
    parser.add_argument("--out", type=Path, help="append rows as JSON lines")
    return parser.parse_args()


def _waits(work: Workload, row: Row) -> str:
    """A step's time: computation, and what the device waited for before the layers of each quarter of the model."""
    compute_s = sum(layer.forward_s + layer.backward_s for layer in work.layers)
    quarters_s = [0.0] * 4
    for place, seconds in row.idle_s.items():
        quarters_s[int(place) * 4 // len(work.layers)] += seconds
    words = " + ".join(f"{seconds * 1e3:.1f}" for seconds in quarters_s)
    return (
        f"{'':10} computes {compute_s * 1e3:.1f} ms, waits {sum(quarters_s) * 1e3:.1f} ms: "
        f"{words} before its first to last quarter"
    )


def _measure(testbed: Testbed, work: Workload, system: str, options: argparse.Namespace) -> Measured:
    variables, words = SYSTEMS[system]
    if words:
        words = [*words, *(["--partition", options.partition] if options.partition else [])]
        words = [*words, *(["--credit", options.credit] if options.credit else [])]
    with tempfile.TemporaryDirectory() as directory:
        given = Path(directory) / "workload.json"
        given.write_text(work.to_json())
        reports = [Path(directory) / f"worker-{host}.json" for host in range(options.hosts)]

        def command(host: int, role: str, *arguments: str) -> list[str]:
            if "--engine" in words:
                launch = Launch(num_workers=options.hosts, conductor=testbed.address(0))
                environment = {**launch.environment(host), "OMP_NUM_THREADS": "1"}
                return _run_with(environment, options.python, arguments)
            environment = {
                "DMLC_ROLE": role,
                "DMLC_PS_ROOT_URI": testbed.address(0),
                "DMLC_PS_ROOT_PORT": str(PORT),
                "DMLC_NUM_WORKER": str(options.hosts),
                "DMLC_NUM_SERVER": str(options.hosts),
                "DMLC_NODE_HOST": testbed.address(host),
                "OMP_NUM_THREADS": "1",
                **variables,
            }
            return _run_with(environment, options.python, arguments)

        has_servers = "--engine" not in words
        others = [testbed.spawn(0, command(0, "scheduler", "-c", "import mxnet"))] if has_servers else []
        workers = []
        for host, report in enumerate(reports):
            if has_servers:
                others.append(testbed.spawn(host, command(host, "server", "-c", "import mxnet")))
            steps = str(options.steps + WARMUP_STEPS)
            run = ("-m", "bench.mxnet_worker", str(given), str(report), "--steps", steps)
            workers.append(testbed.spawn(host, command(host, "worker", *run, *words)))
        until_s = time.monotonic() + options.timeout_s
        for worker in workers:
            worker.join(max(until_s - time.monotonic(), 0.0))
        codes = [worker.exitcode for worker in workers]
        for process in (*workers, *others):
            testbed.stop(process)
        if codes != [0] * options.hosts:
            sys.exit(f"{system}: the workers ended with {codes} after at most {options.timeout_s:g} s")
        found = [json.loads(report.read_text()) for report in reports]
    by_worker = [each["steps_s"][WARMUP_STEPS:] for each in found]
    idle_s: dict[str, float] = defaultdict(float)
    waits = found[0]["idle_s"][WARMUP_STEPS:]
    for step in waits:
        for layer, seconds in step.items():
            idle_s[layer] += seconds / len(waits)
    (busy, of_all), (busy_at_end, of_all_at_end) = found[0]["ticks"][WARMUP_STEPS], found[0]["ticks"][-1]
    busy = (busy_at_end - busy) / (of_all_at_end - of_all)
    return Measured(tuple(max(step) for step in zip(*by_worker, strict=True)), dict(idle_s), busy, _parts(found[0]))


def _parts(report: Mapping[str, Any]) -> Parts | None:
    begin_s, end_s = report["ends_s"][WARMUP_STEPS], report["ends_s"][-1]
    passages = [each for each in report["passages"] if begin_s <= each[0] < end_s]
    if not passages:
        return None
    num_steps = len(report["ends_s"]) - 1 - WARMUP_STEPS
    out_s = 1e-9 * length(union((round(began_s * 1e9), round(back_s * 1e9)) for began_s, _, back_s in passages))
    to_servers_s = statistics.median(sent_s - began_s for began_s, sent_s, _ in passages)
    back_s = statistics.median(back_s - sent_s for _, sent_s, back_s in passages)
    return Parts(len(passages) / num_steps, to_servers_s, back_s, out_s / num_steps)


def _run_with(environment: Mapping[str, str], python: str, arguments: Sequence[str]) -> list[str]:
    return [
        "env",
        *(f"{name}={value}" for name, value in environment.items()),
        str(Path(python).absolute()),
        *arguments,
    ]


def _bound(work: Workload, hosts: int, goodput_gbps: float) -> float:
    seconds_per_byte = 2 * (hosts - 1) / hosts * 8 / (goodput_gbps * 1e9)
    return work.bound_s(seconds_per_byte)


if __name__ == "__main__":
    main()
