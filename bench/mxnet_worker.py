"""One worker of bench/mxnet_testbed.py, in MXNet's environment: a model whose layers sleep on MXNet's engine.

    forward of layer i     reads weight i, writes the activations          ends after as long as it would compute
    backward of layer i    writes gradient i and the activations           likewise
    update                 gradient i → weight i: a KVStore's pushpull, or a trainer's step

So whatever holds a weight holds its layer, and the device is idle meanwhile. The report says how long, step by step,
how busy the machine's processors had been by each step's end, and when each part of a `ScheduledKVStore` was out.
"""

import argparse
import json
import queue
import threading
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import mxnet as mx

import legato.mxnet as bps
from legato.core import Command, Event, Finished, Part, Sent, Start, Workload
from legato.mxnet import ScheduledKVStore, engine_ops
from legato.runtime import Observer

LAG_S = 2e-3
"""A device that waited for less than this did not wait: its host woke up late."""


class Device:
    """An emulated accelerator: it ends one operation of the engine after the other, each after its time."""

    def __init__(self) -> None:
        self._begun: queue.SimpleQueue[tuple[float, float, int, engine_ops.Completion]] = queue.SimpleQueue()
        self.idle_s: dict[int, float] = defaultdict(float)
        """What each layer's forward pass has waited for, after the device was free."""
        threading.Thread(target=self._run, name="device", daemon=True).start()

    def push(self, layer: int, seconds: float, *, reads: list[Any], writes: list[Any]) -> None:
        def body(complete: engine_ops.Completion) -> None:
            self._begun.put((time.monotonic(), seconds, layer, complete))

        engine_ops.push(body, reads=reads, writes=writes, name="layer")

    def _run(self) -> None:
        end_s = 0.0
        while True:
            begin_s, seconds, layer, complete = self._begun.get()
            if begin_s - end_s >= LAG_S:
                if end_s:
                    self.idle_s[layer] += begin_s - end_s
                end_s = begin_s
            end_s += seconds
            time.sleep(max(end_s - time.monotonic(), 0.0))
            complete()


class Passages:
    """An observer: when each part began to leave, had got to its servers, and was back as a sum."""

    def __init__(self) -> None:
        self.over: list[tuple[float, float, float]] = []
        self._began: dict[Part, float] = {}
        self._sent: dict[Part, float] = {}

    def __call__(self, now: float, what: Event | Command) -> None:
        if isinstance(what, Start):
            self._began[what.part] = now
        elif isinstance(what, Sent):
            self._sent[what.part] = now
        elif isinstance(what, Finished):
            self.over.append((self._began.pop(what.part), self._sent.pop(what.part), now))


Arrays = dict[int, Any]
"""By the places of their layers; those without parameters have none."""


class Servers:
    """MXNet's own parameter servers, scheduled or not: each gradient's sum is its weight, in the order of `Module`."""

    def __init__(self, kv: Any, shapes: Mapping[int, tuple[int, ...]]) -> None:
        self._kv = kv
        self.weights: Arrays = {index: mx.nd.zeros(shape) for index, shape in shapes.items()}
        self.gradients: Arrays = {index: mx.nd.zeros(shape) for index, shape in shapes.items()}
        for index, weight in self.weights.items():
            kv.init(index, weight)

    def step(self) -> None:
        for index, weight in self.weights.items():
            self._kv.pushpull(index, self.gradients[index], out=weight, priority=-index)


class Engine:
    """Legato's engine, as a script has it: through `DistributedOptimizer`, around SGD."""

    def __init__(self, options: argparse.Namespace, shapes: Mapping[int, tuple[int, ...]]) -> None:
        bps.init()
        self._optimizer = bps.DistributedOptimizer(
            mx.optimizer.SGD(),
            policy=options.policy,
            partition_bytes=options.partition,
            credit_bytes=options.credit,
        )
        self.weights: Arrays = {index: mx.nd.zeros(shape) for index, shape in shapes.items()}
        self.gradients: Arrays = {index: mx.nd.zeros(shape) for index, shape in shapes.items()}
        self._states = {index: self._optimizer.create_state(index, weight) for index, weight in self.weights.items()}

    def step(self) -> None:
        for index, weight in self.weights.items():
            self._optimizer.update(index, weight, self.gradients[index], self._states[index])


class Model:
    """A step through a workload's layers; `update` has their arrays."""

    def __init__(self, work: Workload, update: Servers | Engine) -> None:
        self._layers = work.layers
        self._update = update
        self.device = Device()
        self._activations = mx.nd.zeros((1,))

    def step(self) -> float:
        """Queue a step, and wait for the end of its forward pass, as who reads a loss does; the time of it."""
        weights, gradients = self._update.weights, self._update.gradients
        for index, layer in enumerate(self._layers):
            reads = [weights[index]] if index in weights else []
            self.device.push(index, layer.forward_s, reads=reads, writes=[self._activations])
        forward = threading.Event()
        engine_ops.when_readable([self._activations], forward.set, name="loss")
        for index, layer in reversed(list(enumerate(self._layers))):
            writes = [gradients[index]] if index in gradients else []
            self.device.push(index, layer.backward_s, reads=[], writes=[self._activations, *writes])
        self._update.step()
        if not forward.wait(600.0):
            raise TimeoutError("a forward pass has taken ten minutes")
        return time.monotonic()


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("workload", type=Path)
    parser.add_argument("report", type=Path)
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--engine", action="store_true", help="legato's engine in the place of MXNet's servers")
    parser.add_argument("--policy", help="schedule with this policy; otherwise the KVStore is MXNet's own")
    parser.add_argument("--partition")
    parser.add_argument("--credit")
    options = parser.parse_args(arguments)
    work = Workload.from_json(options.workload.read_text())
    shapes = {index: (layer.num_bytes // 4,) for index, layer in enumerate(work.layers) if layer.num_bytes}
    passages = Passages()
    model = Model(work, Engine(options, shapes) if options.engine else Servers(_store(options, passages), shapes))
    ends_s, idle_s, clocks = [], [], []
    for _ in range(options.steps + 1):
        ends_s.append(model.step())
        clocks.append(_processors())
        idle_s.append(dict(model.device.idle_s))
        model.device.idle_s.clear()
    steps_s = [after - before for before, after in pairwise(ends_s)]
    report = {"steps_s": steps_s, "idle_s": idle_s[1:], "ticks": clocks, "ends_s": ends_s, "passages": passages.over}
    options.report.write_text(json.dumps(report))


def _processors() -> tuple[int, int]:
    """How long all processors of the machine have been busy since it started, and all their time, in ticks."""
    ticks = [int(word) for word in Path("/proc/stat").read_text().splitlines()[0].split()[1:]]
    idle, iowait = ticks[3], ticks[4]
    return sum(ticks) - idle - iowait, sum(ticks)


def _store(options: argparse.Namespace, observer: Observer) -> Any:
    kv = mx.kv.create("dist_sync")
    if options.policy is None:
        return kv
    return ScheduledKVStore(kv, options.policy, options.partition, options.credit, timeout_s=300.0, observer=observer)


if __name__ == "__main__":
    main()
