"""push_pull and broadcasts, eager and in a graph; gradients flow through push_pull."""

from typing import Any

import pytest

tf = pytest.importorskip("tensorflow")

import keras  # noqa: E402
import numpy as np  # noqa: E402

import legato.tensorflow as lg  # noqa: E402
from legato.errors import InputError, LegatoError  # noqa: E402
from tests.crew import Crew  # noqa: E402


def _push_pull() -> None:
    lg.init()
    mine = lg.rank() + 1.0
    for dtype in (tf.float16, tf.bfloat16, tf.float32, tf.float64):
        value = tf.fill([2, 3], tf.cast(mine, dtype))
        for _ in range(2):
            assert lg.push_pull(value).numpy().tolist() == [[1.5] * 3] * 2
        assert lg.push_pull(value, op=lg.Sum).numpy().tolist() == [[3.0] * 3] * 2
        assert value.numpy().tolist() == [[mine] * 3] * 2, "what was given stays as it was"
    assert lg.allreduce(mine, name="scalar").numpy() == 1.5
    assert lg.push_pull(tf.zeros([0, 4])).shape == (0, 4)
    with pytest.raises(InputError, match="complex64"):
        lg.push_pull(tf.zeros([2], tf.complex64))

    @tf.function
    def average(x: Any) -> Any:
        return lg.push_pull(x) + lg.push_pull(2 * x)

    for _ in range(3):
        assert average(tf.fill([5], mine)).numpy().tolist() == [4.5] * 5

    @tf.function(input_signature=[tf.TensorSpec([None], tf.float32)])
    def unknown(x: Any) -> Any:
        return lg.push_pull(x)

    with pytest.raises(InputError, match="unknown dimensions"):
        unknown(tf.zeros([3]))


def test_push_pull(crew: Crew) -> None:
    crew.run(_push_pull)


def _compression() -> None:
    lg.init()
    value = tf.random.stateless_normal([70_000], seed=[lg.rank(), 1])
    exact = lg.push_pull(value).numpy()
    half = lg.push_pull(value, name="half", compression=lg.Compression.fp16).numpy()
    np.testing.assert_allclose(half, exact, atol=5e-3)
    assert np.any(half != exact)
    largest = lg.push_pull(value, name="largest", compression="topk:0.01").numpy()
    assert 0 < np.count_nonzero(largest) <= 0.02 * value.shape[0]
    with pytest.raises(InputError, match="zip"):
        lg.push_pull(value, name="unknown", compression="zip")


def test_codecs(crew: Crew) -> None:
    crew.run(_compression)


def _gradient(in_graph: bool) -> None:
    lg.init()
    x = tf.Variable([1.0 + lg.rank(), 2.0])

    def losses(op: lg.ReduceOp) -> Any:
        with tf.GradientTape() as tape:
            y = lg.push_pull(x * 2.0, op=op)
            loss = (lg.rank() + 1.0) * tf.reduce_sum(y)
        return tape.gradient(loss, x)

    run = tf.function(losses) if in_graph else losses
    assert run(lg.Average).numpy().tolist() == [2.0 * 1.5] * 2
    assert run(lg.Sum).numpy().tolist() == [2.0 * 3.0] * 2


@pytest.mark.parametrize("in_graph", [False, True])
def test_gradients_flow_through_push_pull(crew: Crew, in_graph: bool) -> None:
    crew.run(_gradient, in_graph)


def _broadcast(root: int, in_graph: bool) -> None:
    lg.init()
    variables = [
        tf.Variable(tf.fill([3], lg.rank() + 1.0)),
        tf.Variable(lg.rank() + 5, dtype=tf.int64),
        tf.Variable(lg.rank() == 0),
        keras.Variable(np.full((2, 2), lg.rank(), np.float32)),
        tf.Variable(tf.fill([2], tf.cast(lg.rank(), tf.bfloat16))),
        tf.Variable(tf.fill([2], tf.cast(lg.rank(), tf.uint32))),
        tf.Variable(tf.zeros([0])),
    ]

    def run() -> None:
        lg.broadcast_variables(variables, root_rank=root)

    (tf.function(run) if in_graph else run)()
    values = [np.asarray(each.numpy()).tolist() for each in variables]
    assert values == [[root + 1.0] * 3, root + 5, root == 0, [[root] * 2] * 2, [root] * 2, [root] * 2, []]
    assert lg.broadcast(tf.constant([lg.rank()]), root_rank=root).numpy().tolist() == [root]
    with pytest.raises(InputError, match="root_rank is 2"):
        lg.broadcast_variables(variables, root_rank=2)


@pytest.mark.parametrize(("root", "in_graph"), [(0, False), (1, True)])
def test_broadcast_variables(crew: Crew, root: int, in_graph: bool) -> None:
    crew.run(_broadcast, root, in_graph)


def test_alone_everything_is_a_copy(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(LegatoError, match="init"):
        lg.size()
    for name in ("RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    lg.init()
    try:
        assert (lg.rank(), lg.size(), lg.local_rank(), lg.local_size()) == (0, 1, 0, 1)
        assert lg.push_pull(tf.constant([3.0]), op=lg.Sum).numpy().tolist() == [3.0]
        variable = tf.Variable(2.0)
        lg.broadcast_variables([variable])
        with lg.DistributedGradientTape() as tape:
            loss = variable * variable
        assert tape.gradient(loss, variable).numpy() == 4.0
    finally:
        lg.shutdown()


def _again() -> None:
    @tf.function
    def average(x: Any) -> Any:
        return lg.push_pull(x, name="kept")

    lg.init()
    assert average(tf.constant([lg.rank() + 0.0])).numpy().tolist() == [0.5]
    lg.shutdown()
    with pytest.raises(tf.errors.FailedPreconditionError, match="closed"):
        average(tf.constant([1.0]))


def test_a_traced_function_that_outlives_its_job_says_so(crew: Crew) -> None:
    crew.run(_again)
