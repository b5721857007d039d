"""What workers do in tests: `python -m tests.mxnet.cases REPORT 'CASE ARGUMENT …' …`."""

import json
import os
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any
from unittest.mock import patch

import mxnet as mx
import numpy as np

from legato.core import Command, Event, Finished, Ready, Sent, Start
from legato.errors import LegatoError
from legato.mxnet import ScheduledKVStore
from legato.mxnet.transport import KVStoreTransport

Case = Callable[..., Any]
CASES: dict[str, Case] = {}


def case(function: Case) -> Case:
    CASES[function.__name__] = function
    return function


@case
def values(kv: Any) -> Any:
    """Arrays of several shapes and dtypes, larger and smaller than a part, three steps."""
    store = ScheduledKVStore(kv, partition_bytes=1000, credit_bytes=2000)
    shapes = {"w": (37, 41), "b": (5,), "one": (1,), "long": (1, 5003)}
    dtypes = {"w": "float32", "b": "float64", "one": "float32", "long": "float16"}
    wrong = []
    arrays = {}
    for name, shape in shapes.items():
        mine = mx.nd.full(shape, 7 + kv.rank, dtype=dtypes[name])
        store.broadcast(name, mine, out=mine)
        arrays[name] = mine
        if not (mine.asnumpy() == 7).all():
            wrong.append(f"{name} broadcast")
    for step in range(3):
        for name, array in arrays.items():
            array[:] = _numbers(array, step, kv.rank)
            store.pushpull(name, array)
        for name, array in arrays.items():
            expected = sum(_numbers(array, step, rank).asnumpy() for rank in range(kv.num_workers))
            if not np.array_equal(array.asnumpy(), expected):
                wrong.append(f"{name} step {step}")
    store.close()
    return wrong


def _numbers(array: Any, step: int, rank: int) -> Any:
    count = int(np.prod(array.shape))
    return mx.nd.array((np.arange(count) + step * 3 + rank) % 11, dtype=array.dtype).reshape(array.shape)


STEPS = 50
BATCH = 16
"""Of each worker."""
FEATURES, CLASSES = 20, 5


