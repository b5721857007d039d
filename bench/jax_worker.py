"""One worker of bench/jax_testbed.py: a JAX model whose layers sleep, trained alone, over JAX's Gloo and with legato.

    forward of layer i     takes weight i and the activations          ends after as long as it would compute
    backward of layer i    takes what forward made, makes gradient i   likewise

Both are operations of the compiled program (bench/jax_device.cpp): XLA may run anything else meanwhile, and whatever
holds a weight back holds its layer.
"""

import ctypes
import os
import socket
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as Spec

import legato.jax as lg
from bench.testbed.crew import Station
from bench.testbed.launch import Launch
from legato.core import Layer, Workload

SOURCE = Path(__file__).with_name("jax_device.cpp")
WARM_UP_STEPS = 2
"""Of every system, and one more: the first compiles."""
START_S = 300
"""Until every process has joined JAX's."""
_CLONE_NEWUTS = 0x04000000


def compile_device(directory: Path) -> Path:
    """The emulated accelerator, as a library that every worker loads."""
    library = directory / "jax_device.so"
    compiler = os.environ.get("CXX", "c++")
    flags = ["-std=c++17", "-O2", "-fPIC", "-shared", "-isystem", jax.ffi.include_dir()]
    subprocess.run([compiler, *flags, str(SOURCE), "-o", str(library)], check=True, timeout=300)
    return library


@dataclass(frozen=True, kw_only=True)
class Task:
    """A model, and what to do with it."""

    workload: Workload
    systems: Sequence[str]
    launch: Launch
    """legato's job for it."""
    num_rounds: int
    num_steps: int
    """In a turn."""


@dataclass(frozen=True, kw_only=True)
class Seen:
    """What one worker has seen of one system."""

    turns_s: list[list[float]] = field(default_factory=list)
    """Seconds of each step, turn by turn."""
    cpu_s: list[float] = field(default_factory=list)
    """Processor time of a step, all threads of this process; one figure a turn."""


