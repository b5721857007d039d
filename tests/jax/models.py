"""Small models, their data, and ways to train them."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

import legato.jax as lg

Loss = Callable[..., Any]

OPTIMIZERS: dict[str, Callable[[], optax.GradientTransformation]] = {
    "sgd": lambda: optax.sgd(0.1, momentum=0.9),
    "adam": lambda: optax.adam(1e-2),
    "clipped": lambda: optax.chain(optax.clip_by_global_norm(0.1), optax.sgd(0.1)),
}


def data(batch: int = 32) -> tuple[jax.Array, jax.Array]:
    """This rank's share of a batch that all ranks together see."""
    images, labels = jax.random.normal(jax.random.key(1), (batch, 16)), jnp.arange(batch) % 4
    share = slice(lg.rank() * batch // lg.size(), (lg.rank() + 1) * batch // lg.size())
    return images[share], labels[share]


def mlp() -> tuple[Any, Loss]:
    """Layers whose names are not in the order of their use."""
    keys = jax.random.split(jax.random.key(0), 3)
    params = {
        "c_first": jax.random.normal(keys[0], (16, 64)) / 4,
        "a_second": jax.random.normal(keys[1], (64, 64)) / 8,
        "b_third": {"kernel": jax.random.normal(keys[2], (64, 4)) / 8, "bias": jnp.zeros(4)},
    }

    def logits(params: Any, images: jax.Array) -> jax.Array:
        hidden = jnp.tanh(jnp.tanh(images @ params["c_first"]) @ params["a_second"])
        return hidden @ params["b_third"]["kernel"] + params["b_third"]["bias"]

    return params, cross_entropy(logits)


def scanned() -> tuple[Any, Loss]:
    """Layers in one stack, over which `scan` goes."""
    params = {
        "stack": jax.random.normal(jax.random.key(0), (4, 16, 16)) / 4,
        "head": jax.random.normal(jax.random.key(2), (16, 4)) / 4,
    }

    def logits(params: Any, images: jax.Array) -> jax.Array:
        hidden, _ = jax.lax.scan(lambda hidden, layer: (jnp.tanh(hidden @ layer), None), images, params["stack"])
        return hidden @ params["head"]

    return params, cross_entropy(logits)


def flax_model() -> tuple[Any, Loss]:
    from flax import linen as nn

    model = nn.Sequential([nn.Dense(32), nn.tanh, nn.Dense(4)])
    params = model.init(jax.random.key(0), jnp.zeros((1, 16)))
    return params, cross_entropy(model.apply)


def equinox_model() -> tuple[Any, Loss]:
    import equinox as eqx

    params, static = eqx.partition(eqx.nn.MLP(16, 4, 32, 2, key=jax.random.key(0)), eqx.is_inexact_array)
    return params, cross_entropy(lambda params, images: jax.vmap(eqx.combine(params, static))(images))


def cross_entropy(logits: Callable[[Any, jax.Array], Any]) -> Loss:
    def loss(params: Any, images: jax.Array, labels: jax.Array) -> jax.Array:
        losses: jax.Array = optax.softmax_cross_entropy_with_integer_labels(logits(params, images), labels)
        return losses.mean()

    return loss


def by_value_and_grad(optimizer: optax.GradientTransformation, params: Any, loss: Loss, steps: int) -> Any:
    return _within_steps(optimizer, lg.value_and_grad(loss), params, steps)


def by_optimizer(optimizer: optax.GradientTransformation, params: Any, loss: Loss, steps: int) -> Any:
    return _within_steps(lg.DistributedOptimizer(optimizer), jax.value_and_grad(loss), params, steps)


def by_schedule(optimizer: optax.GradientTransformation, params: Any, loss: Loss, steps: int) -> Any:
    scheduled = lg.schedule(optimizer)
    step = jax.jit(scheduled.step(loss), donate_argnums=0)
    state, losses = scheduled.init(params), []
    for _ in range(steps):
        params, state, value = step(params, state, *data())
        losses.append(float(value))
    params, state = scheduled.finish(params, state)
    return losses, numpy(params)


def by_hand(optimizer: optax.GradientTransformation, params: Any, loss: Loss, steps: int) -> Any:
    """`finish` and `start` in a step of the user's own."""
    scheduled = lg.schedule(optimizer, first_use=lg.first_use(loss, params, *data()))

    @jax.jit
    def step(params: Any, state: lg.ScheduledState, images: jax.Array, labels: jax.Array) -> Any:
        params, state = scheduled.finish(params, state)
        value, gradients = jax.value_and_grad(loss)(params, images, labels)
        return params, scheduled.start(gradients, state), value

    state, losses = scheduled.init(params), []
    for number in range(steps):
        if number == steps // 2:  # as before an evaluation
            params, state = scheduled.finish(params, state)
        params, state, value = step(params, state, *data())
        losses.append(float(value))
    params, state = scheduled.finish(params, state)
    return losses, numpy(params)


def _within_steps(optimizer: optax.GradientTransformation, value_and_grad: Any, params: Any, steps: int) -> Any:
    @jax.jit
    def step(params: Any, state: Any, images: jax.Array, labels: jax.Array) -> Any:
        value, gradients = value_and_grad(params, images, labels)
        updates, state = optimizer.update(gradients, state, params)
        return optax.apply_updates(params, updates), state, value

    state, losses = optimizer.init(params), []
    for _ in range(steps):
        params, state, value = step(params, state, *data())
        losses.append(float(value))
    return losses, numpy(params)


def numpy(params: Any) -> list[np.ndarray[Any, Any]]:
    return [np.asarray(leaf) for leaf in jax.tree.leaves(params)]


MODELS = {"mlp": mlp, "scan": scanned, "flax": flax_model, "equinox": equinox_model}
WAYS = {
    "value_and_grad": by_value_and_grad,
    "optimizer": by_optimizer,
    "schedule": by_schedule,
    "by hand": by_hand,
}
