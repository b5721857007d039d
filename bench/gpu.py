"""Real models on one accelerator shared by several workers, each on a host of its own behind a shaped link.

    python -m bench.gpu --gbps 1 5 10 25 --out bench/results/h200.jsonl

For every rate and model: samples (images, tokens) per second of all workers together, with torch's DDP over Gloo and
with legato's engine, and without any communication; `ddp:bf16` has DDP's own compression hook, `legato:bf16` and the
like legato's; `ddp:clip`, `legato:clip` and `legato:torch-clip` clip gradients by their norm, the last with torch's own
function. With `--systems auto` as a user calls legato, measured once the first steps have decided between its
engine and Gloo. Two processes cannot share an accelerator under NCCL; Gloo and
legato's engine can. T* comes from the layers' times, which all workers measure at once before they train, from the
links and from the copies to the host and back; it leaves the optimizer out.
"""

import argparse
import json
import logging
import os
import statistics
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.nn import functional

import legato.torch as lg
from bench.models import TASKS, Task
from bench.testbed import crew, goodput
from bench.testbed.testbed import Testbed
from legato.core import Workload
from legato.torch.tuning.profile import ProfileConfig, profile

SYSTEMS = ("alone", "ddp", "legato")
CHOOSING = "auto"
COMPRESSED = ("ddp:bf16", "legato:bf16", "legato:fp16", "legato:int8")
CLIPPED = ("ddp:clip", "legato:clip", "legato:torch-clip")
MAX_NORM = 1.0
OVER_GLOO = "legato:c10d"
WARM_UP = {CHOOSING: 60}
"""Steps that are not measured: a trial of transports ends within 54."""


@dataclass(frozen=True, kw_only=True)
class Row:
    """One system on one model and rate."""

    model: str
    system: str
    gbps: float
    goodput_gbps: float
    workers: int
    batch: int
    num_bytes: int
    step_s: float
    """Median of the measured steps."""
    steps_s: list[float]
    """What `between_ends` says."""
    samples_per_s: float
    unit: str
    communication_s: float
    """2(n-1)/n of the bytes at the goodput measured in this run."""
    bound_s: float
    """T*, the median of the ranks'."""


@dataclass(frozen=True)
class Alone:
    """What a rank measures of a model while the others do the same."""

    workload: Workload
    copy_bytes_per_s: float
    """To the host or back, whichever is slower."""


def measured_alone(name: str, task: Task) -> Alone:
    model = task.make().cuda()
    inputs, labels = task.data("cuda")

    def loss(logits: torch.Tensor) -> torch.Tensor:
        return functional.cross_entropy(logits.reshape(-1, logits.shape[-1]), labels.flatten())

    with torch.autocast("cuda", torch.bfloat16, task.mixed):
        workload = profile(name, model, inputs, loss=loss, config=ProfileConfig(warmup=2, passes=5))
    here = torch.empty(64 << 20, dtype=torch.uint8, pin_memory=True)
    there = here.cuda()
    slowest_s = 0.0
    for target, source in ((here, there), (there, here)):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        target.copy_(source, non_blocking=True)
        begin.record()
        for _ in range(4):
            target.copy_(source, non_blocking=True)
        end.record()
        end.synchronize()
        slowest_s = max(slowest_s, begin.elapsed_time(end) * 1e-3 / 4)
    return Alone(workload, here.numel() / slowest_s)


def train(task: Task, system: str, num_steps: int) -> tuple[list[float], int]:
    """When each step was over, from the last of those that are not measured on, and the bytes of the gradients."""
    torch.manual_seed(0)
    model = task.make().cuda()
    num_bytes = sum(parameter.numel() * 4 for parameter in model.parameters())
    optimizer: torch.optim.Optimizer = torch.optim.SGD(model.parameters(), lr=1e-4, momentum=0.9)
    if task.mixed:
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    kind, _, variant = system.partition(":")
    compression = None if system in CLIPPED else variant
    clip = lg.clip_grad_norm_ if system == "legato:clip" else nn.utils.clip_grad_norm_
    if kind == "ddp":
        model = wrapped = nn.parallel.DistributedDataParallel(model)
        if compression:
            wrapped.register_comm_hook(None, default_hooks.bf16_compress_hook)
    elif system == OVER_GLOO:
        model, optimizer = lg.schedule(model, optimizer, transport="c10d", tuner="off")
    elif kind == "legato":
        model, optimizer = lg.schedule(
            model, optimizer, transport="native", tuner="off", compression=compression or None
        )
    elif system == CHOOSING:
        model, optimizer = lg.schedule(model, optimizer)
    inputs, labels = task.data("cuda")
    warm_up = WARM_UP.get(system, 2)
    ends_s = []
    for _ in range(warm_up + 1 + num_steps):
        optimizer.zero_grad()
        with torch.autocast("cuda", torch.bfloat16, task.mixed):
            logits = model(inputs)
            loss = functional.cross_entropy(logits.reshape(-1, logits.shape[-1]), labels.flatten())
        loss.backward()
        if system in CLIPPED:
            clip(model.parameters(), MAX_NORM)
        optimizer.step()
        torch.cuda.synchronize()
        ends_s.append(time.monotonic())
    if kind in ("legato", CHOOSING):
        lg.unschedule(model)
    return ends_s[warm_up:], num_bytes


