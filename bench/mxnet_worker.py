"""One worker of bench/mxnet_testbed.py, in MXNet's environment: a model whose layers sleep on MXNet's engine.

    forward of layer i     reads weight i, writes the activations          ends after as long as it would compute
    backward of layer i    writes gradient i and the activations           likewise
    pushpull               gradient i → weight i, in the order of `Module`

So whatever holds a weight holds its layer, and the device is idle meanwhile. The report says how long, step by step.
"""

import argparse
import json
import queue
import threading
import time
from collections import defaultdict
from itertools import pairwise
from pathlib import Path
from typing import Any

import mxnet as mx

import legato.mxnet as bps
from legato.core import Workload
from legato.exchange import ExchangeOptions
from legato.mxnet import ScheduledKVStore, engine_ops
from legato.mxnet.buffers import Slots, spec_of

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


class Engine:
    """Legato's engine in the place of a KVStore: each gradient is averaged, and its weight written when it is there."""

    def __init__(self, policy: str | None, partition: str | None, credit: str | None) -> None:
        self._job = bps.init()
        self._options = ExchangeOptions(policy=policy, partition_bytes=partition, credit_bytes=credit)
        self._weights: dict[int, Any] = {}
        self._slots: Slots | None = None

    def init(self, key: int, value: Any) -> None:
        self._weights[key] = value

    def pushpull(self, key: int, value: Any, out: Any, priority: int) -> None:
        del priority  # the order of the keys
        if self._slots is None:
            specs = [spec_of(str(each), weight) for each, weight in self._weights.items()]
            self._slots = Slots(self._job, "gradients", specs, self._options)
            self._places = {each: place for place, each in enumerate(self._weights)}
        self._slots.start(self._places[key], value)
        value.copyto(out)


class Model:
    """The arrays of a workload's layers, and a step through them."""

    def __init__(self, work: Workload, kv: Any) -> None:
        self._layers = work.layers
        self._kv = kv
        self.device = Device()
        self._activations = mx.nd.zeros((1,))
        shapes = {index: (layer.num_bytes // 4,) for index, layer in enumerate(work.layers) if layer.num_bytes}
        self._weights = {index: mx.nd.zeros(shape) for index, shape in shapes.items()}
        self._gradients = {index: mx.nd.zeros(shape) for index, shape in shapes.items()}
        for index, weight in self._weights.items():
            kv.init(index, weight)

    def step(self) -> float:
        """Queue a step, and wait for the end of its forward pass, as who reads a loss does; the time of it."""
        for index, layer in enumerate(self._layers):
            weights = [self._weights[index]] if index in self._weights else []
            self.device.push(index, layer.forward_s, reads=weights, writes=[self._activations])
        forward = threading.Event()
        engine_ops.when_readable([self._activations], forward.set, name="loss")
        for index, layer in reversed(list(enumerate(self._layers))):
            gradients = [self._gradients[index]] if index in self._gradients else []
            self.device.push(index, layer.backward_s, reads=[], writes=[self._activations, *gradients])
        for index, weight in self._weights.items():
            self._kv.pushpull(index, self._gradients[index], out=weight, priority=-index)
        if not forward.wait(600.0):
            raise TimeoutError("a forward pass has taken ten minutes")
        return time.monotonic()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("workload", type=Path)
    parser.add_argument("report", type=Path)
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--engine", action="store_true", help="legato's engine in the place of MXNet's servers")
    parser.add_argument("--policy", help="schedule with this policy; otherwise the KVStore is MXNet's own")
    parser.add_argument("--partition")
    parser.add_argument("--credit")
    options = parser.parse_args()
    kv = _store(options)
    model = Model(Workload.from_json(options.workload.read_text()), kv)
    ends_s, idle_s = [], []
    for _ in range(options.steps + 1):
        ends_s.append(model.step())
        idle_s.append(dict(model.device.idle_s))
        model.device.idle_s.clear()
    steps_s = [after - before for before, after in pairwise(ends_s)]
    options.report.write_text(json.dumps({"steps_s": steps_s, "idle_s": idle_s[1:]}))


def _store(options: argparse.Namespace) -> Any:
    if options.engine:
        return Engine(options.policy, options.partition, options.credit)
    kv = mx.kv.create("dist_sync")
    if options.policy is None:
        return kv
    return ScheduledKVStore(kv, options.policy, options.partition, options.credit, timeout_s=300.0)


if __name__ == "__main__":
    main()
