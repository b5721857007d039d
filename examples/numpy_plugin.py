"""Legato under a framework of your own: a toy in numpy, and all that a plugin has to do.

torchrun --nproc-per-node 2 examples/numpy_plugin.py

The toy has layers with weights, a forward and a backward pass. Its plugin, `Scheduled`, says when a gradient is ready,
and holds each layer's next forward pass back until the layer's own average has arrived and its weights are updated:
a dependency proxy. Parts, order, credit and preemption are the engine's (docs/plugins.md).
"""

import argparse
import os
import time
from typing import Unpack

import numpy as np
from numpy.typing import NDArray
from sklearn.datasets import load_digits

from legato.exchange import Exchange, ExchangeOptions, TensorSpec, open_exchange
from legato.job import Job
from legato.settings import read_settings

Array = NDArray[np.float32]


# ---- the framework ----


class Dense:
    """A layer; all but the last one end with a ReLU."""

    def __init__(self, rng: np.random.Generator, num_in: int, num_out: int, *, is_last: bool = False) -> None:
        self.weight: Array = rng.normal(0, (2 / num_in) ** 0.5, (num_in + 1, num_out)).astype(np.float32)
        self.gradient: Array = np.zeros_like(self.weight)
        self._is_last = is_last

    def forward(self, inputs: Array) -> Array:
        self._inputs = np.concatenate([inputs, np.ones((len(inputs), 1), np.float32)], axis=1)
        outputs = self._inputs @ self.weight
        self._passes = np.ones_like(outputs) if self._is_last else (outputs > 0).astype(np.float32)
        return outputs * self._passes

    def backward(self, error: Array) -> Array:
        error = error * self._passes
        np.matmul(self._inputs.T, error, out=self.gradient)
        return error @ self.weight[:-1].T

    def update(self, rate: float) -> None:
        self.weight -= rate * self.gradient


def cross_entropy(logits: Array, labels: NDArray[np.int64]) -> tuple[float, Array]:
    """The loss, and its derivative."""
    shifted = np.exp(logits - logits.max(axis=1, keepdims=True))
    chances = shifted / shifted.sum(axis=1, keepdims=True)
    rows = np.arange(len(labels))
    loss = -np.log(chances[rows, labels]).mean()
    chances[rows, labels] -= 1
    return float(loss), chances / np.float32(len(labels))


# ---- its plugin ----


class Scheduled:
    """The layers of a network, whose gradients are averaged by legato."""

    def __init__(self, job: Job, layers: list[Dense], rate: float, **options: Unpack[ExchangeOptions]) -> None:
        self._layers = layers
        self._rate = rate
        self._is_due = [False] * len(layers)
        self.exchange: Exchange | None = None
        if job.size > 1:
            for place, layer in enumerate(layers):
                job.group.broadcast(f"weight.{place}", layer.weight, root=0)
            # In the order of first use, which is that of the forward pass: what comes first is most urgent.
            specs = [
                TensorSpec(f"layer.{place}", layer.gradient.shape, "float32") for place, layer in enumerate(layers)
            ]
            self.exchange = open_exchange(job, specs, **options)

    def notify_ready(self, place: int) -> None:
        """A gradient is there; it leaves as the plan says, and its average comes back to the same memory."""
        gradient = self._layers[place].gradient
        if self.exchange is not None:
            self.exchange.add(place, gradient.ctypes.data, gradient.nbytes, False, gradient)
        self._is_due[place] = True

    def wait_finish(self, place: int) -> None:
        """The layer is used next: its update has to come first, and waits for its own average alone."""
        if self._is_due[place]:
            if self.exchange is not None:
                self.exchange.wait(place)
            self._layers[place].update(self._rate)
            self._is_due[place] = False


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--batch", type=int, default=32, help="images of each worker and step")
    parser.add_argument("--rate", type=float, default=0.1)
    options = parser.parse_args()
    with Job(read_settings(os.environ)) as job:
        rng = np.random.default_rng(job.rank)  # each worker's own weights; the broadcast makes them rank 0's
        layers = [Dense(rng, 64, 256), Dense(rng, 256, 256), Dense(rng, 256, 10, is_last=True)]
        scheduled = Scheduled(job, layers, options.rate)
        digits = load_digits()
        images, labels = (digits.data / 16).astype(np.float32), digits.target.astype(np.int64)
        begin_s = time.perf_counter()
        for step in range(options.steps):
            first = (step * job.size + job.rank) * options.batch
            chosen = np.arange(first, first + options.batch) % len(images)
            values = images[chosen]
            for place, layer in enumerate(layers):
                scheduled.wait_finish(place)
                values = layer.forward(values)
            loss, error = cross_entropy(values, labels[chosen])
            for place in reversed(range(len(layers))):
                error = layers[place].backward(error)
                scheduled.notify_ready(place)
            if step % 10 == 0 or step == options.steps - 1:
                mean = np.array([loss], np.float32)
                if job.size > 1:
                    job.group.push_pull("loss", mean, reduction="average")
                if job.rank == 0:
                    print(f"step {step:4d}  loss {mean[0]:.4f}", flush=True)
        for place in range(len(layers)):
            scheduled.wait_finish(place)
        if job.rank == 0:
            workers = "1 worker" if job.size == 1 else f"{job.size} workers"
            print(f"legato, {workers}: {(time.perf_counter() - begin_s) / options.steps * 1e3:.1f} ms a step")


if __name__ == "__main__":
    main()
