"""BytePS's interface over legato's engine, in real jobs of two workers."""

import os
import queue
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from legato.errors import DeadlineError, InputError, LegatoError, MismatchError, PeerLostError
from legato.transports.buffer import Array
from tests.mxnet.crew import Crew

pytest.importorskip("mxnet", reason="needs mxnet, which has an environment of its own: make test-mxnet")

import mxnet as mx

import legato.mxnet as bps
from legato.mxnet import engine_ops
from tests.mxnet.cases import BATCH, CLASSES, FEATURES, STEPS, batches
from tests.observe.picture import phases, read

# MXNet is older than the numpy and scipy that it runs on.
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")

TOLERANCE = 2e-5
"""In float32, between one sum over a joined batch and two over halves of it, after 50 steps."""


# ---- training ----


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


def _trainer(optimizer: str, policy: str | None) -> Any:
    bps.init()
    net = network(11 + bps.rank())  # rank 1 begins elsewhere: rank 0's weights must reach it
    net(mx.nd.zeros((1, FEATURES)))
    trainer = bps.DistributedTrainer(
        net.collect_params(), optimizer, settings_of(optimizer), policy=policy, partition_bytes=policy and 4096
    )
    return learn(net, trainer, bps.rank(), bps.size()), weights_of(net)


@pytest.mark.parametrize(("optimizer", "policy"), [("sgd", None), ("adam", None), ("sgd", "bytescheduler")])
def test_a_trainer_learns_as_one_process_on_the_joined_batch(crew: Crew, optimizer: str, policy: str | None) -> None:
    close_to(crew.run(_trainer, optimizer, policy), alone(optimizer))


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


@pytest.mark.filterwarnings("ignore:Parameters already initialized:UserWarning")  # so `fit` leaves them as they are
def test_an_optimizer_in_a_module_learns_as_one_process_on_the_joined_batch(crew: Crew) -> None:
    settings = {**settings_of("sgd"), "rescale_grad": 1 / (2 * BATCH)}
    close_to(crew.run(_optimizer, False), fit(mx.optimizer.create("sgd", **settings), 11, 0, 1))


def test_an_optimizer_in_gluons_trainer_learns_as_one_process_on_the_joined_batch(crew: Crew) -> None:
    close_to(crew.run(_optimizer, True), alone("sgd"))


# ---- compression ----


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


# ---- arrays ----


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
    crew.run(_trainer, "sgd", "bytescheduler", LEGATO_TIMELINE=str(path))
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


# ---- errors ----


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
def test_a_killed_worker(how: str) -> None:
    crew = Crew(2)
    survivor, victim = crew.outcomes(_killed, how, LEGATO_TIMEOUT_S="20")
    codes = crew.close()
    assert isinstance(victim, EOFError)
    assert survivor == "read"
    assert codes == [0, -signal.SIGKILL], "the survivor's process ends well"


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
