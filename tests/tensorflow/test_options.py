"""What `schedule`, the tape and the optimizer are told reaches the engine, or is refused in one line."""

from pathlib import Path
from typing import Any

import pytest

tf = pytest.importorskip("tensorflow")

import numpy as np  # noqa: E402

import legato.tensorflow as lg  # noqa: E402
from legato.core.policies import by_name  # noqa: E402
from legato.errors import InputError  # noqa: E402
from tests.crew import Crew, dedicated_server  # noqa: E402
from tests.tensorflow.cases import batches, check, loss_of, network, sgd  # noqa: E402


def _train(model: Any, optimizer: Any) -> list[float]:
    @tf.function
    def step(x: Any, y: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = loss_of(model, x, y)
        optimizer.apply(tape.gradient(loss, model.trainable_variables), model.trainable_variables)
        return loss

    return [float(step(x, y)) for x, y in batches()]


def _plans(folder: str) -> None:
    lg.init()
    model, optimizer = network(), sgd()
    lg.schedule(model, optimizer, policy=by_name("p3"), partition_bytes="128B")
    losses = _train(model, optimizer)
    written = lg.current_plan(model)
    assert written.policy == "p3"
    assert set(written.partition_bytes) == {128}
    check(losses, model.get_weights(), sgd)
    path = Path(folder) / f"{lg.rank()}.json"
    path.write_text(written.to_json())
    lg.shutdown()

    lg.init()
    model, optimizer = network(), sgd()
    with pytest.raises(InputError, match="give it alone"):
        lg.schedule(model, optimizer, plan=path, policy="p3")
    model, optimizer = network(), sgd()
    lg.schedule(model, optimizer, plan=path)
    losses = _train(model, optimizer)
    assert lg.current_plan(model).partition_bytes == written.partition_bytes
    check(losses, model.get_weights(), sgd)


def test_a_policy_and_a_plan(crew: Crew, tmp_path: Path) -> None:
    crew.run(_plans, str(tmp_path))


def _codec(how: str) -> None:
    lg.init()
    model, optimizer = network(), sgd()
    if how == "schedule":
        lg.schedule(model, optimizer, compression="topk:0.5+ef", min_compress_bytes=0)
    else:
        lg.broadcast_variables(model.variables)
        lg.DistributedOptimizer(optimizer, compression="topk:0.5+ef", min_compress_bytes=0)
    losses = _train(model, optimizer)
    assert np.mean(losses[-5:]) < 0.5 * np.mean(losses[:5])
    with pytest.raises(AssertionError):  # what is not sent at once comes late
        check(losses, model.get_weights(), sgd)


@pytest.mark.parametrize("how", ["optimizer", "schedule"])
def test_codecs(crew: Crew, how: str) -> None:
    crew.run(_codec, how)


def _counted(how: str) -> dict[str, int]:
    """What the engine has counted in a training that equals one process's."""
    lg.init()
    model, optimizer = network(), sgd()
    if how == "schedule":
        lg.schedule(model, optimizer)
    else:
        lg.DistributedOptimizer(optimizer)
    losses = _train(model, optimizer)
    check(losses, model.get_weights(), sgd)
    counters: dict[str, int] = lg.init().group.session.engine.statistics()
    return counters


@pytest.mark.parametrize("how", ["optimizer", "schedule"])
def test_workers_on_one_host_use_no_network(crew: Crew, how: str) -> None:
    for counters in crew.run(_counted, how):
        assert counters["bytes_sent"] == 0
        assert counters["bytes_shared"] > 0


@pytest.mark.parametrize(("role", "how"), [("worker", "schedule"), ("joint", "optimizer")])
def test_a_dedicated_server_sums(crew: Crew, role: str, how: str) -> None:
    """All that travels, where workers do not serve; its share, where they do."""
    with dedicated_server(role) as (told, counters):
        crew.run(_counted, how, **told)
    assert counters["bytes_received"] > 0
    assert counters["bytes_sent"] > 0


def _refused() -> None:
    lg.init()
    for name in ("tuner", "staleness", "local_steps", "transport"):
        for call in (
            lambda **options: lg.schedule(network(), sgd(), **options),
            lambda **options: lg.DistributedOptimizer(sgd(), **options),
            lg.DistributedGradientTape,
        ):
            with pytest.raises(InputError, match=rf"{name} works in legato\.torch alone; accepted here: policy, "):
                call(**{name: 1})  # type: ignore[arg-type]
    with pytest.raises(InputError, match="polcy is unknown; accepted here: policy"):
        lg.schedule(network(), sgd(), polcy="fifo")  # type: ignore[call-arg]
    with pytest.raises(InputError, match="backups is 2; accepted is 0 to 1"):
        lg.schedule(network(), sgd(), backups=2)
    with pytest.raises(InputError, match="do not go with codecs"):
        lg.schedule(network(), sgd(), backups=1, compression="fp16")


def test_what_only_torch_has_is_refused(crew: Crew) -> None:
    crew.run(_refused)


def _staleness() -> None:
    lg.init()
    with pytest.raises(InputError, match="staleness of 4"):
        lg.schedule(network(), sgd())


def test_staleness_by_the_environment_is_refused(crew: Crew) -> None:
    crew.run(_staleness, LEGATO_STALENESS="4")
