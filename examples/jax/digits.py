"""Handwritten digits, as bundled with scikit-learn, and a convolutional classifier in JAX.

torchrun --nproc-per-node 2 examples/jax/digits.py            # averages are awaited in the next step, layer by layer
torchrun --nproc-per-node 2 examples/jax/digits.py --in-step  # averages are awaited at the end of each step
"""

import argparse
import time
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from sklearn.datasets import load_digits

import legato.jax as lg


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--batch", type=int, default=32, help="images of each worker and step")
    parser.add_argument("--lr", type=float, default=0.05)
    parser.add_argument("--in-step", action="store_true", help="wait for all averages before the step ends")
    return parser.parse_args()


def classifier(key: jax.Array) -> dict[str, jax.Array]:
    """Each worker's own; broadcast makes them the same."""
    shapes = {"conv1": (3, 3, 1, 32), "conv2": (3, 3, 32, 64), "dense1": (64 * 4 * 4, 256), "dense2": (256, 10)}
    initialize = jax.nn.initializers.he_normal(in_axis=-2, out_axis=-1)
    keys = jax.random.split(key, len(shapes))
    return {name: initialize(each, shape) for each, (name, shape) in zip(keys, shapes.items(), strict=True)}


def logits(params: dict[str, jax.Array], images: jax.Array) -> jax.Array:
    layout = ("NHWC", "HWIO", "NHWC")
    hidden = images
    for name in ("conv1", "conv2"):
        hidden = jax.lax.conv_general_dilated(hidden, params[name], (1, 1), "SAME", dimension_numbers=layout)
        hidden = jax.nn.relu(hidden)
    pooled = hidden.reshape(-1, 4, 2, 4, 2, 64).max((2, 4)).reshape(len(images), -1)
    return jax.nn.relu(pooled @ params["dense1"]) @ params["dense2"]


def loss(params: dict[str, jax.Array], images: jax.Array, labels: jax.Array) -> jax.Array:
    losses: jax.Array = optax.softmax_cross_entropy_with_integer_labels(logits(params, images), labels)
    return losses.mean()


def in_step(optimizer: optax.GradientTransformation) -> Any:
    """A step as without legato, but for the gradients: they are averages."""
    value_and_grad = lg.value_and_grad(loss)

    def step(params: Any, state: Any, images: jax.Array, labels: jax.Array) -> tuple[Any, Any, jax.Array]:
        value, gradients = value_and_grad(params, images, labels)
        updates, state = optimizer.update(gradients, state, params)
        return optax.apply_updates(params, updates), state, value

    return step


def main() -> None:
    options = arguments()
    lg.init()
    images, labels = load_digits(return_X_y=True)
    images = images.astype(np.float32).reshape(-1, 8, 8, 1) / 16
    test, train = slice(0, 297), slice(297, None)

    params = lg.broadcast(classifier(jax.random.key(lg.rank())))
    optimizer = optax.sgd(options.lr, momentum=0.9)
    scheduled = lg.schedule(optimizer)
    state = (optimizer if options.in_step else scheduled).init(params)
    step = jax.jit(in_step(optimizer) if options.in_step else scheduled.step(loss))

    sampler = np.random.default_rng(lg.rank())
    since_s = time.perf_counter()
    with lg.typed_errors():
        for number in range(options.steps):
            batch = sampler.integers(len(images[train]), size=options.batch)
            params, state, value = step(params, state, images[train][batch], labels[train][batch])
            if number % 10 == 9 or number == 0:
                mean = float(lg.push_pull(value))
                if lg.rank() == 0:
                    print(f"step {number + 1}  loss {mean:.4f}", flush=True)
        if not options.in_step:
            params, state = scheduled.finish(params, state)
        accuracy = float((logits(params, jnp.asarray(images[test])).argmax(1) == labels[test]).mean())
    if lg.rank() == 0:
        milliseconds = (time.perf_counter() - since_s) / options.steps * 1e3
        workers = "1 worker" if lg.size() == 1 else f"{lg.size()} workers"
        print(f"legato, {workers}: {milliseconds:.1f} ms a step, compiling included")
        print(f"accuracy {accuracy:.3f} on {len(images[test])} digits not trained on")


if __name__ == "__main__":
    main()