def batches(num_workers: int, rank: int) -> Iterator[tuple[Any, Any]]:
    """A worker's share of each step's batch; one worker of one has the joined batch."""
    random = np.random.RandomState(7)
    true = random.randn(FEATURES, CLASSES)
    for _ in range(STEPS):
        inputs = random.randn(2 * BATCH, FEATURES).astype("float32")
        labels = (inputs @ true).argmax(1).astype("float32")
        share = slice(rank * 2 * BATCH // num_workers, (rank + 1) * 2 * BATCH // num_workers)
        yield inputs[share], labels[share]


def train_gluon(kv: Any, num_workers: int, rank: int, *, on_server: bool | None, optimizer: str) -> list[float]:
    """The loss of each step, as this worker sees it."""
    mx.random.seed(11)
    np.random.seed(11)
    net = mx.gluon.nn.HybridSequential()
    net.add(mx.gluon.nn.Dense(64, activation="relu"), mx.gluon.nn.Dense(64, activation="relu"))
    net.add(mx.gluon.nn.Dense(CLASSES))
    net.initialize(mx.init.Xavier())
    net(mx.nd.zeros((1, FEATURES)))
    settings = {"learning_rate": 0.02, "wd": 1e-3}
    if optimizer == "sgd":
        settings["momentum"] = 0.9
    trainer = mx.gluon.Trainer(net.collect_params(), optimizer, settings, kvstore=kv, update_on_kvstore=on_server)
    loss = mx.gluon.loss.SoftmaxCrossEntropyLoss()
    losses = []
    for inputs, labels in batches(num_workers, rank):
        with mx.autograd.record():
            values = loss(net(mx.nd.array(inputs)), mx.nd.array(labels))
        values.backward()
        trainer.step(2 * BATCH)
        losses.append(float(values.mean().asscalar()))
    return losses


def train_module(kv: Any, num_workers: int, rank: int) -> list[float]:
    """The same with `Module.fit`; where the optimizer runs, MXNET_UPDATE_ON_KVSTORE says."""
    mx.random.seed(11)
    np.random.seed(11)
    flow = mx.sym.Variable("data")
    for layer in range(2):
        flow = mx.sym.Activation(mx.sym.FullyConnected(flow, num_hidden=64, name=f"fc{layer}"), act_type="relu")
    output = mx.sym.SoftmaxOutput(mx.sym.FullyConnected(flow, num_hidden=CLASSES, name="out"), name="softmax")
    inputs, labels = (np.concatenate(each) for each in zip(*batches(num_workers, rank), strict=True))
    data = mx.io.NDArrayIter(inputs, labels, batch_size=2 * BATCH // num_workers, label_name="softmax_label")
    losses = []

    def keep(now: Any) -> None:
        losses.append(float(now.eval_metric.get()[1]))
        now.eval_metric.reset()

    module = mx.mod.Module(output)
    module.fit(
        data,
        eval_metric=mx.metric.CrossEntropy(),
        kvstore=kv,
        optimizer="sgd",
        optimizer_params={"learning_rate": 0.02, "momentum": 0.9, "wd": 1e-3},
        initializer=mx.init.Xavier(),
        num_epoch=1,
        batch_end_callback=keep,
    )
    return losses


@case
def gluon(kv: Any, where: str, optimizer: str, policy: str) -> Any:
    """Fifty steps in small parts; the process ends without closing the store."""
    store = ScheduledKVStore(kv, policy, partition_bytes=1024, credit_bytes=4096)
    return train_gluon(store, kv.num_workers, kv.rank, on_server=where == "server", optimizer=optimizer)


@case
def module(kv: Any) -> Any:
    store = ScheduledKVStore(kv, partition_bytes=1024, credit_bytes=4096)
    return train_module(store, kv.num_workers, kv.rank)


@case
def order(kv: Any) -> Any:
    """What one worker saw, as (event, tensor, bytes), with a credit of one part; the last tensor is ready first.

    When some of its parts have started, no more credit comes back before the others are ready.
    """
    log: list[tuple[str, int, int]] = []
    under_way, all_ready = threading.Event(), threading.Event()

    def observe(_: float, what: Event | Command) -> None:
        match what:
            case Ready(task):
                log.append(("ready", task.tensor, 0))
                if sum(kind == "ready" for kind, _, _ in log) == len(NUM_PARTS):
                    all_ready.set()
            case Start(part):
                log.append(("start", part.bucket, part.length))
                if sum(kind == "start" for kind, _, _ in log) == EARLY_PARTS:
                    under_way.set()
            case Sent(part):
                log.append(("sent", part.bucket, part.length))
            case Finished(part):
                log.append(("finished", part.bucket, part.length))

    store = ScheduledKVStore(kv, partition_bytes=400, credit_bytes=400, observer=observe)
    transport = store._staged._transport
    events = transport.events

    def held_events(timeout_s: float) -> list[Sent | Finished]:
        found = events(timeout_s)
        if under_way.is_set():
            assert all_ready.wait(30.0)
        return found

    transport.events = held_events  # type: ignore[method-assign]
    arrays = [mx.nd.ones((100 * parts,)) for parts in NUM_PARTS]
    for key, array in enumerate(arrays):
        store.init(key, array)
    last = len(arrays) - 1
    store.push(last, arrays[last], priority=-last)
    assert under_way.wait(30.0)
    for key in reversed(range(last)):
        store.push(key, arrays[key], priority=-key)
    for key, array in enumerate(arrays):
        store.pull(key, array)
    store.close()
    assert all((array.asnumpy() == kv.num_workers).all() for array in arrays)
    return log


EARLY_PARTS = 5
NUM_PARTS = (3, 20, 50)
"""Of each tensor of `order`."""


@case
def layer_by_layer(kv: Any) -> Any:
    """Rank 1 does not push the second key before rank 0 has read the first, and says so through a pipe by name."""
    fifo = Path(tempfile.gettempdir()) / f"legato-{os.environ['DMLC_PS_ROOT_PORT']}"
    with suppress(FileExistsError):
        os.mkfifo(fifo)
    store = ScheduledKVStore(kv)
    arrays = [mx.nd.ones((1000,)), mx.nd.ones((1000,))]
    for key, array in enumerate(arrays):
        store.init(key, array)
    if kv.rank == 0:
        for key, array in enumerate(arrays):
            store.pushpull(key, array)
        first = arrays[0].asnumpy().tolist()
        with fifo.open("w") as other:
            other.write("read")
    else:
        store.pushpull(0, arrays[0])
        with fifo.open() as other:
            assert other.read() == "read"
        fifo.unlink()
        store.pushpull(1, arrays[1])
        first = arrays[0].asnumpy().tolist()
    second = arrays[1].asnumpy().tolist()
    store.close()
    return [first == [2.0] * 1000, second == [2.0] * 1000]


@case
def changing_sets(kv: Any) -> Any:
    """A key that is never pushed, and one that is pushed in every other step; priorities against the order of init."""
    store = ScheduledKVStore(kv, partition_bytes=400, credit_bytes=800)
    arrays = [mx.nd.ones((300,)) for _ in range(4)]
    for key, array in enumerate(arrays):
        store.init(key, array)
    wrong = []
    for step in range(6):
        pushed = [0, 2, 3] if step % 2 else [0, 3]
        for key in pushed:
            arrays[key][:] = step + kv.rank
            store.pushpull(key, arrays[key], priority=key)
        wrong += [(step, key) for key in pushed if not (arrays[key].asnumpy() == 2 * step + 1).all()]
    store.close()
    return wrong


@case
def server_multipliers(kv: Any) -> Any:
    """Weights after one step of SGD on the servers, at rate 1 and with a multiplier for each of two parameters."""
    store = ScheduledKVStore(kv, partition_bytes=400)
    optimizer = mx.optimizer.SGD(learning_rate=1.0, param_idx2name={0: "a", 1: "b"})
    optimizer.set_lr_mult({"a": 0.5, "b": 0.25})
    store.set_optimizer(optimizer)
    weights = [mx.nd.zeros((300,)), mx.nd.zeros((300,))]
    for key, weight in zip("ab", weights, strict=True):
        store.broadcast(key, weight, out=weight)
    for key, weight in zip("ab", weights, strict=True):
        store.pushpull(key, mx.nd.ones((300,)), out=weight)
    found = [sorted(set(weight.asnumpy().tolist())) for weight in weights]
    store.close()
    return found


@case
def mismatch(kv: Any) -> Any:
    store = ScheduledKVStore(kv)
    return _said(lambda: store.init("w", mx.nd.zeros((3, 4) if kv.rank == 0 else (4, 3))))


@case
def sizes(kv: Any, *given: str) -> Any:
    """The sizes of parts that start, where a link is said to carry 100 MB/s; with `given`, one worker's own."""
    started = []

    def observe(_now: float, what: Event | Command) -> None:
        if isinstance(what, Start):
            started.append(what.part.length)

    store = ScheduledKVStore(kv, partition_bytes=given[0] if given else None, observer=observe)
    array = mx.nd.ones((1 << 18,))
    with patch.object(KVStoreTransport, "link_bytes_per_s", _told(KVStoreTransport.link_bytes_per_s)):
        store.broadcast("w", array, out=array)
    store.pushpull("w", array)
    total = float(array.asnumpy().sum())
    store.close()
    return [started, total]


def _told(measure: Callable[..., float | None]) -> Callable[..., float | None]:
    """What a link carries, if it was measured at all."""

    def carries(transport: KVStoreTransport, *, asked: bool) -> float | None:
        measured = measure(transport, asked=asked)
        return None if measured is None else 100e6 * (measured > 0.0)

    return carries


@case
def mistakes(kv: Any) -> Any:
    """One line for each."""
    store = ScheduledKVStore(kv)
    array = mx.nd.zeros((3,))
    said = [_said(lambda: store.push("w", array)), _said(lambda: store.init("i", mx.nd.zeros((3,), dtype="int32")))]
    store.init("w", array)
    said += [
        _said(lambda: store.init("w", array)),
        _said(lambda: store.push("w", mx.nd.zeros((4,)))),
        _said(lambda: store.pull("w", out=mx.nd.zeros((3,), dtype="float64"))),
        _said(lambda: store.push("w", array.tostype("row_sparse"))),
        _said(lambda: store.set_optimizer(mx.optimizer.create("lamb"))),
        _said(lambda: store.set_gradient_compression({"type": "2bit"})),
    ]
    store.pushpull("w", array)
    said.append(_said(lambda: store.init("late", array)))
    store.close()
    said.append(_said(lambda: store.push("w", array)))
    return said


def _said(action: Callable[[], object]) -> str:
    try:
        action()
    except LegatoError as error:
        return f"{type(error).__name__}: {error}"
    return "nothing"


@case
def lost_worker(kv: Any) -> None:
    """Rank 1 is gone after two steps."""
    store = ScheduledKVStore(kv, timeout_s=3.0)
    weight = mx.nd.ones((1000,))
    store.init("weight", weight)
    for step in range(3):
        if kv.rank == 1 and step == 2:
            os._exit(0)
        store.pushpull("weight", weight)
        weight.wait_to_read()


def main() -> None:
    report, *cases = sys.argv[1:]
    kv = mx.kv.create("dist_sync")
    reports = {}
    for each in cases:
        name, *arguments = each.split()
        reports[each] = CASES[name](kv, *arguments)
    Path(report).write_text(json.dumps({"rank": kv.rank, "reports": reports}))


if __name__ == "__main__":
    main()
