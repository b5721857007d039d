"""What a user can ask for: codecs, plans, backups, servers, workers that share a host; and what is refused."""

from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import legato.jax as lg
from legato.core import Plan, Tensor
from legato.core.policies import Fifo
from legato.errors import InputError
from legato.jax.buffers import TreeExchange
from tests.crew import Crew, dedicated_server
from tests.jax.models import MODELS, OPTIMIZERS, WAYS, data, mlp

NUM_VALUES = 70_000
NUM_STEPS = 3


def exchange_of_this_job() -> TreeExchange:
    [exchange] = [kept for kept in lg.init().kept if isinstance(kept, TreeExchange)]
    return exchange


def gradient(rank: int, step: int) -> jax.Array:
    return jax.random.normal(jax.random.key(10 * step + rank), (NUM_VALUES,))


def average_by(way: str, compression: Any) -> tuple[list[Any], int]:
    """What a parameter goes down by in each of some jitted steps, and what this rank has sent for it."""

    def loss(value: jax.Array, target: jax.Array) -> jax.Array:
        return jnp.vdot(value, target)

    value = jnp.zeros(NUM_VALUES)
    seen = [np.asarray(value)]
    if way == "schedule":
        optimizer = lg.schedule(optax.sgd(1.0), compression=compression)
        state, step = optimizer.init(value), jax.jit(optimizer.step(loss))
        for number in range(NUM_STEPS):
            value, state, _ = step(value, state, gradient(lg.rank(), number))
            value, state = optimizer.finish(value, state)
            seen.append(np.asarray(value))
    else:
        gradients = jax.jit(lg.value_and_grad(loss, compression=compression))
        for number in range(NUM_STEPS):
            value = value - gradients(value, gradient(lg.rank(), number))[1]
            seen.append(np.asarray(value))
    sent: int = lg.init().group.session.engine.statistics()["bytes_sent"]
    return [before - after for before, after in pairwise(seen)], sent


@pytest.mark.parametrize("way", ["value_and_grad", "schedule"])
def test_codecs_in_a_jitted_step(crew: Crew, way: str) -> None:
    plain, half, largest = (
        crew.run(average_by, way, compression, LEGATO_SHARED_MEMORY="0") for compression in (None, "fp16", "topk:0.01")
    )
    exact = [(gradient(0, step) + gradient(1, step)) / 2 for step in range(NUM_STEPS)]
    for (averages, num_bytes), (rounded, half_bytes), (kept, few_bytes) in zip(plain, half, largest, strict=True):
        np.testing.assert_allclose(averages, exact, atol=1e-5)
        np.testing.assert_allclose(rounded, exact, atol=1e-2)
        assert np.abs(np.subtract(rounded, exact)).max() > 1e-5
        assert half_bytes < 0.6 * num_bytes
        # The steps' differences show rounding where a weight has not moved.
        assert all(0 < np.count_nonzero(np.abs(average) > 1e-3) <= 0.02 * NUM_VALUES for average in kept)
        assert few_bytes < 0.2 * num_bytes


def planned(given: Any) -> Plan:
    params, loss = mlp()
    optimizer = lg.schedule(optax.sgd(0.1), plan=given)
    jax.block_until_ready(jax.jit(optimizer.step(loss))(params, optimizer.init(params), *data()))
    return exchange_of_this_job().plan


@pytest.mark.parametrize("form", ["plan", "file"])
def test_a_whole_plan_is_followed(crew: Crew, form: str, tmp_path: Path) -> None:
    tensors = [Tensor(name=f"t{place}", num_bytes=1 << 14, priority=place) for place in range(4)]
    plan = Fifo().plan(tensors, partition_bytes=4096, credit_bytes=8192, buckets=((3, 2), (0,), (1,)))
    plan = replace(plan, flat=False)
    path = tmp_path / "plan.json"
    path.write_text(plan.to_json())
    for followed in crew.run(planned, plan if form == "plan" else str(path)):
        assert followed.partition_bytes == (4096,) * 3
        assert followed.credit_bytes == 8192
        assert sorted(map(len, followed.buckets)) == [1, 1, 2]


def without_the_slow_rank() -> list[float]:
    """Rank 1 is ready only when rank 0 has its average."""
    job = lg.init()
    averaged = jax.jit(lg.value_and_grad(lambda value, mine: jnp.sum(value * mine), backups=1))
    value, mine, seen = jnp.zeros(1000), jnp.full(1000, lg.rank() + 1.0), []
    averaged.lower(value, mine)  # all ranks agree on the tensors where it is traced
    for _ in range(NUM_STEPS):
        if lg.rank() == 1:
            job.group.barrier()
        average = averaged(value, mine)[1]
        seen.append(float(average[0]))
        assert float(average.min()) == float(average.max())
        if lg.rank() == 0:
            job.group.barrier()
    return seen