class Trainer:
    """One system at work; this one trains alone, and the others are made of it."""

    def __init__(self, station: Station, task: Task) -> None:
        self._num_workers = task.launch.num_workers
        self._rank = station.rank
        self._layers = task.workload.layers
        self._num_steps = 0
        self._optimizer: Any = optax.sgd(1.0)
        self.prepare(task)

    def prepare(self, task: Task) -> None:  # noqa: ARG002 (others look at it)
        """Make what a step needs."""

        def step(params: Any, state: Any, batch: jax.Array) -> Any:
            value, gradients = jax.value_and_grad(self._loss)(params, batch)
            return *self._updated(params, state, gradients), value

        self._step = jax.jit(step, donate_argnums=0)
        self._params: Any = [jnp.zeros(layer.num_bytes // 4) for layer in self._layers]
        self._state = self._optimizer.init(self._params)
        self._batch = jnp.zeros(1)

    def turn(self, num_steps: int) -> list[float]:
        """Seconds from the end of one step to the end of the next; nothing is under way when it returns."""
        ends_s = []
        for _ in range(num_steps + 1):
            self._params, self._state, value = self._step(self._params, self._state, self._batch)
            value.block_until_ready()
            ends_s.append(time.monotonic())
        self._num_steps += num_steps + 1
        self._flush()
        jax.block_until_ready(self._params)
        return [after - before for before, after in pairwise(ends_s)]

    def check(self) -> None:
        """Every step went down by the average of the ranks' gradients, everywhere."""
        for layer, weight in zip(self._layers, self._params, strict=True):
            if not np.allclose(np.asarray(weight), -self._gradient * self._num_steps, rtol=1e-5):
                raise AssertionError(f"the weights {layer.name} of rank {self._rank} are wrong after training")

    def close(self) -> None:
        """Leave what this rank has joined."""

    @property
    def _gradient(self) -> float:
        """What every weight is told to go down by."""
        return (self._num_workers + 1) / 2

    def _flush(self) -> None:
        """Leave nothing under way."""

    def _loss(self, params: Sequence[jax.Array], batch: jax.Array) -> jax.Array:
        for layer, weight in zip(self._layers, params, strict=True):
            batch = _run(layer, batch, weight)
        return batch[0]

    def _updated(self, params: Any, state: Any, gradients: Any) -> tuple[Any, Any]:
        updates, state = self._optimizer.update(gradients, state, params)
        return optax.apply_updates(params, updates), state


class Alone(Trainer):
    """Without communication."""

    @property
    def _gradient(self) -> float:
        return self._rank + 1


class Gloo(Trainer):
    """Data parallelism of JAX's own: one program over all processes, gradients averaged by its Gloo collectives.

    XLA makes one collective of all gradients, which begins when the last one is there.
    """

    compiler_options: Mapping[str, str] = {}

    def prepare(self, task: Task) -> None:  # noqa: ARG002
        mesh = Mesh(np.array(jax.devices()), "data")
        everywhere, shared = NamedSharding(mesh, Spec()), NamedSharding(mesh, Spec("data"))

        @partial(jax.jit, donate_argnums=(0, 1), compiler_options=dict(self.compiler_options))
        @partial(
            jax.shard_map,
            mesh=mesh,
            in_specs=(Spec(), Spec(), Spec("data")),
            out_specs=(Spec(), Spec(), Spec("data")),
            check_vma=False,  # nobody has told JAX what an accelerator's operations do to replicas
        )
        def step(params: Any, state: Any, batch: jax.Array) -> Any:
            value, gradients = jax.value_and_grad(self._loss)(params, batch)
            return *self._updated(params, state, jax.lax.pmean(gradients, "data")), value[None]

        def place(sharding: NamedSharding, value: Any) -> Any:
            return jax.make_array_from_process_local_data(sharding, np.asarray(value))

        self._step = step
        self._params = [place(everywhere, np.zeros(layer.num_bytes // 4, np.float32)) for layer in self._layers]
        self._state = jax.tree.map(partial(place, everywhere), self._optimizer.init(self._params))
        self._batch = place(shared, np.zeros(1, np.float32))


class GlooByLayer(Gloo):
    """With a collective for each gradient, as soon as it is there: for users who know XLA's passes by name."""

    compiler_options: Mapping[str, str] = {"xla_disable_hlo_passes": "cpu-all-reduce-combiner"}


class Legato(Trainer):
    """What docs/jax.md tells a user to write."""

    def prepare(self, task: Task) -> None:
        super().prepare(task)
        self._job = task.launch.job(self._rank)
        self._optimizer = lg.schedule(self._optimizer, job=self._job)
        self._state = self._optimizer.init(self._params)
        self._step = jax.jit(self._optimizer.step(self._loss), donate_argnums=0)

    def _flush(self) -> None:
        self._params, self._state = self._optimizer.finish(self._params, self._state)

    def close(self) -> None:
        self._job.close()


SYSTEMS: dict[str, type[Trainer]] = {"alone": Alone, "gloo": Gloo, "gloo-by-layer": GlooByLayer, "legato": Legato}


def work(
    station: Station, addresses: Sequence[str], port: int, library: str, tasks: Sequence[Task]
) -> list[list[Seen]]:
    """One worker: what it has seen of each system, task by task."""
    _take_name(addresses[station.rank])
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.distributed.initialize(f"{addresses[0]}:{port}", len(addresses), station.rank, initialization_timeout=START_S)
    _load_device(library, station.rank + 1.0)
    seen = [_fulfil(station, task) for task in tasks]
    station.meet()
    jax.distributed.shutdown()
    return seen


def _fulfil(station: Station, task: Task) -> list[Seen]:
    trainers = []
    for system in task.systems:
        station.meet()
        trainer = SYSTEMS[system](station, task)
        trainer.turn(WARM_UP_STEPS)
        trainers.append(trainer)
    seen = [Seen() for _ in trainers]
    for number in range(task.num_rounds):
        for trainer, figures in zip(trainers, seen, strict=True):
            station.meet()
            begin_s = time.process_time()
            figures.turns_s.append(trainer.turn(task.num_steps))
            figures.cpu_s.append((time.process_time() - begin_s) / (task.num_steps + 1))
        station.tell(number)
    for trainer in trainers:
        trainer.check()
        trainer.close()
    return seen


def _take_name(address: str) -> None:
    """Be called what this host's address is: JAX's Gloo listens where the host's name points to, and cannot be told."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(_CLONE_NEWUTS) != 0:
        raise OSError(ctypes.get_errno(), "cannot give this host a name of its own")
    socket.sethostname(address)


def _load_device(library: str, gradient: float) -> None:
    device = ctypes.CDLL(library)
    device.bench_set_gradient(ctypes.c_float(gradient))
    for name in ("bench_forward", "bench_backward"):
        jax.ffi.register_ffi_target(name, jax.ffi.pycapsule(getattr(device, name)), platform="cpu")


def _run(layer: Layer, carried: jax.Array, weight: jax.Array) -> jax.Array:
    """One layer: forward, and when it is differentiated, backward."""

    def call(name: str, results: Any, seconds: float, *operands: jax.Array) -> Any:
        operation: Any = jax.ffi.ffi_call(name, results)
        return operation(*operands, seconds=np.float64(seconds))

    @jax.custom_vjp
    def run(carried: jax.Array, weight: jax.Array) -> Any:
        return call("bench_forward", _like(carried), layer.forward_s, carried, weight)

    def forward(carried: jax.Array, weight: jax.Array) -> Any:
        made = run(carried, weight)
        return made, made

    def backward(made: jax.Array, carried: jax.Array) -> Any:
        return call("bench_backward", (_like(carried), _like(weight)), layer.backward_s, carried, made)

    run.defvjp(forward, backward)
    result: jax.Array = run(carried, weight)
    return result


def _like(array: jax.Array) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(array.shape, array.dtype)
