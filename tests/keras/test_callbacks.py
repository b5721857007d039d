"""The callbacks: what each does to metrics and to the learning rate."""

import pytest

pytest.importorskip("tensorflow")

import keras

import legato.keras as lg
from legato.errors import InputError
from tests.crew import Crew
from tests.keras.cases import BATCH, STEPS, data, mine, network, sgd


class _Rates(keras.callbacks.Callback):  # type: ignore[misc]
    """The learning rate of every batch."""

    def __init__(self) -> None:
        super().__init__()
        self.rates: list[float] = []

    def on_train_batch_end(self, *_: object, **__: object) -> None:
        self.rates.append(float(keras.ops.convert_to_numpy(self.model.optimizer.learning_rate)))


def _rates(callback: keras.callbacks.Callback, epochs: int) -> tuple[list[float], list[float]]:
    """By batch; and what the history says of each epoch."""
    model = network()
    model.compile(lg.DistributedOptimizer(sgd()), "mse")
    x, y = (mine(samples, lg.rank()) for samples in data())
    watch = _Rates()
    history = model.fit(x, y, batch_size=BATCH, epochs=epochs, verbose=0, callbacks=[callback, watch])
    return watch.rates, history.history["lr"]


def schedules() -> None:
    lg.init()
    rates, by_epoch = _rates(lg.LearningRateScheduleCallback(0.5, lambda epoch: 0.5**epoch, start_epoch=1), 3)
    assert rates == pytest.approx([0.05] * STEPS + [0.25] * STEPS + [0.125] * STEPS)
    assert by_epoch == pytest.approx([0.05, 0.25, 0.125])
    rates, _ = _rates(lg.LearningRateScheduleCallback(0.5, 0.1, end_epoch=1), 2)
    assert rates == pytest.approx([0.05] * 2 * STEPS)
    rates, _ = _rates(lg.LearningRateScheduleCallback(1.0, lambda epoch: 1 + epoch, staircase=False), 2)
    assert rates == pytest.approx([1 + batch / STEPS for batch in range(2 * STEPS)])
    with pytest.raises(InputError, match="momentum_correction"):
        lg.LearningRateScheduleCallback(0.5, 0.1, momentum_correction=True)


def test_learning_rate_schedule(crew: Crew) -> None:
    crew.run(schedules)


def warm_up() -> None:
    lg.init()
    rates, _ = _rates(lg.LearningRateWarmupCallback(0.2, warmup_epochs=2), 3)
    rise = [0.1 * (1 + (batch + 1) / (2 * STEPS)) for batch in range(2 * STEPS)]
    assert rates == pytest.approx([*rise, *[0.2] * STEPS])


def test_warm_up_rises_from_one_workers_rate_to_that_of_all(crew: Crew) -> None:
    crew.run(warm_up)


def metrics() -> None:
    lg.init()
    logs = {"loss": lg.rank() + 1.0, "accuracy": 0.5 * lg.rank()}
    lg.MetricAverageCallback().on_epoch_end(0, logs)
    assert logs == {"loss": 1.5, "accuracy": 0.25}
    lg.MetricAverageCallback().on_epoch_end(1, logs)
    assert logs == {"loss": 1.5, "accuracy": 0.25}


def test_metrics_are_averaged(crew: Crew) -> None:
    crew.run(metrics)
