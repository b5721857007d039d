"""What bench.recovery starts on every rank: digits, step after step. FOLDER gets a line for each step that a rank has
completed: when, its number, the ranks that train, how often all were started again, and a digest of the weights.

With legato a rank that starts joins the others. With DDP all ranks start again together, from a checkpoint that rank 0
writes after every step.
"""

import os
import sys
import time
import zlib
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

BATCH = 32


def main(system: str, folder: Path) -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    images, labels = torch.load(folder / "digits.pt")
    model = nn.Sequential(nn.Linear(64, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 10))
    optimizer = torch.optim.Adam(model.parameters())
    train = with_legato if system == "legato" else with_ddp
    turn = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    with (folder / f"{os.getpid()}.log").open("w", buffering=1) as log:

        def loss(forward: nn.Module, step: int, rank: int) -> torch.Tensor:
            sampler = torch.Generator().manual_seed(step * 64 + rank)
            batch = torch.randint(len(images), (BATCH,), generator=sampler)
            return cross_entropy(forward(images[batch]), labels[batch])

        def tell(step: int, size: int) -> None:
            digest = 0
            for weight in model.state_dict().values():
                digest = zlib.crc32(weight.numpy().tobytes(), digest)
            log.write(f"{time.monotonic():.6f} {step} {size} {turn} {digest}\n")

        train(model, optimizer, loss, tell, folder)


Loss = Callable[[nn.Module, int, int], torch.Tensor]
Tell = Callable[[int, int], None]


def with_legato(model: nn.Module, optimizer: torch.optim.Optimizer, loss: Loss, tell: Tell, folder: Path) -> None:
    import legato.torch as lg

    del folder
    lg.init()
    lg.schedule(model, optimizer)
    while True:
        optimizer.zero_grad()
        loss(model, lg.num_steps(model), lg.rank()).backward()
        optimizer.step()
        tell(lg.num_steps(model), lg.size())


def with_ddp(model: nn.Module, optimizer: torch.optim.Optimizer, loss: Loss, tell: Tell, folder: Path) -> None:
    dist.init_process_group("gloo")
    checkpoint, step = folder / "checkpoint.pt", 0
    if checkpoint.exists():
        saved = torch.load(checkpoint)
        step = saved["step"]
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
    wrapped = DistributedDataParallel(model)
    while True:
        optimizer.zero_grad()
        loss(wrapped, step, dist.get_rank()).backward()
        optimizer.step()
        step += 1
        tell(step, dist.get_world_size())
        if dist.get_rank() == 0:
            new = checkpoint.with_suffix(".new")
            torch.save({"step": step, "model": model.state_dict(), "optimizer": optimizer.state_dict()}, new)
            new.replace(checkpoint)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
