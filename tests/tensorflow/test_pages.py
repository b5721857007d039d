"""Every block of docs/tensorflow.md, as it stands there, on two ranks."""

from typing import Any

from tests.crew import Crew
from tests.docs.blocks import TENSORFLOW, python_blocks


def follow(texts: list[str]) -> list[tuple[bool, list[float]]]:
    """Block after block: whether it averages, and the weights after some steps."""
    import keras
    import tensorflow as tf

    import legato.tensorflow as lg

    lg.init()
    found = []
    earlier: dict[str, Any] = {}
    for text in texts:
        keras.utils.set_random_seed(0)
        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(8, "tanh"), keras.layers.Dense(1)])
        tf.random.set_seed(lg.rank())
        batches = [(values, values[:, :1]) for values in tf.unstack(tf.random.normal((3, 16, 4)))]
        given = {
            "tf": tf,
            "keras": keras,
            "model": model,
            "loss_of": keras.losses.MeanSquaredError(),
            "batches": batches,
        }
        given |= {"lg": lg, "optimizer": keras.optimizers.SGD(0.1)}
        if "def step" not in text:  # a loop around the step of the block before
            given = earlier
        exec(text, given)
        for inputs, targets in batches:
            given["step"](inputs, targets)
        if "schedule" in text:
            lg.flush(given["model"])
        found.append(("legato" in text, [float(v) for each in given["model"].get_weights() for v in each.ravel()]))
        earlier = given
    return found


def test_blocks(crew: Crew) -> None:
    first, second = crew.run(follow, [block.text for block in python_blocks(TENSORFLOW)])
    for (averages, mine), (_, other) in zip(first, second, strict=True):
        assert not averages or mine == other
    assert sum(averages for averages, _ in first) == 2
