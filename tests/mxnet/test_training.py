"""BytePS's interface over legato's engine: two workers learn what one would with both their batches."""

from typing import Any

import numpy as np
import pytest

from legato.errors import InputError
from tests.crew import Crew, dedicated_server

pytest.importorskip("mxnet", reason="needs mxnet, which has an environment of its own: make test-mxnet")

import mxnet as mx

import legato.mxnet as bps
from tests.mxnet.cases import BATCH, FEATURES
from tests.mxnet.training import alone, close_to, fit, learn, network, settings_of, train, weights_of

# MXNet is older than the numpy and scipy that it runs on.
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")


@pytest.mark.parametrize(("optimizer", "policy"), [("sgd", None), ("adam", None), ("sgd", "bytescheduler")])
def test_a_trainer_learns_as_one_process_on_the_joined_batch(crew: Crew, optimizer: str, policy: str | None) -> None:
    close_to(crew.run(train, optimizer, policy), alone(optimizer))


def _counted() -> Any:
    return train("sgd", None), bps.init().group.session.engine.statistics()


def test_workers_on_one_host_use_no_network(crew: Crew) -> None:
    found = crew.run(_counted)
    for _, counters in found:
        assert counters["bytes_sent"] == 0
        assert counters["bytes_shared"] > 0
    close_to([learned for learned, _ in found], alone("sgd"))


@pytest.mark.parametrize("role", ["worker", "joint"])
def test_a_dedicated_server_sums(crew: Crew, role: str) -> None:
    """All that travels, where workers do not serve; its share, where they do."""
    with dedicated_server(role) as (told, counters):
        found = crew.run(train, "sgd", None, **told)
    close_to(found, alone("sgd"))
    assert counters["bytes_received"] > 0
    assert counters["bytes_sent"] > 0


def _late_shapes() -> Any:
    bps.init()
    net = network(5 + bps.rank())
    trainer = bps.DistributedTrainer(net.collect_params(), "sgd", {"learning_rate": 0.0})
    with mx.autograd.record():
        value = net(mx.nd.ones((2, FEATURES))).sum()
    value.backward()
    trainer.step(2)
    return weights_of(net)


def test_parameters_that_get_their_shapes_later_are_the_roots_too(crew: Crew) -> None:
    first, second = crew.run(_late_shapes)
    for mine, other in zip(first, second, strict=True):
        np.testing.assert_array_equal(mine, other)


def _optimizer(in_trainer: bool) -> Any:
    bps.init()
    settings = {**settings_of("sgd"), "rescale_grad": 1 / BATCH}
    if in_trainer:
        net = network(11 + bps.rank())
        net(mx.nd.zeros((1, FEATURES)))
        bps.broadcast_parameters(net.collect_params(), root_rank=0)
        optimizer = bps.DistributedOptimizer(mx.optimizer.create("sgd", **settings_of("sgd")))
        trainer = mx.gluon.Trainer(net.collect_params(), optimizer, kvstore=None)
        return learn(net, trainer, bps.rank(), bps.size()), weights_of(net)
    optimizer = bps.DistributedOptimizer(mx.optimizer.create("sgd", **settings))
    return fit(optimizer, 11 + bps.rank(), bps.rank(), bps.size())


@pytest.mark.filterwarnings("ignore:Parameters already initialized:UserWarning")  # so `fit` leaves them as they are
def test_an_optimizer_in_a_module_learns_as_one_process_on_the_joined_batch(crew: Crew) -> None:
    settings = {**settings_of("sgd"), "rescale_grad": 1 / (2 * BATCH)}
    close_to(crew.run(_optimizer, False), fit(mx.optimizer.create("sgd", **settings), 11, 0, 1))


def test_an_optimizer_in_gluons_trainer_learns_as_one_process_on_the_joined_batch(crew: Crew) -> None:
    close_to(crew.run(_optimizer, True), alone("sgd"))


def test_one_worker_trains_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RANK", "WORLD_SIZE", "DMLC_ROLE", "DMLC_NUM_WORKER"):
        monkeypatch.delenv(name, raising=False)
    bps.init()
    try:
        net = network(11)
        net(mx.nd.zeros((1, FEATURES)))
        compression = {"compressor": "onebit"}
        trainer = bps.DistributedTrainer(
            net.collect_params(), "sgd", settings_of("sgd"), compression_params=compression
        )
        assert learn(net, trainer, 0, 1) == alone("sgd")[0]
        with pytest.raises(InputError):
            bps.broadcast_parameters({}, root_rank=1)
    finally:
        bps.shutdown()
