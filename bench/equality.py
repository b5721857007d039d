"""Does training on an accelerator give DDP's weights? Several workers share one, over loopback.

    python -m bench.equality --out bench/results/equality.jsonl

A Llama-like model, the same data for DDP over Gloo and for legato, 12 steps: the largest difference of any weight from
DDP's, and of any two ranks. Two runs of DDP give the same bits, but only because they add in the same order. Runs of
DDP with other buckets, or with the ranks' data dealt in another order, differ from DDP in nothing but the order of
additions: they are the measure for what a difference of the last bits becomes in 12 steps (AdamW divides by the
gradient's own size, so tiny gradients count as much as large ones).

So there are cases with exact sums, too: each rank rounds its gradients to whole multiples of 2^-22, of which float32
adds any four without rounding, in any order. There nothing but the order may differ, so nothing at all does.
"""

import argparse
import json
import multiprocessing
import os
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional

import legato.torch as lg
from bench.models import Llama
from bench.testbed.crew import torchrun_environment

_SPAWN = multiprocessing.get_context("spawn")
STEPS = 12
WORKERS = 4
PORT = 29511
GRAIN = 2.0**-22
"""Of gradients that are added exactly: with magnitudes up to 1, a sum of four has 24 bits."""
MODELS: dict[str, dict[str, int]] = {
    "134M": {},
    "6 x 512": {"width": 512, "heads": 8, "hidden": 1408, "depth": 6, "vocabulary": 8000},
}
CASES = [
    *(
        ("6 x 512", optimizer, autocast, False)
        for optimizer in ("sgd", "adamw", "fused adamw")
        for autocast in (False, True)
    ),
    ("134M", "sgd", False, False),
    ("134M", "fused adamw", True, False),
    ("6 x 512", "sgd", True, True),
    ("6 x 512", "adamw", True, True),
    ("134M", "fused adamw", True, True),
]
"""Model, optimizer, autocast, exact sums."""
OPTIMIZERS: dict[str, tuple[type[torch.optim.Optimizer], dict[str, Any]]] = {
    "sgd": (torch.optim.SGD, {"lr": 0.05, "momentum": 0.9}),
    "adamw": (torch.optim.AdamW, {"lr": 1e-4}),
    "fused adamw": (torch.optim.AdamW, {"lr": 1e-4, "fused": True}),
}
DDP: dict[str, tuple[int | None, int]] = {
    "ddp again": (None, 0),
    "ddp, buckets of 1 MB": (1, 0),
    "ddp, buckets of 3 MB": (3, 0),
    "ddp, buckets of 10 MB": (10, 0),
    "ddp, data of the next rank": (None, 1),
    "ddp, data of the next but one": (None, 2),
}
"""Megabytes of a bucket (DDP's own are 25: in others every element lies in another place, and Gloo's ring adds it in
another order), and by how many ranks the data are turned."""
LEGATO: dict[str, dict[str, Any]] = {
    "native": {"transport": "native"},
    "native, fifo": {"transport": "native", "policy": "fifo"},
    "c10d": {"transport": "c10d"},
    "c10d, wfbp": {"transport": "c10d", "policy": "wfbp"},
    "c10d, rsag": {"transport": "c10d", "policy": "rsag"},
}


@dataclass(frozen=True, kw_only=True)
class Row:
    model: str
    optimizer: str
    autocast: bool
    exact: bool
    system: str
    difference: float
    """The largest of any weight from DDP's."""
    between_ranks: float
    """The largest of any weight between two ranks."""
    loss: float
    ddp_loss: float


def rounded(gradient: torch.Tensor) -> torch.Tensor:
    return gradient.clamp(-1.0, 1.0).div(GRAIN).round().mul(GRAIN)


def train(model_name: str, optimizer_name: str, autocast: bool, exact: bool, system: str) -> tuple[torch.Tensor, float]:
    torch.manual_seed(0)
    plain = Llama(**MODELS[model_name]).cuda()
    if exact:
        for parameter in plain.parameters():
            parameter.register_hook(rounded)
    make, values = OPTIMIZERS[optimizer_name]
    optimizer = make(plain.parameters(), **values)
    model: nn.Module = plain
    bucket_cap_mb, turned = DDP.get(system, (None, 0))
    if options := LEGATO.get(system):
        model, optimizer = lg.schedule(plain, optimizer, tuner="off", **options)
    else:
        model = nn.parallel.DistributedDataParallel(plain, bucket_cap_mb=bucket_cap_mb)
    loss = torch.zeros(())
    for step in range(STEPS):
        generator = torch.Generator("cuda").manual_seed(100 * step + (lg.rank() + turned) % WORKERS)
        tokens = torch.randint(200, (2, 257), device="cuda", generator=generator)
        optimizer.zero_grad()
        with torch.autocast("cuda", torch.bfloat16, autocast):
            logits = model(tokens[:, :-1])
            loss = functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
        loss.backward()
        optimizer.step()
    if options:
        lg.unschedule(model)
    weights = torch.cat([parameter.detach().reshape(-1) for parameter in plain.parameters()])
    return weights, loss.item()


def work(rank: int, out: Path) -> None:
    os.environ.update(torchrun_environment(rank, WORKERS, "127.0.0.1", PORT, on_one_host=True))
    dist.init_process_group("gloo")
    lg.init()
    rows = []
    for model, optimizer, autocast, exact in CASES:
        expected, ddp_loss = train(model, optimizer, autocast, exact, "ddp")
        for system in (*DDP, *LEGATO):
            weights, loss = train(model, optimizer, autocast, exact, system)
            low, high = weights.clone(), weights.clone()
            dist.all_reduce(low, dist.ReduceOp.MIN)
            dist.all_reduce(high, dist.ReduceOp.MAX)
            row = Row(
                model=model,
                optimizer=optimizer,
                autocast=autocast,
                exact=exact,
                system=system,
                difference=(weights - expected).abs().max().item(),
                between_ranks=(high - low).max().item(),
                loss=loss,
                ddp_loss=ddp_loss,
            )
            rows.append(json.dumps(asdict(row)))
            if rank == 0:
                print(rows[-1], flush=True)
    lg.shutdown()
    dist.destroy_process_group()
    if rank == 0:
        with out.open("a") as file:
            file.writelines(f"{row}\n" for row in rows)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.equality", description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="append the rows to this file, a JSON object a line")
    out = parser.parse_args().out
    processes = [_SPAWN.Process(target=work, args=(rank, out)) for rank in range(WORKERS)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    sys.exit(any(process.exitcode for process in processes))


if __name__ == "__main__":
    main()
