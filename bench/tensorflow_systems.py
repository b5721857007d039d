"""The systems of bench/tensorflow_testbed.py: a Keras model on TensorFlow whose layers sleep inside the graph.

    forward of layer i     reads the activations and weight i, ends after as long as it would compute
    backward of layer i    reads their gradient and what forward made, ends likewise; then gradient i is there

So whatever holds a weight holds its layer, whatever holds a layer holds those after it, and gradients are there one by
one: every system overlaps as it would with real layers. The model is the same for all of them.
"""

import json
import os
import time
from collections.abc import Sequence
from itertools import pairwise
from typing import Any, ClassVar

import keras
import numpy as np
import tensorflow as tf

import legato.tensorflow as lg
from bench.testbed.launch import Launch
from legato.core import Layer, Workload
from legato.transports.buffer import Array
from legato.units import parse_bytes

LAG_S = 2e-3
"""A device that waited for less than this did not wait: its host woke up late."""
_INTER_OP_THREADS = 8
"""A sleeping layer keeps one of them; what runs beside it finds another."""

tf.config.threading.set_inter_op_parallelism_threads(_INTER_OP_THREADS)
tf.config.threading.set_intra_op_parallelism_threads(1)


class Device:
    """An emulated accelerator: one layer after the other, each for its time."""

    def __init__(self) -> None:
        self._end_s = 0.0

    def run(self, seconds: float, carried: Array) -> Array:
        begin_s = time.monotonic()
        self._end_s = (self._end_s if begin_s - self._end_s < LAG_S else begin_s) + seconds
        while (left_s := self._end_s - time.monotonic()) > 0:
            time.sleep(left_s)
        return carried


class SleepingLayer(keras.layers.Layer):  # type: ignore[misc] # keras ships no types
    """A weight of the layer's size, whose gradient is one number everywhere."""

    def __init__(self, layer: Layer, value: float, device: Device) -> None:
        super().__init__()
        self._layer = layer
        self._value = value
        self._device = device

    def build(self, _: Any) -> None:
        self.weight = self.add_weight(shape=(max(self._layer.num_bytes // 4, 1),), initializer="zeros", name="weight")

    def compute_output_shape(self, shape: Any) -> Any:
        return shape

    def call(self, carried: Any) -> Any:
        return self._run(carried, tf.convert_to_tensor(self.weight))

    @tf.custom_gradient  # type: ignore[untyped-decorator]
    def _run(self, carried: Any, weight: Any) -> Any:
        result = self._spend(self._layer.forward_s, carried, weight[:1])

        def backward(gradient: Any) -> Any:
            done = self._spend(self._layer.backward_s, gradient, result)
            return done, tf.fill(weight.shape, self._value * done[0, 0])

        return result, backward

    def _spend(self, seconds: float, carried: Any, *needed: Any) -> Any:
        """`carried` as it is, later, and not before what else is needed is there."""

        def run(carried: Array, *_: Array) -> Array:
            return self._device.run(seconds, carried)

        done = tf.numpy_function(run, [carried, *needed], carried.dtype, stateful=False)
        return tf.ensure_shape(done, carried.shape)


class Trainer:
    """One worker of a system; this one trains alone, and the others are made of it."""

    def __init__(self, rank: int, num_workers: int, workload: Workload) -> None:
        self.rank = rank
        self.num_workers = num_workers
        self._num_steps = 0
        self.model, self.optimizer = self.make(workload, rank + 1.0)
        self._run = tf.function(self.step)

    def make(self, workload: Workload, value: float) -> tuple[keras.Model, keras.optimizers.Optimizer]:
        device = Device()
        layers = [SleepingLayer(layer, value, device) for layer in workload.layers]
        return keras.Sequential([keras.Input((1,)), *layers]), keras.optimizers.SGD(1.0)

    def step(self, x: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(self.model(x))
        gradients = tape.gradient(loss, self.model.trainable_variables)
        self.optimizer.apply_gradients(zip(gradients, self.model.trainable_variables, strict=True))
        return loss

    def turn(self, num_steps: int) -> list[float]:
        """Seconds from the end of one step to the end of the next; nothing is under way when it returns."""
        x = tf.zeros([1, 1])
        ends_s = []
        for _ in range(num_steps + 1):
            self._run(x)
            ends_s.append(time.monotonic())
        self._num_steps += num_steps + 1
        self.flush()
        return [end - begin for begin, end in pairwise(ends_s)]

    def flush(self) -> None:
        """Leave nothing under way: the next turn has the links for itself."""

    def check(self) -> None:
        """Every step went down by the average of the workers' gradients, everywhere."""
        self._check((self.num_workers + 1) / 2)

    def _check(self, gradient: float) -> None:
        for weight in self.model.get_weights():
            if not np.allclose(weight, -gradient * self._num_steps, rtol=1e-5):
                raise AssertionError(f"weights of rank {self.rank} are {weight} after {self._num_steps} steps")

    def close(self) -> None:
        """Leave what this worker has joined."""


class Alone(Trainer):
    """Without communication: how long the computation of a step takes."""

    def check(self) -> None:
        self._check(self.rank + 1.0)


class Legato(Trainer):
    """A model that `legato.tensorflow.schedule` has taken, as docs/tensorflow.md shows."""

    def __init__(self, rank: int, workload: Workload, launch: Launch, policy: str | None) -> None:
        os.environ.update(launch.environment(rank))
        lg.init()
        super().__init__(rank, launch.num_workers, workload)
        lg.schedule(self.model, self.optimizer, policy=policy)

    def flush(self) -> None:
        lg.flush(self.model)

    def close(self) -> None:
        lg.shutdown()


class Mirrored(Trainer):
    """The same model under MultiWorkerMirroredStrategy, with TensorFlow's ring over gRPC.

    Keras sums all gradients in one call; the strategy sends them as one tensor, or in packs of so many bytes.
    """

    strategies: ClassVar[dict[int, tf.distribute.MultiWorkerMirroredStrategy]] = {}
    """One for the life of a process, by the size of its packs."""

    def __init__(self, rank: int, workload: Workload, launch: Launch, hosts: Sequence[str], pack_bytes: int) -> None:
        if pack_bytes not in self.strategies:
            cluster = {"worker": [f"{host}:{launch.port}" for host in hosts]}
            os.environ["TF_CONFIG"] = json.dumps({"cluster": cluster, "task": {"type": "worker", "index": rank}})
            implementation = tf.distribute.experimental.CommunicationImplementation.RING
            self.strategies[pack_bytes] = tf.distribute.MultiWorkerMirroredStrategy(
                communication_options=tf.distribute.experimental.CommunicationOptions(
                    bytes_per_pack=pack_bytes, implementation=implementation
                )
            )
        self._strategy = self.strategies[pack_bytes]
        super().__init__(rank, launch.num_workers, workload)

    def make(self, workload: Workload, value: float) -> tuple[keras.Model, keras.optimizers.Optimizer]:
        with self._strategy.scope():
            return super().make(workload, value / self.num_workers)  # it sums

    def step(self, x: Any) -> Any:
        return self._strategy.run(super().step, [x])


def make(system: str, rank: int, workload: Workload, launch: Launch, hosts: Sequence[str]) -> Trainer:
    """One worker of the system by this name."""
    family, _, variation = system.partition(":")
    if family == "mwms":
        return Mirrored(rank, workload, launch, hosts, parse_bytes(variation) if variation else 0)
    if family == "legato":
        return Legato(rank, workload, launch, variation or None)
    return Alone(rank, launch.num_workers, workload)
