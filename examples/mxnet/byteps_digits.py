"""Handwritten digits, as bundled with scikit-learn, and a Gluon classifier in BytePS's style over legato's engine.

python examples/mxnet/byteps_digits.py                        # starts 2 workers here
python examples/mxnet/byteps_digits.py --compressor onebit    # gradients in one bit for each element
"""

import argparse
import os
import socket
import subprocess
import sys
import time

import numpy as np


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--batch", type=int, default=32, help="images of each worker and step")
    parser.add_argument("--lr", type=float, default=0.05)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--compressor", choices=["onebit", "topk", "randomk", "dithering"])
    return parser.parse_args()


def train(options: argparse.Namespace) -> None:
    """What one worker does."""
    import mxnet as mx
    from mxnet import autograd, gluon
    from sklearn.datasets import load_digits

    import legato.mxnet as bps

    bps.init()
    images, labels = load_digits(return_X_y=True)
    images = images.reshape(-1, 1, 8, 8).astype("float32") / 16
    test, train = slice(0, 297), slice(297, None)
    net = gluon.nn.HybridSequential()
    net.add(gluon.nn.Conv2D(32, 3, padding=1, activation="relu"), gluon.nn.Conv2D(64, 3, padding=1, activation="relu"))
    net.add(gluon.nn.MaxPool2D(2), gluon.nn.Dense(256, activation="relu"), gluon.nn.Dense(10))
    net.initialize(mx.init.Xavier())
    net(mx.nd.zeros((1, 1, 8, 8)))  # shapes are known from here on, so everybody starts from rank 0's weights
    compression = {
        "onebit": {"compressor": "onebit", "scaling": True, "ef": "vanilla"},
        "topk": {"compressor": "topk", "k": 0.05, "ef": "vanilla"},
        "randomk": {"compressor": "randomk", "k": 0.1, "seed": 7, "ef": "vanilla"},
        "dithering": {"compressor": "dithering", "k": 4},
    }
    trainer = bps.DistributedTrainer(
        net.collect_params(),
        "sgd",
        {"learning_rate": options.lr, "momentum": 0.9},
        compression_params=compression.get(options.compressor),
    )
    cross_entropy = gluon.loss.SoftmaxCrossEntropyLoss()
    random = np.random.RandomState(bps.rank())
    begin_s = time.perf_counter()
    for step in range(options.steps):
        batch = random.randint(len(images[train]), size=options.batch)
        with autograd.record():
            losses = cross_entropy(net(mx.nd.array(images[train][batch])), mx.nd.array(labels[train][batch]))
        losses.backward()
        trainer.step(options.batch)
        if bps.rank() == 0 and step % 20 == 0:
            print(f"step {step:4}  loss {losses.mean().asscalar():.3f}", flush=True)
    right = net(mx.nd.array(images[test])).argmax(axis=1).asnumpy() == labels[test]
    if bps.rank() == 0:
        print(f"accuracy on images not trained on: {right.mean():.3f}")
        step_ms = (time.perf_counter() - begin_s) / options.steps * 1e3
        print(f"legato, {bps.size()} workers: {step_ms:.1f} ms a step", flush=True)


def launch(options: argparse.Namespace) -> None:
    """Start the workers on this machine, as torchrun or mpirun would: every process runs this script."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    processes = []
    for rank in range(options.workers):
        place = {
            "RANK": str(rank),
            "WORLD_SIZE": str(options.workers),
            "LOCAL_RANK": str(rank),
            "LOCAL_WORLD_SIZE": str(options.workers),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port),
            "OMP_NUM_THREADS": "1",
        }
        processes.append(subprocess.Popen([sys.executable, *sys.argv], env={**os.environ, **place}))
    sys.exit(max(abs(process.wait()) for process in processes))


def main() -> None:
    options = arguments()
    if "RANK" in os.environ:
        train(options)
    else:
        launch(options)


if __name__ == "__main__":
    main()
