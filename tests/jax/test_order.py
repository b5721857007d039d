"""Leaves travel in the order of their first use, however they are named and wherever the function uses them."""

from typing import Any

import jax
import jax.numpy as jnp
import optax

import legato.jax as lg
from legato.jax.buffers import TreeExchange
from tests.crew import Crew
from tests.jax.models import data, mlp


def order_of(function: Any) -> list[int]:
    return lg.first_use(function, {name: jnp.ones((4, 4)) for name in "abcd"}, jnp.ones(4))


def orders() -> list[list[int]]:
    def plain(tree: Any, x: jax.Array) -> jax.Array:
        return tree["b"] @ (tree["a"] @ (tree["c"] @ x))

    def cast_first(tree: Any, x: jax.Array) -> jax.Array:
        return plain(jax.tree.map(lambda leaf: leaf.astype(jnp.bfloat16).T, tree), x)

    def nested(tree: Any, x: jax.Array) -> jax.Array:
        inner = jax.checkpoint(jax.jit(lambda second, first: second @ jax.nn.relu(first @ x)))
        return tree["d"] @ inner(tree["a"], tree["b"])

    def scanned(tree: Any, x: jax.Array) -> jax.Array:
        x, _ = jax.lax.scan(lambda x, row: (x * row + tree["d"][0], None), x, tree["c"])
        return tree["a"] @ x

    return [order_of(function) for function in (plain, cast_first, nested, scanned)]


def test_first_use(crew: Crew) -> None:
    [found] = crew.run(orders, size=1)
    assert found[:3] == [[2, 0, 1, 3], [2, 0, 1, 3], [1, 0, 3, 2]]
    assert found[3][2:] == [0, 1]


def planned() -> list[str]:
    params, loss = mlp()
    optimizer = lg.schedule(optax.sgd(0.1), policy="p3")
    step = jax.jit(optimizer.step(loss))
    jax.block_until_ready(step(params, optimizer.init(params), *data()))
    [exchange] = [kept for kept in lg.init().kept if isinstance(kept, TreeExchange)]
    ranked = sorted(exchange.plan.ranked_buckets, key=lambda bucket: bucket[2])  # as sums come home
    return [exchange.names[place] for places, _, _ in ranked for place in places]


def test_a_schedule_follows_it(crew: Crew) -> None:
    kernel, bias = "['b_third']['kernel']", "['b_third']['bias']"
    assert crew.run(planned) == [["['c_first']", "['a_second']", kernel, bias]] * 2
