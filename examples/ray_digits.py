"""Handwritten digits, as bundled with scikit-learn, with Ray Train.

python examples/ray_digits.py                # legato, two workers
python examples/ray_digits.py --servers 1    # and a process that sums for them
python examples/ray_digits.py --ddp          # Ray's own: torch's DistributedDataParallel
"""

import argparse
import tempfile
from typing import Any

import ray
import torch
from ray.train import RunConfig, ScalingConfig
from ray.train.torch import TorchConfig, TorchTrainer, prepare_data_loader, prepare_model
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import legato.torch as lg
from legato.integrations.ray import LegatoConfig


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--servers", type=int, default=0, help="extra processes that sum for the workers")
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--batch", type=int, default=32, help="images of each worker and step")
    parser.add_argument("--lr", type=float, default=0.05)
    parser.add_argument("--ddp", action="store_true", help="TorchConfig and prepare_model in place of legato")
    return parser.parse_args()


def train(options: dict[str, Any]) -> list[float]:
    """On each worker: the mean loss of the last batch of each epoch."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    images, labels = map(torch.from_numpy, load_digits(return_X_y=True))
    data = TensorDataset(images.float() / 16, labels)
    loader = prepare_data_loader(DataLoader(data, options["batch"], shuffle=True, drop_last=True))
    model: nn.Module = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 10))
    # Ray moves the model to its device; only its own strategies wrap it.
    model = prepare_model(model, parallel_strategy="ddp" if options["ddp"] else None)
    optimizer: torch.optim.Optimizer = torch.optim.SGD(model.parameters(), lr=options["lr"], momentum=0.9)
    if not options["ddp"]:
        model, optimizer = lg.schedule(model, optimizer)
    losses = []
    for epoch in range(options["epochs"]):
        loader.sampler.set_epoch(epoch)
        for batch, targets in loader:
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(batch), targets)
            loss.backward()
            optimizer.step()
        mean = loss.detach().clone()
        torch.distributed.all_reduce(mean)
        losses.append(mean.item() / torch.distributed.get_world_size())
        ray.train.report({"loss": losses[-1]})
    return losses


def main() -> None:
    options = arguments()
    with tempfile.TemporaryDirectory() as folder:
        trainer = TorchTrainer(
            train,
            train_loop_config=vars(options),
            torch_config=TorchConfig() if options.ddp else LegatoConfig(servers=options.servers),
            scaling_config=ScalingConfig(num_workers=options.workers, use_gpu=torch.cuda.is_available()),
            run_config=RunConfig(storage_path=folder),
        )
        for epoch, loss in enumerate(trainer.fit().return_value):
            print(f"epoch {epoch}  loss {loss:.4f}")


if __name__ == "__main__":
    main()
