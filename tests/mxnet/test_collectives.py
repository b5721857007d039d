"""Averages, sums and broadcasts of arrays, as BytePS names them."""

from typing import Any

import numpy as np
import pytest

from tests.crew import Crew

pytest.importorskip("mxnet", reason="needs mxnet, which has an environment of its own: make test-mxnet")

import mxnet as mx

import legato.mxnet as bps

# MXNet is older than the numpy and scipy that it runs on.
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")


def _push_pull() -> Any:
    bps.init()
    average, total = (mx.nd.arange(7) * (bps.rank() + 1) for _ in range(2))
    bps.byteps_push_pull(average, name="a")
    bps.byteps_push_pull(total, name="s", is_average=False)
    unnamed = [mx.nd.full((3,), number + bps.rank()) for number in range(20)]
    for array in unnamed:
        bps.byteps_push_pull(array)
    halves = mx.nd.full((5,), 0.5 + bps.rank(), dtype="float16")
    bps.byteps_push_pull(halves)
    assert bps.size() == 2
    assert bps.local_size() == 2
    assert bps.local_rank() == bps.rank()
    return [each.asnumpy().tolist() for each in (average, total, *unnamed, halves)]


def test_push_pull(crew: Crew) -> None:
    unnamed = [[number + 0.5] * 3 for number in range(20)]
    for found in crew.run(_push_pull):
        assert found == [[1.5 * i for i in range(7)], [3.0 * i for i in range(7)], *unnamed, [1.0] * 5]


def _opaque() -> Any:
    """Activations and weights of a convolution: what came back, and what should have."""
    bps.init()
    layer = mx.gluon.nn.Conv2D(32, 3, padding=1, use_bias=False)
    layer.initialize(mx.init.Constant(mx.nd.arange(32 * 16 * 9).reshape((32, 16, 3, 3)) / 5000))
    inputs = mx.nd.arange(2 * 16 * 8 * 8).reshape((2, 16, 8, 8)) / 2048 * (bps.rank() + 1)
    expected = layer(inputs * 1.5 / (bps.rank() + 1)).asnumpy()
    kept = layer.weight.data().asnumpy()
    activations = layer(inputs)
    bps.byteps_push_pull(activations, name="activations")
    weight = layer.weight.data()
    bps.byteps_push_pull(weight, name="weight")
    return activations.asnumpy(), expected, weight.asnumpy(), kept


def test_arrays_that_onednn_lays_out_its_own_way(crew: Crew) -> None:
    for activations, expected, weight, kept in crew.run(_opaque):
        np.testing.assert_allclose(activations, expected, rtol=1e-5)
        np.testing.assert_array_equal(weight, kept)


def _broadcast() -> Any:
    bps.init()
    params = {name: mx.nd.full((3, 4), bps.rank() + 10 * place) for place, name in enumerate("xyz")}
    params["n"] = mx.nd.full((2,), bps.rank(), dtype="int64")
    bps.broadcast_parameters(params, root_rank=1)
    layer = mx.gluon.nn.Conv2D(32, 3, in_channels=16)
    layer.initialize(mx.init.Constant(bps.rank()))
    layer(mx.nd.ones((2, 16, 8, 8))).wait_to_read()  # the weight is in oneDNN's layout now
    bps.broadcast_parameters(layer.collect_params(), root_rank=1)
    assert (layer.weight.data().asnumpy() == 1).all()
    return {name: array.asnumpy().tolist() for name, array in params.items()}


def test_broadcast_parameters(crew: Crew) -> None:
    for found in crew.run(_broadcast):
        expected = {name: [[1.0 + 10 * place] * 4] * 3 for place, name in enumerate("xyz")}
        assert found == {**expected, "n": [1, 1]}


def _first_before_the_others() -> Any:
    """Rank 1 gives the second array only after rank 0 has read the first: nothing but its own array is waited for."""
    job = bps.init()
    arrays = [mx.nd.full((1000,), bps.rank()) for _ in range(2)]
    for array, name in zip(arrays, "ab", strict=True):
        bps.byteps_push_pull(array, name=name)  # agreed on by both
        array.wait_to_read()
    bps.byteps_push_pull(arrays[0], name="a")
    if bps.rank() == 0:
        bps.byteps_push_pull(arrays[1], name="b")
        first = arrays[0].asnumpy().tolist()
        job.group.push_pull("read", np.ones(1))
    else:
        job.group.push_pull("read", np.ones(1))
        bps.byteps_push_pull(arrays[1], name="b")
        first = arrays[0].asnumpy().tolist()
    return first == arrays[1].asnumpy().tolist() == [0.5] * 1000


def test_an_array_waits_for_no_other(crew: Crew) -> None:
    assert crew.run(_first_before_the_others) == [True, True]
