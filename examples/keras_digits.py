"""Handwritten digits in Keras 3, with `model.fit`.

torchrun --nproc-per-node 2 examples/keras_digits.py
KERAS_BACKEND=torch torchrun --nproc-per-node 2 examples/keras_digits.py
"""

import argparse

import keras
import numpy as np
from sklearn.datasets import load_digits

import legato.keras as lg


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--batch", type=int, default=32, help="images of each worker and step")
    parser.add_argument("--lr", type=float, default=0.02, help="of one worker")
    return parser.parse_args()


def classifier() -> keras.Model:
    return keras.Sequential(
        [
            keras.Input((8, 8, 1)),
            keras.layers.Conv2D(32, 3, padding="same", activation="relu"),
            keras.layers.MaxPooling2D(),
            keras.layers.Flatten(),
            keras.layers.Dense(128, activation="relu"),
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
    # Every worker trains on its own share; shares are of one length, so that all take the same number of steps.
    share = len(images[train]) // lg.size()
    mine = slice(test.stop + lg.rank() * share, test.stop + (lg.rank() + 1) * share)

    model = classifier()
    model.compile(
        optimizer=lg.DistributedOptimizer(keras.optimizers.SGD(options.lr, momentum=0.9)),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    model.fit(
        images[mine],
        labels[mine],
        batch_size=options.batch,
        epochs=options.epochs,
        validation_data=(images[test], labels[test]),
        verbose=2 if lg.rank() == 0 else 0,
        callbacks=[
            lg.BroadcastGlobalVariablesCallback(0),
            lg.MetricAverageCallback(),
            lg.LearningRateWarmupCallback(options.lr * lg.size(), warmup_epochs=2),
        ],
    )


if __name__ == "__main__":
    main()