def work(
    station: crew.Station, master: str, size: int, models: Sequence[str], systems: Sequence[str], num_steps: int
) -> dict[str, tuple[Alone, dict[str, tuple[list[float], int]]]]:
    """One rank: every model with every system, all ranks at the same one."""
    os.environ.update(
        crew.torchrun_environment(station.rank, size, master, 29500), GLOO_SOCKET_IFNAME="eth0", LEGATO_KEY=crew.KEY
    )
    logging.basicConfig(level=logging.INFO)
    dist.init_process_group("gloo")
    lg.init()
    results: dict[str, tuple[Alone, dict[str, tuple[list[float], int]]]] = {}
    for model in models:
        station.meet()
        trained: dict[str, tuple[list[float], int]] = {}
        results[model] = measured_alone(model, TASKS[model]), trained
        for system in systems:
            torch.cuda.empty_cache()
            station.meet()
            trained[system] = train(TASKS[model], system, num_steps)
    lg.shutdown()
    dist.destroy_process_group()
    return results


def between_ends(ends_s: Sequence[Sequence[float]]) -> list[float]:
    """Seconds from the instant at which a step is over on all ranks to the next one's, from every rank's own instants.

    The longest of the ranks' own times would add up to more than all steps took: one rank falls behind in this step,
    and another in the next.
    """
    return [after - before for before, after in pairwise(map(max, zip(*ends_s, strict=True)))]


def measure(gbps: float, models: Sequence[str], systems: Sequence[str], size: int, num_steps: int) -> list[Row]:
    rows = []
    with Testbed(hosts=size, gbps=gbps) as testbed:
        links = goodput.measure(testbed).bytes_per_s
        ranks = crew.run(testbed, range(size), work, testbed.address(0), size, models, systems, num_steps)
        for model in models:
            task = TASKS[model]
            on_link = 2 * (size - 1) / size / links
            bounds_s = [
                alone.workload.bound_s(on_link, 1 / alone.copy_bytes_per_s)
                for alone in (rank[model][0] for rank in ranks)
            ]
            for system in systems:
                steps_s = between_ends([rank[model][1][system][0] for rank in ranks])
                num_bytes = ranks[0][model][1][system][1]
                step_s = statistics.median(steps_s)
                rows.append(
                    Row(
                        model=model,
                        system=system,
                        gbps=gbps,
                        goodput_gbps=links * 8e-9,
                        workers=size,
                        batch=task.batch,
                        num_bytes=num_bytes,
                        step_s=step_s,
                        steps_s=steps_s,
                        samples_per_s=size * task.samples() / step_s,
                        unit="tokens" if task.is_text else "images",
                        communication_s=on_link * num_bytes,
                        bound_s=statistics.median(bounds_s),
                    )
                )
                print(json.dumps(asdict(rows[-1])), flush=True)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.gpu", description=__doc__)
    parser.add_argument("--gbps", type=float, nargs="+", default=[1, 5, 10, 25])
    parser.add_argument("--models", nargs="+", choices=TASKS, default=list(TASKS))
    parser.add_argument(
        "--systems", nargs="+", choices=(*SYSTEMS, *COMPRESSED, *CLIPPED, OVER_GLOO, CHOOSING), default=list(SYSTEMS)
    )
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--out", type=Path, required=True, help="append the rows to this file, a JSON object a line")
    arguments = parser.parse_args()
    for gbps in arguments.gbps:
        rows = measure(gbps, arguments.models, arguments.systems, arguments.workers, arguments.steps)
        with arguments.out.open("a") as file:
            file.writelines(json.dumps(asdict(row)) + "\n" for row in rows)


if __name__ == "__main__":
    main()
