"""A training script in Horovod's manner."""

import argparse

import horovod.torch as hvd
import torch
from torch import nn, optim
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

parser = argparse.ArgumentParser()
parser.add_argument("--batch-size", type=int, required=True)
parser.add_argument("--epochs", type=int, default=2)
args = parser.parse_args()

hvd.init()
torch.manual_seed(hvd.rank())
torch.set_default_dtype(torch.float64)

made = torch.Generator().manual_seed(11)
dataset = TensorDataset(torch.randn(32, 6, generator=made), torch.randn(32, 2, generator=made))
sampler: DistributedSampler[tuple[torch.Tensor, ...]] = DistributedSampler(
    dataset, num_replicas=hvd.size(), rank=hvd.rank(), shuffle=False
)
loader = DataLoader(dataset, batch_size=args.batch_size, sampler=sampler)

model = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 2))
with torch.no_grad():
    for parameter in model.parameters():  # the root's differ from the others', and from one seed to the next
        parameter.fill_(0.1 if hvd.rank() == 0 else 7.0)
optimizer = optim.SGD(model.parameters(), lr=0.05, momentum=0.5)
hvd.broadcast_parameters(model.state_dict(), root_rank=0)
hvd.broadcast_optimizer_state(optimizer, root_rank=0)
optimizer = hvd.DistributedOptimizer(
    optimizer, named_parameters=model.named_parameters(), compression=hvd.Compression.none, op=hvd.Average
)

for _ in range(args.epochs):
    for data, target in loader:
        optimizer.zero_grad()
        loss = functional.mse_loss(model(data), target)
        loss.backward()
        optimizer.step()

mean = hvd.allreduce(loss.detach(), name="loss")
if hvd.rank() == 0:
    print(f"loss {mean.item():.12f} of {hvd.size()}")
