"""What bench.recovery starts on every rank: digits, step after step. FOLDER gets a line for each step that a rank has
completed: when, its number, the ranks that train, how often all were started again, and a digest of the weights.

With legato and torchft a rank that starts joins the others. With DDP all ranks start again together, from a checkpoint
that rank 0 writes after every step.
"""

import os
import sys
import time
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

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
    train = TRAIN[system]
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


def with_torchft(model: nn.Module, optimizer: torch.optim.Optimizer, loss: Loss, tell: Tell, folder: Path) -> None:
    """One worker is one of torchft's replica groups, with a store of its own.

    Not through its `DistributedDataParallel`, which in 0.2.0 fails an assertion once an average has failed.
    """
    from torchft import Manager, ProcessGroupGloo

    del folder

    def load(state: dict[str, Any]) -> None:
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])

    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)  # type: ignore[attr-defined]
    manager = Manager(
        pg=ProcessGroupGloo(),
        load_state_dict=load,
        state_dict=lambda: {"model": model.state_dict(), "optimizer": optimizer.state_dict()},
        min_replica_size=int(os.environ["TORCHFT_MIN_REPLICAS"]),
        rank=0,
        world_size=1,
        store_addr="127.0.0.1",
        store_port=store.port,
        replica_id=os.environ["TORCHFT_REPLICA"],
        hostname="127.0.0.1",
    )
    while True:
        manager.start_quorum()
        optimizer.zero_grad()
        loss(model, manager.current_step(), int(os.environ["TORCHFT_REPLICA"])).backward()
        averages = [manager.allreduce(weight.grad) for weight in model.parameters() if weight.grad is not None]
        for average in averages:
            average.wait()
        if manager.should_commit():
            optimizer.step()
            tell(manager.current_step(), manager.num_participants())


TRAIN = {"legato": with_legato, "torchrun": with_ddp, "torchft": with_torchft}

if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
