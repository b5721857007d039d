"""A small GPT that learns to write like this repository's own texts, a character at a time.

torchrun --nproc-per-node 2 examples/gpt.py          # legato
torchrun --nproc-per-node 2 examples/gpt.py --ddp    # torch's DistributedDataParallel, for comparison
"""

import argparse
from pathlib import Path

import torch
from models import GPT
from progress import Progress
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import legato.torch as lg

ROOT = Path(__file__).parent.parent


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--batch", type=int, default=8, help="sequences of each worker and step")
    parser.add_argument("--length", type=int, default=64, help="characters of a sequence")
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--depth", type=int, default=4)
    parser.add_argument("--heads", type=int, default=4)
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--warm-up", type=int, default=20, help="steps over which the learning rate rises")
    parser.add_argument("--clip", type=float, help="largest norm of all gradients together")
    parser.add_argument("--text", type=Path, default=ROOT / "LICENSE")
    parser.add_argument("--ddp", action="store_true", help="DistributedDataParallel over Gloo instead of legato")
    return parser.parse_args()


def main() -> None:
    options = arguments()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    lg.init()
    text = torch.tensor(list(options.text.read_bytes()))

    model: nn.Module = GPT(
        vocabulary=256, length=options.length, width=options.width, heads=options.heads, depth=options.depth
    )
    optimizer: torch.optim.Optimizer = torch.optim.AdamW(model.parameters(), lr=options.lr)
    if options.ddp and lg.size() > 1:
        torch.distributed.init_process_group("gloo")
        model = DistributedDataParallel(model)
    else:
        model, optimizer = lg.schedule(model, optimizer)
    warm_up = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min((step + 1) / options.warm_up, 1.0))

    progress = Progress(options.steps, options.batch * options.length, "characters")
    sampler = torch.Generator().manual_seed(lg.rank())
    for _ in range(options.steps):
        starts = torch.randint(len(text) - options.length, (options.batch, 1), generator=sampler)
        sequences = text[starts + torch.arange(options.length + 1)]
        logits = model(sequences[:, :-1])
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), sequences[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        if options.clip is not None:
            lg.clip_grad_norm_(model.parameters(), options.clip)
        optimizer.step()
        warm_up.step()
        progress.step(loss)
    progress.summary("DDP" if options.ddp else "legato")


if __name__ == "__main__":
    main()
