"""Mistakes, ranks that disagree and ranks that are gone: one line or the engine's error, and no hang."""

import os
import signal
from typing import Any

import numpy as np
import pytest

from legato.errors import DeadlineError, LegatoError, MismatchError, PeerLostError
from tests.crew import Crew, LostError

pytest.importorskip("mxnet", reason="needs mxnet, which has an environment of its own: make test-mxnet")

import mxnet as mx

import legato.mxnet as bps
from legato.mxnet.buffers import Slots, spec_of
from legato.mxnet.worker import current
from tests.mxnet.cases import BATCH, FEATURES, batches
from tests.mxnet.training import network, weights_of

# MXNet is older than the numpy and scipy that it runs on.
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")


def _said(action: Any) -> str:
    try:
        action()
    except LegatoError as error:
        return f"{type(error).__name__}: {error}"
    return "nothing"


def _refused() -> list[str]:
    bps.init()
    net = network(1)
    net(mx.nd.zeros((1, FEATURES)))

    def trainer(compression: dict[str, Any], **settings: float) -> Any:
        return _said(
            lambda: bps.DistributedTrainer(net.collect_params(), "sgd", settings, compression_params=compression)
        )

    nesterov = {"compressor": "onebit", "momentum": "nesterov"}
    return [
        trainer({"compressor": "zip"}),
        trainer({"ef": "vanilla"}),
        trainer({"compressor": "onebit", "ef": "chocolate"}),
        trainer({"compressor": "onebit", "bits": 2}),
        trainer(nesterov),
        trainer(nesterov, momentum=0.9, wd=1e-4),
        _said(lambda: bps.byteps_push_pull(mx.nd.ones((4,)).tostype("row_sparse"))),
        _said(lambda: bps.byteps_push_pull(np.ones(4))),
        _said(lambda: bps.broadcast_parameters([mx.nd.ones((4,))])),
        _said(lambda: bps.broadcast_parameters({"w": mx.nd.ones((4,))}, root_rank=2)),
        _said(lambda: bps.DistributedOptimizer("sgd")),
        _said(lambda: bps.DistributedOptimizer(bps.DistributedOptimizer(mx.optimizer.SGD()))),
        _said(lambda: bps.byteps_declare_tensor("t", codec="onebit")),
    ]


def test_what_cannot_be_is_refused_in_one_line(crew: Crew) -> None:
    expected = (
        "InputError: compressor is 'zip'; accepted: ",
        'InputError: compression_params have no "compressor"',
        "InputError: ef is 'chocolate'; accepted: vanilla",
        "InputError: compression parameter 'bits' is unknown",
        'InputError: compression_params have a momentum; give its size as "momentum" in optimizer_params',
        "InputError: compression_params with a momentum leave weight decay out of it; accepted is wd 0",
        "InputError: tensor is a row_sparse array; accepted are dense NDArrays",
        "InputError: tensor is a ndarray; accepted are dense NDArrays",
        "InputError: params is a list; accepted are dictionaries of NDArrays by name",
        "InputError: root_rank is 2; accepted are ranks from 0 to 1",
        "InputError: optimizer is a str; accepted are optimizers of MXNet's",
        "InputError: the optimizer is a DistributedOptimizer already; wrap it once",
        "InputError: property 'codec' is unknown; accepted: byteps_compressor_type",
    )
    for said in crew.run(_refused):
        assert [line[: len(start)] for line, start in zip(said, expected, strict=True)] == list(expected)
        assert not any("\n" in line for line in said)


def _asynchronous() -> str:
    return _said(bps.init)


def test_asynchronous_training_is_refused(crew: Crew) -> None:
    for said in crew.run(_asynchronous, BYTEPS_ENABLE_ASYNC="1"):
        assert said.startswith("InputError: asynchronous training")


def _wrong_shapes(how: str) -> None:
    bps.init()
    array = mx.nd.ones((3, 2 + bps.rank()))
    if how == "push_pull":
        bps.byteps_push_pull(array, name="v")
    elif how == "broadcast":
        bps.broadcast_parameters({"v": array})
    else:
        net = mx.gluon.nn.Dense(3, in_units=2 + bps.rank())
        net.initialize()
        bps.DistributedTrainer(net.collect_params(), "sgd")


