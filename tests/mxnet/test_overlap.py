"""Gradients travel while others are computed, the next forward pass waits layer by layer, urgent arrays overtake."""

import queue
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.crew import Crew

pytest.importorskip("mxnet", reason="needs mxnet, which has an environment of its own: make test-mxnet")

import mxnet as mx

import legato.mxnet as bps
from legato.mxnet import engine_ops
from tests.mxnet.cases import STEPS
from tests.mxnet.training import train
from tests.observe.picture import phases, read

# MXNet is older than the numpy and scipy that it runs on.
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")


def _held(array: Any) -> engine_ops.Completion:
    """Hold an array on MXNet's engine, as an operation that takes long would; the caller ends it."""
    begun: queue.SimpleQueue[engine_ops.Completion] = queue.SimpleQueue()
    engine_ops.push(begun.put, writes=[array], name="held")
    return begun.get(timeout=30)


def _layers() -> Any:
    """Two layers of ones, and a trainer that puts no two of them in one bucket."""
    net = mx.gluon.nn.HybridSequential()
    net.add(mx.gluon.nn.Dense(8, in_units=8, use_bias=False), mx.gluon.nn.Dense(8, in_units=8, use_bias=False))
    net.initialize(mx.init.One())
    return net, bps.DistributedTrainer(net.collect_params(), "sgd", {"learning_rate": 1.0}, policy="fifo")


def _backward(net: Any) -> None:
    with mx.autograd.record():
        value = net(mx.nd.full((1, 8), bps.rank())).sum()
    value.backward()


def _during_backward() -> Any:
    """The first layer's gradient is not there before the last layer has been updated."""
    bps.init()
    net, trainer = _layers()
    _backward(net)
    complete = _held(net[0].weight.grad())
    trainer.step(1)
    last = net[1].weight.data().asnumpy()
    complete()
    return last, net[0].weight.data().asnumpy()


def test_a_gradient_travels_while_others_are_computed(crew: Crew) -> None:
    for last, first in crew.run(_during_backward):
        assert (last == 1 - 4).all(), "eight inputs of 0 or 1 through ones: on average 4"
        assert (first == 1 - 4).all()


def _across_the_step() -> Any:
    """Rank 1 keeps the last layer's gradient back until rank 0 has computed the first layer of the next step."""
    job = bps.init()
    net, trainer = _layers()
    _backward(net)
    if bps.rank() == 0:
        trainer.step(1)
        inside = net[0](mx.nd.ones((1, 8))).asnumpy()
        job.group.push_pull("inside", np.ones(1))
    else:
        complete = _held(net[1].weight.grad())
        trainer.step(1)
        job.group.push_pull("inside", np.ones(1))
        complete()
        inside = net[0](mx.nd.ones((1, 8))).asnumpy()
    return inside, net[1].weight.data().asnumpy()


def test_the_next_forward_pass_waits_for_each_weight_by_itself(crew: Crew) -> None:
    for inside, last in crew.run(_across_the_step):
        assert (inside == 8 * (1 - 4)).all()
        assert (last == 1 - 4).all()


def test_every_gradient_of_every_rank_is_scheduled(crew: Crew, tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    crew.run(train, "sgd", "bytescheduler", LEGATO_TIMELINE=str(path))
    picture = read(path)
    assert sorted(picture) == [0, 1]
    for rows in picture.values():
        gradients = {row: boxes for row, boxes in rows.items() if "gradient_" in row}
        assert len(gradients) == 6
        for boxes in gradients.values():
            assert list(phases(boxes)) == list(range(STEPS))


def _priorities() -> Any:
    """What this rank's engine did with a long array, and with a more urgent one that came behind it."""
    job = bps.init()
    engine, player = job.group.session.engine, job.group.session.player
    net = mx.gluon.nn.Dense(8, in_units=8)
    net.initialize()
    trainer = bps.DistributedTrainer(
        net.collect_params(), "sgd", policy="bytescheduler", partition_bytes="16KiB", credit_bytes="16KiB"
    )
    _backward(net)
    trainer.step(1)  # the job's plan has that credit from here on
    arrays = {"long": mx.nd.ones((1 << 24,)), "urgent": mx.nd.ones((1 << 14,))}
    for priority, (name, array) in zip((-7, 0), arrays.items(), strict=True):
        bps.byteps_push_pull(array, priority=priority, name=name)
        array.wait_to_read()
    mx.nd.waitall()
    engine.take_events()
    for name, array in arrays.items():
        bps.byteps_push_pull(array, name=name)
    mx.nd.waitall()
    names = {player.number(f"push_pull/{name}/{name}"): name for name in arrays}
    return [(what, names[tensor], length) for _, what, tensor, _, _, length in engine.take_events()]


def test_what_is_more_urgent_starts_first(crew: Crew, tmp_path: Path) -> None:
    for log in crew.run(_priorities, LEGATO_TIMELINE=str(tmp_path / "run.json")):
        waiting = {"long": 0, "urgent": 0}
        for what, name, num_bytes in log:
            if what == "ready":
                waiting[name] += num_bytes
            elif what == "start":
                assert name == "urgent" or not waiting["urgent"]
                waiting[name] -= num_bytes
        assert waiting == {"long": 0, "urgent": 0}
