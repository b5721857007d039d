"""Handwritten digits in TensorFlow, with a training loop of your own in a `tf.function`.

torchrun --nproc-per-node 2 examples/tensorflow_digits.py              # updates wait for their own gradients alone
torchrun --nproc-per-node 2 examples/tensorflow_digits.py --barrier    # all updates at the end of the step
"""

import argparse
import time
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from sklearn.datasets import load_digits

import legato.tensorflow as lg


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--batch", type=int, default=32, help="images of each worker and step")
    parser.add_argument("--lr", type=float, default=0.05)
    parser.add_argument("--barrier", action="store_true", help="DistributedGradientTape instead of schedule")
    return parser.parse_args()


def classifier() -> keras.Model:
    return keras.Sequential(
        [
            keras.Input((8, 8, 1)),
            keras.layers.Conv2D(32, 3, padding="same", activation="relu"),
            keras.layers.Conv2D(64, 3, padding="same", activation="relu"),
            keras.layers.MaxPooling2D(),
            keras.layers.Flatten(),
            keras.layers.Dense(256, activation="relu"),
            keras.layers.Dense(10),
        ]
    )


def main() -> None:
    options = arguments()
    lg.init()
    keras.utils.set_random_seed(lg.rank())
    images, labels = load_digits(return_X_y=True)
    images = (images.reshape(-1, 8, 8, 1) / 16).astype(np.float32)
    test, train = slice(0, 297), slice(297, None)

    model = classifier()
    optimizer = keras.optimizers.SGD(options.lr, momentum=0.9)
    loss_of = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    if options.barrier:
        lg.broadcast_variables(model.variables, root_rank=0)
    else:
        model, optimizer = lg.schedule(model, optimizer)

    @tf.function
    def step(x: Any, y: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = loss_of(y, model(x, training=True))
        if options.barrier:
            tape = lg.DistributedGradientTape(tape)
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return loss

    sampler = np.random.default_rng(lg.rank())
    begin_s = time.perf_counter()
    for number in range(1, options.steps + 1):
        batch = sampler.integers(len(images[train]), size=options.batch)
        loss = step(tf.constant(images[train][batch]), tf.constant(labels[train][batch]))
        if lg.rank() == 0 and (number == 1 or number % max(options.steps // 10, 1) == 0):
            print(f"step {number:4d}  loss {float(loss):.4f}", flush=True)
    step_s = (time.perf_counter() - begin_s) / options.steps

    accuracy = float(np.mean(model.predict(images[test], verbose=0).argmax(1) == labels[test]))
    if lg.rank() == 0:
        print(f"{lg.size()} workers: {step_s * 1e3:.1f} ms a step, the first included")
        print(f"accuracy {accuracy:.3f} on {len(images[test])} digits not trained on")


if __name__ == "__main__":
    main()
