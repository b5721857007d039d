"""ResNet50, VGG16 or AlexNet on one batch of random images, to see the speed of a large model.

torchrun --nproc-per-node 2 examples/images.py --model vgg16          # legato
torchrun --nproc-per-node 2 examples/images.py --model vgg16 --ddp    # torch's DistributedDataParallel
"""

import argparse

import torch
from models import IMAGE_MODELS
from progress import Progress
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import legato.torch as lg


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=IMAGE_MODELS, default="resnet50")
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--batch", type=int, default=4, help="images of each worker and step")
    parser.add_argument("--size", type=int, default=64, help="pixels of a side; the papers' is 224")
    parser.add_argument("--lr", type=float, default=0.001)
    parser.add_argument("--ddp", action="store_true", help="DistributedDataParallel over Gloo instead of legato")
    return parser.parse_args()


def main() -> None:
    options = arguments()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    lg.init()

    model: nn.Module = IMAGE_MODELS[options.model]()
    optimizer: torch.optim.Optimizer = torch.optim.SGD(model.parameters(), lr=options.lr, momentum=0.9)
    if options.ddp and lg.size() > 1:
        torch.distributed.init_process_group("gloo")
        model = DistributedDataParallel(model)
    else:
        model, optimizer = lg.schedule(model, optimizer)

    torch.manual_seed(lg.rank())  # every worker has images of its own
    images = torch.randn(options.batch, 3, options.size, options.size)
    labels = torch.randint(1000, (options.batch,))
    progress = Progress(options.steps, options.batch, "images")
    for _ in range(options.steps):
        loss = nn.functional.cross_entropy(model(images), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        progress.step(loss)
    progress.summary("DDP" if options.ddp else "legato")


if __name__ == "__main__":
    main()
