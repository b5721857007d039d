"""BytePS's compression parameters over legato's engine."""

from typing import Any

import numpy as np
import pytest

from tests.crew import Crew

pytest.importorskip("mxnet", reason="needs mxnet, which has an environment of its own: make test-mxnet")

import mxnet as mx

import legato.mxnet as bps
from tests.mxnet.cases import FEATURES
from tests.mxnet.training import learn, network, weights_of

# MXNet is older than the numpy and scipy that it runs on.
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")


def _compressed(parameters: dict[str, Any]) -> Any:
    """Losses, and the last gradient that a trainer has applied."""
    bps.init()
    net = network(11, hidden=256)
    net(mx.nd.zeros((1, FEATURES)))
    settings = {"learning_rate": 0.02, "momentum": 0.9}
    trainer = bps.DistributedTrainer(net.collect_params(), "sgd", settings, compression_params=parameters)
    losses = learn(net, trainer, bps.rank(), bps.size())
    gradients = {name: each.grad().asnumpy() for name, each in net.collect_params().items()}
    [applied] = [each for each in gradients.values() if each.shape == (256, 256)]
    return losses, weights_of(net), applied


@pytest.mark.parametrize(
    "parameters",
    [
        {"compressor": "onebit", "scaling": True, "ef": "vanilla"},
        {"compressor": "topk", "k": 0.05, "ef": "vanilla", "momentum": "nesterov"},
        {"compressor": "dithering", "k": 4, "partition": "linear", "normalize": "max"},
    ],
)
def test_compressed_gradients_train(crew: Crew, parameters: dict[str, Any]) -> None:
    (losses, weights, applied), (_, others, same) = crew.run(_compressed, parameters, LEGATO_MIN_COMPRESS_BYTES="1024")
    assert np.mean(losses[-5:]) < losses[0] / 1.5
    for mine, other in zip(weights, others, strict=True):
        np.testing.assert_array_equal(mine, other)
    np.testing.assert_array_equal(applied, same)
    if parameters["compressor"] == "onebit":
        assert len(set(np.abs(applied).ravel())) <= 4, "not in one bit for each element and a scale for each part"
    if parameters["compressor"] == "topk":
        assert 0 < np.count_nonzero(applied) <= 0.11 * applied.size


def _codec_of_a_name() -> Any:
    bps.init()
    bps.byteps_declare_tensor("t", byteps_compressor_type="onebit", byteps_compressor_onebit_scaling="true")
    array = mx.nd.array(np.linspace(-1, 1, 40000))
    bps.byteps_push_pull(array, name="t")
    return len(set(np.abs(array.asnumpy())))


def test_a_declared_name_has_its_codec(crew: Crew) -> None:
    assert all(found <= 4 for found in crew.run(_codec_of_a_name))
