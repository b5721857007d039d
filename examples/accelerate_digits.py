"""Handwritten digits, as bundled with scikit-learn, with Hugging Face Accelerate.

torchrun --nproc-per-node 2 examples/accelerate_digits.py          # legato
torchrun --nproc-per-node 2 examples/accelerate_digits.py --ddp    # Accelerate's own DistributedDataParallel
"""

import argparse

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from legato.integrations.accelerate import LegatoAccelerator


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--batch", type=int, default=32, help="images of each worker and step")
    parser.add_argument("--lr", type=float, default=0.05)
    parser.add_argument("--ddp", action="store_true", help="Accelerator in place of LegatoAccelerator")
    return parser.parse_args()


def main() -> None:
    options = arguments()
    accelerator = (Accelerator if options.ddp else LegatoAccelerator)(cpu=not torch.cuda.is_available())
    set_seed(0)
    images, labels = map(torch.from_numpy, load_digits(return_X_y=True))
    images = images.float() / 16
    test, train = slice(0, 297), slice(297, None)

    model: nn.Module = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 10))
    optimizer: torch.optim.Optimizer = torch.optim.SGD(model.parameters(), lr=options.lr, momentum=0.9)
    loader = DataLoader(TensorDataset(images[train], labels[train]), options.batch, shuffle=True, drop_last=True)
    tests = DataLoader(TensorDataset(images[test], labels[test]), options.batch)
    model, optimizer, loader, tests = accelerator.prepare(model, optimizer, loader, tests)

    for epoch in range(options.epochs):
        model.train()
        for batch, targets in loader:
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(batch), targets)
            accelerator.backward(loss)
            accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
        accelerator.print(f"epoch {epoch}  loss {accelerator.gather(loss.detach()).mean().item():.4f}")

    model.eval()
    right = []
    with torch.no_grad():
        for batch, targets in tests:
            right.append(accelerator.gather_for_metrics(model(batch).argmax(1) == targets))
    accelerator.print(f"accuracy {torch.cat(right).float().mean().item():.3f} on {len(images[test])} digits")
    # torch's DDP has to go before its process group: the last to hold a group of Gloo may wait for it for ever.
    model, optimizer = accelerator.free_memory(model, optimizer)
    accelerator.end_training()


if __name__ == "__main__":
    main()