@pytest.mark.parametrize("how", ["push_pull", "broadcast", "trainer"])
def test_wrong_shapes(crew: Crew, how: str) -> None:
    for outcome in crew.outcomes(_wrong_shapes, how):
        assert isinstance(outcome, MismatchError), outcome
        assert "3, 2" in str(outcome)
        assert "3, 3" in str(outcome)


def _late() -> None:
    bps.init()
    array = mx.nd.ones((4,))
    bps.byteps_push_pull(array, name="both")
    array.wait_to_read()
    if bps.rank() == 0:
        bps.byteps_push_pull(array, name="both")
        with pytest.raises(mx.MXNetError, match="both"):
            array.wait_to_read()
        bps.check()
    else:
        bps.byteps_push_pull(array, name="other")


def test_a_step_that_one_rank_never_takes(crew: Crew) -> None:
    for outcome in crew.outcomes(_late, LEGATO_TIMEOUT_S="2"):
        assert isinstance(outcome, DeadlineError | PeerLostError), outcome


def _killed(how: str) -> str:
    bps.init()
    net = network(3)
    net(mx.nd.zeros((1, FEATURES)))
    if how == "trainer":
        trainer = bps.DistributedTrainer(net.collect_params(), "sgd", {"learning_rate": 0.1})
    else:
        optimizer = bps.DistributedOptimizer(mx.optimizer.SGD(learning_rate=0.1))
        trainer = mx.gluon.Trainer(net.collect_params(), optimizer, kvstore=None)

    def train() -> None:
        for number, (inputs, _) in enumerate(batches(2, bps.rank())):
            if bps.rank() == 1 and number == 5:
                os.kill(os.getpid(), signal.SIGKILL)
            with mx.autograd.record():
                value = net(mx.nd.array(inputs)).sum()
            value.backward()
            trainer.step(BATCH)
            value.wait_to_read()

    with pytest.raises(PeerLostError) as typed, bps.typed_errors():
        train()
    assert typed.value.rank == 1
    with pytest.raises(PeerLostError):
        bps.check()
    with pytest.raises(PeerLostError):
        train()
    bps.shutdown(now=True)
    assert len(weights_of(net)) == 6, "a model can be saved after its job has failed"
    return "read"


@pytest.mark.parametrize("how", ["trainer", "optimizer"])
def test_a_killed_worker(crew: Crew, how: str) -> None:
    """That the survivor's process ends well is seen at the end of all tests (conftest.py)."""
    survivor, victim = crew.outcomes(_killed, how, LEGATO_TIMEOUT_S="20")
    assert isinstance(victim, LostError)
    assert victim.exitcode == -signal.SIGKILL
    assert survivor == "read"


def _failures_at_once() -> str:
    """Operations that begin once the job is gone fail where they begin: on several threads of MXNet's."""
    bps.init()
    worker = current()
    arrays = [mx.nd.zeros((1,)) for _ in range(200)]
    specs = [spec_of(f"array_{place}", array) for place, array in enumerate(arrays)]
    slots = Slots(worker.job, "many", specs, {})
    worker.job.close(now=True)
    for _ in range(50):
        for place, array in enumerate(arrays):
            slots.start(place, array)
            array[:] = array + 1
        with pytest.raises(mx.MXNetError, match=r"has left the job|is gone"):
            mx.nd.waitall()
    return "alive"


def test_operations_that_fail_on_several_threads_at_once(crew: Crew) -> None:
    assert crew.run(_failures_at_once) == ["alive", "alive"]


def _closed() -> None:
    bps.init()
    net = network(3)
    net(mx.nd.zeros((1, FEATURES)))
    trainer = bps.DistributedTrainer(net.collect_params(), "sgd")
    bps.shutdown()
    with pytest.raises(LegatoError, match=r"call legato.mxnet.init\(\) first"):
        trainer.step(1)


def test_a_job_that_has_been_left(crew: Crew) -> None:
    crew.run(_closed)
