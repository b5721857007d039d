"""Every block of docs/keras.md, as it stands there, on two ranks."""

from tests.crew import Crew
from tests.docs.blocks import KERAS, python_blocks


def follow(text: str) -> list[float]:
    import keras
    import numpy as np

    import legato.keras as lg

    lg.init()
    keras.utils.set_random_seed(0)
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(8, "tanh"), keras.layers.Dense(1)])
    x = np.random.default_rng(lg.rank()).normal(size=(32, 4)).astype("float32")
    exec(text, {"model": model, "optimizer": keras.optimizers.SGD(0.02), "x": x, "y": x[:, :1]})
    return [float(value) for each in model.get_weights() for value in each.ravel()]


def test_blocks(crew: Crew) -> None:
    for block in python_blocks(KERAS):
        first, second = crew.run(follow, block.text)
        assert (first == second) == ("legato" in block.text), block
