"""Whether training survives compression: digits and a small GPT by every codec, from the same start on the same data.

python -m bench.convergence [task ...] [--steps N] [--out FILE.jsonl]
python -m bench.convergence --plot FILE.jsonl FILE.svg
"""

import argparse
import json
import multiprocessing
import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional

import legato.torch as lg
from bench.curves import plot
from examples.models import GPT
from legato.testing.ports import free_port

NUM_WORKERS = 2
SCHEMES = ("none", "fp16+ef", "bf16+ef", "int8+ef", "dithering:7+ef", "topk:0.05+ef", "randomk:0.1+ef", "onebit+ef")
MIN_COMPRESS_BYTES = 4096
"""All but biases and norms: the models are small."""
LENGTH = 32
"""Characters of a sequence."""
LAST = 0.1
"""The share of all steps whose mean loss counts as the final one."""
ROOT = Path(__file__).parent.parent

Batches = Iterator[tuple[torch.Tensor, torch.Tensor]]


@dataclass(frozen=True, kw_only=True)
class Task:
    """Something to learn."""

    model: Callable[[], nn.Module]
    optimizer: Callable[[nn.Module], torch.optim.Optimizer]
    batches: Callable[[int], Batches]
    """Of a rank: inputs and what they should become."""
    schemes: Sequence[str] = SCHEMES


@dataclass(frozen=True, kw_only=True)
class Curve:
    """The mean loss of all ranks, step by step."""

    task: str
    scheme: str
    losses: list[float]

    @property
    def final(self) -> float:
        return statistics.fmean(self.losses[-max(round(len(self.losses) * LAST), 1) :])


def classifier() -> nn.Module:
    """That of examples/digits.py."""
    return nn.Sequential(
        *(nn.Conv2d(1, 32, 3, padding=1), nn.ReLU()),
        *(nn.Conv2d(32, 64, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Flatten(), nn.Linear(64 * 4 * 4, 256), nn.ReLU(), nn.Linear(256, 10)),
    )


def digits(rank: int) -> Batches:
    images, labels = map(torch.from_numpy, load_digits(return_X_y=True))
    images = images.float().view(-1, 1, 8, 8) / 16
    sampler = torch.Generator().manual_seed(rank)
    while True:
        batch = torch.randint(len(images), (32,), generator=sampler)
        yield images[batch], labels[batch]


def characters(rank: int) -> Batches:
    text = torch.tensor(list((ROOT / "LICENSE").read_bytes()))
    sampler = torch.Generator().manual_seed(rank)
    while True:
        sequences = text[torch.randint(len(text) - LENGTH, (8, 1), generator=sampler) + torch.arange(LENGTH + 1)]
        yield sequences[:, :-1], sequences[:, 1:]


def small_gpt() -> nn.Module:
    return GPT(vocabulary=256, length=LENGTH, width=64, heads=4, depth=2)


TASKS = {
    "digits": Task(
        model=classifier,
        optimizer=lambda model: torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9),
        batches=digits,
    ),
    "gpt": Task(
        model=small_gpt,
        optimizer=lambda model: torch.optim.AdamW(model.parameters(), lr=2e-3),
        batches=characters,
    ),
    "gpt-sgd": Task(
        model=small_gpt,
        optimizer=lambda model: torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9),
        batches=characters,
    ),
    # Momentum where the coarse codecs want it: before they encode, or not at all.
    "gpt-nesterov": Task(
        model=small_gpt,
        optimizer=lambda model: torch.optim.SGD(model.parameters(), lr=0.05),
        batches=characters,
        schemes=("topk:0.05+ef+nesterov", "onebit+ef+nesterov"),
    ),
    "gpt-no-momentum": Task(
        model=small_gpt,
        optimizer=lambda model: torch.optim.SGD(model.parameters(), lr=0.1),
        batches=characters,
        schemes=("randomk:0.1+ef",),
    ),
}


def train(task: Task, scheme: str, num_steps: int) -> list[float]:
    """One rank's losses."""
    torch.manual_seed(0)
    model = task.model()
    optimizer = task.optimizer(model)
    lg.schedule(model, optimizer, compression=scheme, min_compress_bytes=MIN_COMPRESS_BYTES)
    batches = task.batches(lg.rank())
    losses = []
    for _ in range(num_steps):
        inputs, targets = next(batches)
        loss = functional.cross_entropy(model(inputs).flatten(0, -2), targets.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    lg.unschedule(model)
    return losses


def work(rank: int, port: int, tasks: list[str], num_steps: int, results: "multiprocessing.Queue[Curve]") -> None:
    """One rank: every task by every scheme."""
    torch.set_num_threads(1)
    lg.init(rank=rank, num_workers=NUM_WORKERS, conductor=f"127.0.0.1:{port}")
    for name in tasks:
        for scheme in TASKS[name].schemes:
            losses = lg.allreduce(torch.tensor(train(TASKS[name], scheme, num_steps), dtype=torch.float64))
            if rank == 0:
                results.put(Curve(task=name, scheme=scheme, losses=losses.tolist()))
    lg.shutdown()


def measure(tasks: list[str], num_steps: int) -> Iterator[Curve]:
    context = multiprocessing.get_context("spawn")
    results: multiprocessing.Queue[Curve] = context.Queue()
    port = free_port()
    ranks = [context.Process(target=work, args=(rank, port, tasks, num_steps, results)) for rank in range(NUM_WORKERS)]
    for rank in ranks:
        rank.start()
    for _ in range(sum(len(TASKS[name].schemes) for name in tasks)):
        yield results.get(timeout=300)
    for rank in ranks:
        rank.join()


def print_table(curves: list[Curve]) -> None:
    table = Table("task", "compression", "final loss", "over plain")
    plain = {curve.task: curve.final for curve in curves if curve.scheme == "none"}
    for curve in curves:
        over = f"{curve.final - plain[curve.task]:+.4f}" if curve.task in plain else ""
        table.add_row(curve.task, curve.scheme, f"{curve.final:.4f}", over)
    Console().print(table)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tasks", nargs="*", default=list(TASKS), help=f"of {', '.join(TASKS)}; all by default")
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--out", type=Path, help="append the curves to this file, a JSON object a line")
    parser.add_argument("--plot", type=Path, nargs=2, help="draw the curves of a file as an SVG, and train nothing")
    options = parser.parse_args()
    if options.plot is not None:
        draw(*options.plot)
        return
    for curve in measure(options.tasks, options.steps):
        print(f"{curve.task:16} {curve.scheme:22}{curve.final:.4f}", flush=True)
        if options.out is not None:
            with options.out.open("a") as file:
                file.write(json.dumps(asdict(curve)) + "\n")


def draw(source: Path, target: Path) -> None:
    """The curves of a file, as a table and as an SVG."""
    curves = [Curve(**json.loads(line)) for line in source.read_text().splitlines()]
    print_table(curves)
    panels: dict[str, dict[str, list[float]]] = {}
    for curve in curves:
        panels.setdefault(f"{curve.task}, {len(curve.losses):,} steps", {})[curve.scheme] = smooth(curve.losses)
    target.write_text(plot(panels, "loss"))


def smooth(losses: list[float], span: int = 20) -> list[float]:
    """Means of a few steps each: what the eye can follow."""
    return [statistics.fmean(losses[first : first + span]) for first in range(0, len(losses), span)]


if __name__ == "__main__":
    main()
