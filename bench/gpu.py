"""Real models on one accelerator shared by several workers, each on a host of its own behind a shaped link.

    python -m bench.gpu --gbps 1 5 10 25 --out bench/results/h200.jsonl

For every rate and model: samples (images, tokens) per second of all workers together, with torch's DDP over Gloo and
with legato's engine, and without any communication; `ddp:bf16` has DDP's own compression hook, `legato:bf16` and the
like legato's; `ddp:clip`, `legato:clip` and `legato:torch-clip` clip gradients by their norm, the last with torch's own
function. `auto` is legato as a user calls it, measured once the first steps have decided between its engine and Gloo.
A system that is named several times has as many turns, which share its steps.

Two processes cannot share an accelerator under NCCL; Gloo and legato's engine can. T* comes from the layers' times,
which all workers measure at once before they train, from a step without communication, from the links and from the
copies to the host and back.
"""

import argparse
import json
import logging
import os
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import pairwise, product
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn, profiler
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.nn import functional

import legato.torch as lg
from bench.models import TASKS, Task
from bench.testbed import crew, goodput
from bench.testbed.testbed import Testbed
from legato.core import Layer, Workload
from legato.torch.api import current
from legato.torch.sync.switching import Switching
from legato.torch.tuning.profile import ProfileConfig, profile

SYSTEMS = ("alone", "ddp", "legato")
CHOOSING = "auto"
COMPRESSED = ("ddp:bf16", "legato:bf16", "legato:fp16", "legato:int8")
CLIPPED = ("ddp:clip", "legato:clip", "legato:torch-clip")
MAX_NORM = 1.0
OVER_GLOO = "legato:c10d"
WARM_UP_STEPS = 2
ALONE_STEPS = 5
PROFILED_STEPS = 6


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
    blocked: float
    """The share of a step for which the training thread did not run before all of it was queued, on the worst rank."""
    processors: float
    """How many were busy on average."""
    ahead: list[int]
    """What `queued_ahead` says on rank 0."""


@dataclass(frozen=True)
class Alone:
    """What a rank measures of a model while the others do the same."""

    workload: Workload
    copy_bytes_per_s: float
    """To the host or back, whichever is slower."""
    step_s: float
    """Of a step without communication."""

    def bound_s(self, on_link: float) -> float:
        """T*. What a step alone takes longer than its layers, for the loss and the update, is between its passes."""
        rest_s = max(0.0, self.step_s - sum(layer.forward_s + layer.backward_s for layer in self.workload.layers))
        rest = Layer("loss and update", 0, 0.0, rest_s)
        whole = replace(self.workload, layers=(*self.workload.layers, rest))
        return whole.bound_s(on_link, 1 / self.copy_bytes_per_s)


def measured_alone(station: crew.Station, name: str, task: Task) -> Alone:
    station.meet()
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
    station.meet()
    ends_s = train(task, "alone", ALONE_STEPS, profiles=False).ends_s
    return Alone(workload, here.numel() / slowest_s, statistics.median(b - a for a, b in pairwise(ends_s)))


@dataclass(frozen=True)
class Turn:
    """One system's steps on a rank."""

    num_bytes: int
    """Of the gradients."""
    ends_s: list[float]
    """When each step was over, from the last of those that are not measured on."""
    blocked_s: list[float]
    """Of each step, how long the thread that trains did not run before it had queued all of it."""
    processors: float
    """How many were busy on average, with whatever ran on this machine."""
    ahead: list[int]
    """Kernels that were queued when the thread began a forward pass, where it waits for the accelerator in no step."""


def train(task: Task, system: str, num_steps: int, *, profiles: bool) -> Turn:
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

    def step() -> None:
        optimizer.zero_grad()
        with torch.autocast("cuda", torch.bfloat16, task.mixed):
            logits = model(inputs)
            loss = functional.cross_entropy(logits.reshape(-1, logits.shape[-1]), labels.flatten())
        loss.backward()
        if system in CLIPPED:
            clip(model.parameters(), MAX_NORM)
        optimizer.step()

    def measured() -> tuple[float, float]:
        """One more step: when it was over, and how long the thread did not run before it was queued."""
        asleep_s = _asleep_s()
        step()
        asleep_s = _asleep_s() - asleep_s
        torch.cuda.synchronize()
        return time.monotonic(), asleep_s

    while system == CHOOSING and _is_in_trial():
        measured()
    for _ in range(WARM_UP_STEPS):
        measured()
    steps, busy_s = [measured()], _busy_s()
    steps += [measured() for _ in range(num_steps)]
    ends_s, blocked_s = map(list, zip(*steps, strict=True))
    processors = (_busy_s() - busy_s) / (ends_s[-1] - ends_s[0])
    ahead = queued_ahead(step) if profiles else []
    if kind in ("legato", CHOOSING):
        lg.unschedule(model)
    return Turn(num_bytes, ends_s, blocked_s[1:], processors, ahead)


