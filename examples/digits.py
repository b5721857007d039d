"""Handwritten digits, as bundled with scikit-learn, and a convolutional classifier.

torchrun --nproc-per-node 2 examples/digits.py          # legato
torchrun --nproc-per-node 2 examples/digits.py --ddp    # torch's DistributedDataParallel, for comparison
"""

import argparse

import torch
from progress import Progress
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import legato.torch as lg


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--batch", type=int, default=32, help="images of each worker and step")
    parser.add_argument("--lr", type=float, default=0.05)
    parser.add_argument("--ddp", action="store_true", help="DistributedDataParallel over Gloo instead of legato")
    return parser.parse_args()


def classifier() -> nn.Sequential:
    return nn.Sequential(
        *(nn.Conv2d(1, 32, 3, padding=1), nn.ReLU()),
        *(nn.Conv2d(32, 64, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Flatten(), nn.Linear(64 * 4 * 4, 256), nn.ReLU(), nn.Linear(256, 10)),
    )


def main() -> None:
    options = arguments()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    lg.init()
    images, labels = map(torch.from_numpy, load_digits(return_X_y=True))
    images = images.float().view(-1, 1, 8, 8) / 16
    test, train = slice(0, 297), slice(297, None)

    model: nn.Module = classifier()
    optimizer: torch.optim.Optimizer = torch.optim.SGD(model.parameters(), lr=options.lr, momentum=0.9)
    if options.ddp and lg.size() > 1:
        torch.distributed.init_process_group("gloo")
        model = DistributedDataParallel(model)
    else:
        model, optimizer = lg.schedule(model, optimizer)

    progress = Progress(options.steps, options.batch, "images")
    sampler = torch.Generator().manual_seed(lg.rank())
    for _ in range(options.steps):
        batch = torch.randint(len(images[train]), (options.batch,), generator=sampler)
        loss = nn.functional.cross_entropy(model(images[train][batch]), labels[train][batch])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        progress.step(loss)
    progress.summary("DDP" if options.ddp else "legato")

    model.eval()
    with torch.no_grad():
        accuracy = (model(images[test]).argmax(1) == labels[test]).float().mean().item()
    progress.say(f"accuracy {accuracy:.3f} on {len(images[test])} digits not trained on")


if __name__ == "__main__":
    main()
