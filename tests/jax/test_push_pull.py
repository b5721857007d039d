"""Averages and broadcasts of trees: by themselves, in compiled programs, and through derivatives."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import legato.jax as lg
from tests.crew import Crew


def ranks() -> dict[str, jax.Array]:
    """What differs between the ranks: 1 and 2, so that their average is 1.5."""
    value = lg.rank() + 1
    return {"matrix": jnp.full((300, 200), float(value)), "scalar": jnp.float32(value), "half": jnp.bfloat16(value)}


def averages() -> list[Any]:
    twice = [lg.push_pull(ranks()), lg.push_pull(ranks())]
    compiled = jax.jit(lambda tree: lg.push_pull(jax.tree.map(lambda leaf: 2 * leaf, tree), name="tree"))
    many = [compiled(ranks()) for _ in range(3)]
    return [
        {name: (leaf.shape, str(leaf.dtype), float(leaf.min()), float(leaf.max())) for name, leaf in tree.items()}
        for tree in (*twice, *many)
    ]


def test_averages(crew: Crew) -> None:
    def expected(value: float) -> dict[str, Any]:
        return {
            "matrix": ((300, 200), "float32", value, value),
            "scalar": ((), "float32", value, value),
            "half": ((), "bfloat16", value, value),
        }

    for rank in crew.run(averages):
        assert rank == [expected(1.5)] * 2 + [expected(3.0)] * 3


def derivative() -> list[float]:
    """Of the average of x² over all ranks, weighted differently on each: the weights are averaged too."""
    weight = lg.rank() + 1.0

    def value(x: jax.Array) -> jax.Array:
        return weight * jnp.sum(lg.push_pull(x * x, name="squares"))

    x = jnp.array([1.0, 2.0])
    return [*jax.grad(value)(x).tolist(), *jax.jit(jax.grad(value))(x).tolist()]


def test_derivative(crew: Crew) -> None:
    assert crew.run(derivative) == [[3.0, 6.0] * 2] * 2


def in_a_loop() -> list[float]:
    def body(carry: jax.Array, _: None) -> tuple[jax.Array, jax.Array]:
        carry = lg.push_pull(carry * (lg.rank() + 1), name="carry")
        return carry, carry

    return [float(value) for value in jax.jit(lambda: jax.lax.scan(body, jnp.float32(1), None, length=3))()[1]]


def test_in_a_scan(crew: Crew) -> None:
    assert crew.run(in_a_loop) == [[1.5, 2.25, 3.375]] * 2


def from_root() -> list[list[float]]:
    tree = {"a": jnp.full(3, float(lg.rank())), "b": [jnp.int32(lg.rank()), jnp.bfloat16(lg.rank())]}
    return [jax.tree.leaves(jax.tree.map(lambda leaf: leaf.tolist(), lg.broadcast(tree, root=root))) for root in (0, 1)]


def test_broadcast(crew: Crew) -> None:
    assert crew.run(from_root) == [[[0.0, 0.0, 0.0, 0, 0.0], [1.0, 1.0, 1.0, 1, 1.0]]] * 2


def from_a_root_that_lies_otherwise() -> list[list[float]]:
    """numpy's copies keep the order of what they copy."""
    matrix = np.arange(6.0, dtype=np.float32).reshape(2, 3) * (lg.rank() + 1)
    return lg.broadcast(np.asfortranarray(matrix) if lg.rank() else matrix, root=1).tolist()


def test_broadcast_of_arrays_that_lie_in_different_orders(crew: Crew) -> None:
    assert crew.run(from_a_root_that_lies_otherwise) == [[[0.0, 2.0, 4.0], [6.0, 8.0, 10.0]]] * 2


def test_alone(crew: Crew) -> None:
    [[tree, *_]] = crew.run(averages, size=1)
    assert tree["matrix"][2:] == (1.0, 1.0)