def queued_ahead(step: Callable[[], None]) -> list[int]:
    """Kernels that have been launched and have not begun when the thread begins a step, as the profiler tells it."""
    mark = "a step begins"
    with profiler.profile() as profile:
        for _ in range(PROFILED_STEPS):
            with profiler.record_function(mark):
                pass
            step()
        torch.cuda.synchronize()
    assert profile.profiler is not None
    assert profile.profiler.kineto_results is not None
    events = profile.profiler.kineto_results.events()
    here = [event for event in events if event.device_type().name == "CPU"]
    there = [event for event in events if event.device_type().name == "CUDA"]
    launched_ns = {event.correlation_id(): event.start_ns() for event in here if "Launch" in event.name()}
    kernels = [
        (launched_ns[event.correlation_id()], event.start_ns())
        for event in there
        if event.correlation_id() in launched_ns
    ]
    return [
        sum(launched_ns < event.start_ns() < begun_ns for launched_ns, begun_ns in kernels)
        for event in here
        if event.name() == mark
    ]


def _asleep_s() -> float:
    """Seconds that this thread has not run, since some beginning."""
    return time.monotonic() - time.thread_time()


def _busy_s() -> float:
    """Seconds that all processors together have been busy since this machine has been up."""
    user, nice, system, _idle, _waiting, *rest = map(int, Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:8])
    return (user + nice + system + sum(rest)) / os.sysconf("SC_CLK_TCK")


def _is_in_trial() -> bool:
    """Whether the first steps still compare transports; all ranks end a trial with the same step."""
    schedule: Any = current().kept[0]
    return isinstance(schedule.synchronizer, Switching)


def work(
    station: crew.Station,
    master: str,
    size: int,
    model: str,
    systems: Sequence[str],
    num_steps: int,
    profiles: bool,
) -> tuple[Alone, list[Turn]]:
    """One rank: a model with every system, all ranks at the same one."""
    os.environ.update(
        crew.torchrun_environment(station.rank, size, master, 29500), GLOO_SOCKET_IFNAME="eth0", LEGATO_KEY=crew.KEY
    )
    logging.basicConfig(level=logging.INFO)
    dist.init_process_group("gloo")
    alone = measured_alone(station, model, TASKS[model])
    trained: list[Turn] = []
    for system in systems:
        torch.cuda.empty_cache()
        station.meet()
        lg.init()  # a job of its own: plans are tuned for the first schedule of one
        steps = -(-num_steps // systems.count(system))
        trained.append(train(TASKS[model], system, steps, profiles=profiles))
        lg.shutdown()
    dist.destroy_process_group()
    return alone, trained


def between_ends(ends_s: Sequence[Sequence[float]]) -> list[float]:
    """Seconds from the instant at which a step is over on all ranks to the next one's, from every rank's own instants.

    The longest of the ranks' own times would add up to more than all steps took: one rank falls behind in this step,
    and another in the next.
    """
    return [after - before for before, after in pairwise(map(max, zip(*ends_s, strict=True)))]


def measure(gbps: float, model: str, systems: Sequence[str], size: int, num_steps: int, *, profiles: bool) -> list[Row]:
    rows = []
    task = TASKS[model]
    with Testbed(hosts=size, gbps=gbps) as testbed:
        links = goodput.measure(testbed).bytes_per_s
        ranks = crew.run(testbed, range(size), work, testbed.address(0), size, model, systems, num_steps, profiles)
    on_link = 2 * (size - 1) / size / links
    bounds_s = [alone.bound_s(on_link) for alone, _ in ranks]
    for system in dict.fromkeys(systems):
        turns = [[trained[place] for _, trained in ranks] for place, each in enumerate(systems) if each == system]
        steps_s = [step_s for turn in turns for step_s in between_ends([rank.ends_s for rank in turn])]
        num_bytes = turns[0][0].num_bytes
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
                blocked=max(statistics.median(rank.blocked_s) for turn in turns for rank in turn) / step_s,
                processors=statistics.mean(rank.processors for turn in turns for rank in turn),
                ahead=turns[0][0].ahead,
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
    parser.add_argument("--profile", action="store_true", help="count the kernels that are queued ahead")
    parser.add_argument("--out", type=Path, required=True, help="append the rows to this file, a JSON object a line")
    arguments = parser.parse_args()
    for gbps, model in product(arguments.gbps, arguments.models):
        rows = measure(gbps, model, arguments.systems, arguments.workers, arguments.steps, profiles=arguments.profile)
        with arguments.out.open("a") as file:
            file.writelines(json.dumps(asdict(row)) + "\n" for row in rows)


if __name__ == "__main__":
    main()
