"""A training script in ByteScheduler's manner: Horovod's optimizer, scheduled."""

import argparse

import bytescheduler.pytorch.horovod as bsc
import horovod.torch as hvd
import torch
from torch import nn, optim
from torch.nn import functional

parser = argparse.ArgumentParser()
parser.add_argument("--batch-size", type=int, required=True)
args = parser.parse_args()

hvd.init()
torch.set_default_dtype(torch.float64)

made = torch.Generator().manual_seed(13)
inputs, targets = torch.randn(32, 6, generator=made), torch.randn(32, 2, generator=made)

model = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 2))
with torch.no_grad():
    for parameter in model.parameters():
        parameter.fill_(0.1 if hvd.rank() == 0 else 7.0)
optimizer = optim.SGD(model.parameters(), lr=0.05)
bsc.init()
optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
steps = 64 // (args.batch_size * hvd.size())
optimizer = bsc.ScheduledOptimizer(model, optimizer, steps)
hvd.broadcast_parameters(model.state_dict(), root_rank=0)
hvd.broadcast_optimizer_state(optimizer, root_rank=0)

for step in range(steps):
    first = (step * hvd.size() + hvd.rank()) * args.batch_size % 32
    optimizer.zero_grad()
    loss = functional.mse_loss(model(inputs[first : first + args.batch_size]), targets[first : first + args.batch_size])
    loss.backward()
    optimizer.step()

mean = hvd.allreduce(loss.detach(), name="loss")
if hvd.rank() == 0:
    print(f"loss {mean.item():.12f} of {hvd.size()}")
