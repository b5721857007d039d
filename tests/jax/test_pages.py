"""Every block of docs/jax.md, as it stands there, on two ranks."""

from typing import Any

from tests.crew import Crew
from tests.docs.blocks import JAX, python_blocks


def follow(text: str) -> tuple[list[float], list[float]]:
    """The weights before and after some steps."""
    import jax
    import jax.numpy as jnp
    import optax

    import legato.jax as lg

    def loss(params: Any, batch: Any) -> Any:
        hidden = jnp.tanh(batch @ params["first"])
        return ((hidden @ params["second"] - batch[:, :1]) ** 2).mean()

    keys = jax.random.split(jax.random.key(0), 2)
    params = {"first": jax.random.normal(keys[0], (4, 8)), "second": jax.random.normal(keys[1], (8, 1))}
    batch = jax.random.normal(jax.random.key(1 + lg.rank()), (16, 4))
    given: dict[str, Any] = {"jax": jax, "optax": optax, "lg": lg, "loss": loss, "params": params, "batch": batch}

    def flat(tree: Any) -> list[float]:
        return [float(value) for leaf in jax.tree.leaves(tree) for value in leaf.ravel()]

    before = flat(params)
    exec(text, given)
    optimizer = given["optimizer"]
    params, state = given["params"], given.get("state") or optimizer.init(given["params"])
    for _ in range(3):
        params, state, _ = given["step"](params, state, batch)
    if hasattr(optimizer, "finish"):
        params, _ = optimizer.finish(params, state)
    return before, flat(params)


def test_blocks(crew: Crew) -> None:
    for block in python_blocks(JAX):
        (before, first), (_, second) = crew.run(follow, block.text)
        assert first != before, block
        assert (first == second) == ("lg." in block.text), block
