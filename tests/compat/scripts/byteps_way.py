"""A training script in BytePS's manner: its optimizer, gradients that cross the barrier, and its DDP, in turn."""

import argparse
import os

import byteps.torch as bps
import byteps.torch.cross_barrier as crossing
import torch
from byteps.torch.parallel import DistributedDataParallel
from torch import nn, optim
from torch.nn import functional

parser = argparse.ArgumentParser()
parser.add_argument("--batch-size", type=int, required=True)
args = parser.parse_args()

bps.init()
torch.set_default_dtype(torch.float64)
assert "BYTEPS_LOCAL_RANK" not in os.environ or bps.local_rank() == int(os.environ["BYTEPS_LOCAL_RANK"])

made = torch.Generator().manual_seed(12)
inputs, targets = torch.randn(32, 6, generator=made), torch.randn(32, 2, generator=made)
steps = 64 // (args.batch_size * bps.size())

for way in ("optimizer", "barrier", "ddp"):
    model = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 2))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.fill_(0.1 if bps.rank() == 0 else 7.0)
    optimizer = optim.Adam(model.parameters(), lr=0.02)
    if way == "optimizer":
        optimizer = bps.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
    elif way == "barrier":
        optimizer = crossing.CrossBarrier(
            model,
            optimizer,
            named_parameters=model.named_parameters(),
            compression=crossing.Compression.none,
            num_steps=steps,
        )
    else:
        model = DistributedDataParallel(model, device_ids=[bps.local_rank()])
    if way != "ddp":
        bps.broadcast_parameters(model.state_dict(), root_rank=0)
        bps.broadcast_optimizer_state(optimizer, root_rank=0)

    for step in range(steps):
        first = (step * bps.size() + bps.rank()) * args.batch_size % 32
        batch = slice(first, first + args.batch_size)
        optimizer.zero_grad()
        loss = functional.mse_loss(model(inputs[batch]), targets[batch])
        loss.backward()
        optimizer.step()

    mean = bps.push_pull(loss.detach(), average=True, name=f"loss {way}")
    if bps.rank() == 0:
        print(f"loss {mean.item():.12f} of {bps.size()}")
