"""Handwritten digits, as bundled with scikit-learn, and a Gluon classifier on MXNet's parameter servers.

python examples/mxnet/digits.py                     # legato: starts a scheduler, 2 servers and 2 workers here
python examples/mxnet/digits.py --plain             # MXNet's own dist_sync, for comparison
python examples/mxnet/digits.py --server-optimizer  # the optimizer runs on the servers
"""

import argparse
import os
import socket
import subprocess
import sys

import numpy as np


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--batch", type=int, default=32, help="images of each worker and step")
    parser.add_argument("--lr", type=float, default=0.05)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--plain", action="store_true", help="MXNet's dist_sync without legato")
    parser.add_argument("--server-optimizer", action="store_true", help="update weights on the servers")
    return parser.parse_args()


def train(options: argparse.Namespace) -> None:
    """What one worker does."""
    import mxnet as mx
    from mxnet import autograd, gluon
    from sklearn.datasets import load_digits

    from legato.mxnet import ScheduledKVStore

    kv = mx.kv.create("dist_sync")
    if not options.plain:
        kv = ScheduledKVStore(kv)

    images, labels = load_digits(return_X_y=True)
    images = images.reshape(-1, 1, 8, 8).astype("float32") / 16
    test, train = slice(0, 297), slice(297, None)
    net = gluon.nn.HybridSequential()
    net.add(gluon.nn.Conv2D(32, 3, padding=1, activation="relu"), gluon.nn.Conv2D(64, 3, padding=1, activation="relu"))
    net.add(gluon.nn.MaxPool2D(2), gluon.nn.Dense(256, activation="relu"), gluon.nn.Dense(10))
    net.initialize(mx.init.Xavier())
    trainer = gluon.Trainer(
        net.collect_params(),
        "sgd",
        {"learning_rate": options.lr, "momentum": 0.9},
        kvstore=kv,
        update_on_kvstore=options.server_optimizer,
    )
    cross_entropy = gluon.loss.SoftmaxCrossEntropyLoss()
    random = np.random.RandomState(kv.rank)
    for step in range(options.steps):
        batch = random.randint(len(images[train]), size=options.batch)
        with autograd.record():
            losses = cross_entropy(net(mx.nd.array(images[train][batch])), mx.nd.array(labels[train][batch]))
        losses.backward()
        trainer.step(options.batch * kv.num_workers)
        if kv.rank == 0 and step % 20 == 0:
            print(f"step {step:4}  loss {losses.mean().asscalar():.3f}", flush=True)
    right = net(mx.nd.array(images[test])).argmax(axis=1).asnumpy() == labels[test]
    if kv.rank == 0:
        print(f"accuracy on images not trained on: {right.mean():.3f}", flush=True)


def launch(options: argparse.Namespace) -> None:
    """Start the job on this machine: every process runs this script, and its role says what it does."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    environment = {
        **os.environ,
        "DMLC_PS_ROOT_URI": "127.0.0.1",
        "DMLC_PS_ROOT_PORT": str(port),
        "DMLC_NODE_HOST": "127.0.0.1",
        "DMLC_NUM_WORKER": str(options.workers),
        "DMLC_NUM_SERVER": str(options.workers),
        "OMP_NUM_THREADS": "1",
    }
    roles = ["scheduler", *["server"] * options.workers, *["worker"] * options.workers]
    processes = [
        subprocess.Popen([sys.executable, *sys.argv], env={**environment, "DMLC_ROLE": role}) for role in roles
    ]
    codes = [process.wait() for process in reversed(processes)]
    sys.exit(max(map(abs, codes)))


def main() -> None:
    options = arguments()
    role = os.environ.get("DMLC_ROLE")
    if role is None:
        launch(options)
    elif role == "worker":
        train(options)
    else:
        import mxnet  # noqa: F401 - a scheduler and a server serve here until the workers are done


if __name__ == "__main__":
    main()