def test_backups(crew: Crew) -> None:
    assert crew.run(without_the_slow_rank) == [[1.0] * NUM_STEPS] * 2


def refused() -> list[str]:
    from jax.experimental.sparse import BCOO

    sparse = {"embedding": BCOO.fromdense(jnp.eye(3))}
    said = []
    for wrong in (
        lambda: lg.schedule(optax.sgd(0.1), tuner="twin"),  # type: ignore[call-arg]
        lambda: lg.value_and_grad(jnp.sum, staleness=2),  # type: ignore[call-arg]
        lambda: lg.DistributedOptimizer(optax.sgd(0.1), local_steps=4),  # type: ignore[call-arg]
        lambda: lg.value_and_grad(jnp.sum, backups=2)(jnp.ones(3)),
        lambda: lg.value_and_grad(jnp.sum, compression="zip")(jnp.ones(3)),
        lambda: lg.value_and_grad(jnp.sum, plan="plan.json", policy="p3")(jnp.ones(3)),
        lambda: lg.DistributedOptimizer(optax.sgd(0.1)).update(sparse, ()),
        lambda: lg.push_pull(sparse),
    ):
        with pytest.raises(InputError) as error:
            wrong()
        said.append(str(error.value))
    return said


def test_what_is_refused_in_one_line(crew: Crew) -> None:
    for said in crew.run(refused):
        words = [
            "tuner works in legato.torch alone; accepted here: policy,",
            "staleness works in legato.torch alone; accepted here: policy,",
            "local_steps works in legato.torch alone; accepted here: policy,",
            "backups is 2; accepted is 0 to 1 in a job of 2",
            "zip",
            "plan says it all",
            "['embedding'] is a BCOO; accepted are dense arrays",
            "['embedding'] is a BCOO; accepted are dense arrays",
        ]
        for line, expected in zip(said, words, strict=True):
            assert expected in line
            assert "\n" not in line.strip()


def train(way: str) -> tuple[Any, dict[str, int]]:
    params, loss = MODELS["mlp"]()
    trained = WAYS[way](OPTIMIZERS["adam"](), lg.broadcast(params), loss, 10)
    return trained, lg.init().group.session.engine.statistics()


def train_alone() -> Any:
    params, loss = MODELS["mlp"]()
    return WAYS["value_and_grad"](OPTIMIZERS["adam"](), params, loss, 10)


def check_trained(crew: Crew, ranks: list[Any]) -> None:
    [(alone, weights)] = crew.run(train_alone, size=1)
    (first, first_weights), (second, second_weights) = ranks
    np.testing.assert_allclose(np.add(first, second) / 2, alone, atol=2e-5)
    for mine, yours, expected in zip(first_weights, second_weights, weights, strict=True):
        np.testing.assert_array_equal(mine, yours)
        np.testing.assert_allclose(mine, expected, atol=2e-5)


@pytest.mark.parametrize("way", ["value_and_grad", "schedule"])
def test_workers_on_one_host_use_no_network(crew: Crew, way: str) -> None:
    ranks = crew.run(train, way)
    for _, counters in ranks:
        assert counters["bytes_sent"] == 0
        assert counters["bytes_shared"] > 0
    check_trained(crew, [trained for trained, _ in ranks])


@pytest.mark.parametrize("way", ["value_and_grad", "schedule"])
@pytest.mark.parametrize("role", ["worker", "joint"])
def test_a_dedicated_server_sums(crew: Crew, role: str, way: str) -> None:
    """All that travels, where workers do not serve; its share, where they do."""
    with dedicated_server(role) as (told, counters):
        ranks = crew.run(train, way, **told)
    check_trained(crew, [trained for trained, _ in ranks])
    assert counters["bytes_received"] > 0
    assert counters["bytes_sent"] > 0


def stale() -> None:
    lg.value_and_grad(jnp.sum)(jnp.ones(3))


def test_staleness_of_the_environment_is_refused(crew: Crew) -> None:
    for outcome in crew.outcomes(stale, LEGATO_STALENESS="4"):
        assert isinstance(outcome, InputError)
        assert "asks for a staleness of 4, which legato.torch alone has" in str(outcome)
