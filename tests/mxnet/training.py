"""A small network in BytePS's style, and what one process with everybody's data would learn."""

import functools
from typing import Any

import mxnet as mx
import numpy as np

import legato.mxnet as bps
from legato.transports.buffer import Array
from tests.mxnet.cases import BATCH, CLASSES, FEATURES, batches

TOLERANCE = 2e-5
"""In float32, between one sum over a joined batch and two over halves of it, after 50 steps."""


def network(seed: int, *, hidden: int = 64) -> Any:
    mx.random.seed(seed)
    np.random.seed(seed)
    net = mx.gluon.nn.HybridSequential()
    net.add(mx.gluon.nn.Dense(hidden, activation="relu"), mx.gluon.nn.Dense(hidden, activation="relu"))
    net.add(mx.gluon.nn.Dense(CLASSES))
    net.initialize(mx.init.Xavier())
    net.hybridize()
    return net


def settings_of(optimizer: str) -> dict[str, float]:
    momentum = {"momentum": 0.9} if optimizer == "sgd" else {}
    return {"learning_rate": 0.02, "wd": 1e-3, **momentum}


def learn(net: Any, trainer: Any, rank: int, num_workers: int) -> list[float]:
    loss = mx.gluon.loss.SoftmaxCrossEntropyLoss()
    losses = []
    for inputs, labels in batches(num_workers, rank):
        with mx.autograd.record():
            values = loss(net(mx.nd.array(inputs)), mx.nd.array(labels))
        values.backward()
        trainer.step(len(inputs))
        losses.append(values.mean())
    return [float(each.asscalar()) for each in losses]


def weights_of(net: Any) -> list[Array]:
    return [parameter.data().asnumpy() for parameter in net.collect_params().values()]


@functools.cache
def alone(optimizer: str) -> tuple[list[float], list[Array]]:
    """One process on the joined batches."""
    net = network(11)
    net(mx.nd.zeros((1, FEATURES)))
    trainer = mx.gluon.Trainer(net.collect_params(), optimizer, settings_of(optimizer), kvstore=None)
    return learn(net, trainer, 0, 1), weights_of(net)


def close_to(found: list[Any], expected: tuple[list[float], list[Array]]) -> None:
    """The mean of the workers' losses, and the weights of each, are those of one process."""
    losses, weights = expected
    np.testing.assert_allclose(np.mean([each[0] for each in found], axis=0), losses, rtol=TOLERANCE, atol=TOLERANCE)
    for _, mine in found:
        for weight, other in zip(mine, weights, strict=True):
            np.testing.assert_allclose(weight, other, rtol=TOLERANCE, atol=TOLERANCE)
    assert losses[-1] < losses[0] / 1.5


def train(optimizer: str, policy: str | None) -> Any:
    bps.init()
    net = network(11 + bps.rank())  # rank 1 begins elsewhere: rank 0's weights must reach it
    net(mx.nd.zeros((1, FEATURES)))
    trainer = bps.DistributedTrainer(
        net.collect_params(), optimizer, settings_of(optimizer), policy=policy, partition_bytes=policy and 4096
    )
    return learn(net, trainer, bps.rank(), bps.size()), weights_of(net)


def fit(optimizer: Any, seed: int, rank: int, num_workers: int) -> tuple[list[float], list[Array]]:
    """`Module.fit`, from rank 0's parameters."""
    mx.random.seed(seed)
    np.random.seed(seed)
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
    module.bind(data_shapes=data.provide_data, label_shapes=data.provide_label)
    module.init_params(mx.init.Xavier())
    given, others = module.get_params()
    if num_workers > 1:
        bps.broadcast_parameters(given, root_rank=0)
        bps.broadcast_parameters(others, root_rank=0)
        module.set_params(given, others)
    module.fit(
        data,
        eval_metric=mx.metric.CrossEntropy(),
        kvstore=None,
        optimizer=optimizer,
        num_epoch=1,
        batch_end_callback=keep,
    )
    given, _ = module.get_params()
    return losses, [given[name].asnumpy() for name in sorted(given)]
