"""Callbacks for `model.fit`, as Horovod and BytePS name them."""

from collections.abc import Callable
from typing import Any

import keras
import numpy as np

from legato.errors import InputError
from legato.keras.api import broadcast_variables, size
from legato.keras.backend import backend


class BroadcastGlobalVariablesCallback(keras.callbacks.Callback):  # type: ignore[misc] # keras ships no types
    """Everybody begins with the root's weights and optimizer state."""

    def __init__(self, root_rank: int = 0) -> None:
        super().__init__()
        self.root_rank = root_rank

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:  # noqa: ARG002 - Keras's signature
        """By now Keras has built the model and the optimizer."""
        broadcast_variables([*self.model.variables, *self.model.optimizer.variables], self.root_rank)


class MetricAverageCallback(keras.callbacks.Callback):  # type: ignore[misc]
    """Averages an epoch's metrics over the workers. List it before callbacks that read them."""

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:  # noqa: ARG002
        if not logs or size() == 1:
            return
        names = sorted(logs)
        values = np.array([float(logs[name]) for name in names], np.float64)
        backend().job().group.push_pull("legato.keras/metrics " + ", ".join(names), values, reduction="average")
        logs.update(zip(names, values.tolist(), strict=True))


class LearningRateScheduleCallback(keras.callbacks.Callback):  # type: ignore[misc]
    """The learning rate is `initial_lr` times a multiplier, from `start_epoch` until `end_epoch`.

    `multiplier` is a number, or a function of the epoch. With `staircase` it is asked once an epoch; without, at every
    batch, with the fraction of the epoch that is over.
    """

    def __init__(
        self,
        initial_lr: float,
        multiplier: float | Callable[[float], float],
        *,
        start_epoch: int = 0,
        end_epoch: int | None = None,
        staircase: bool = True,
        momentum_correction: bool = False,
        steps_per_epoch: int | None = None,
    ) -> None:
        super().__init__()
        if momentum_correction:
            raise InputError("momentum_correction: Keras 3 compiles the momentum into the step; accepted is False")
        self.initial_lr = initial_lr
        self.start_epoch = start_epoch
        self.end_epoch = end_epoch
        self.steps_per_epoch = steps_per_epoch
        self._multiplier = multiplier if callable(multiplier) else lambda _: multiplier
        self._staircase = staircase or not callable(multiplier)
        self._epoch = 0

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:  # noqa: ARG002
        if self._staircase:
            return
        self.steps_per_epoch = self.steps_per_epoch or (self.params or {}).get("steps")
        if not self.steps_per_epoch:
            raise InputError("steps_per_epoch is unknown here: the dataset has no length; give it to the callback")

    def on_epoch_begin(self, epoch: int, logs: dict[str, Any] | None = None) -> None:  # noqa: ARG002
        self._epoch = epoch
        if self._staircase and self._applies():
            self._set(self._multiplier(epoch))

    def on_train_batch_begin(self, batch: int, logs: dict[str, Any] | None = None) -> None:  # noqa: ARG002
        if not self._staircase and self._applies():
            assert self.steps_per_epoch
            self._set(self._multiplier(self._epoch + batch / self.steps_per_epoch))

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:  # noqa: ARG002
        if logs is not None:
            logs["lr"] = float(keras.ops.convert_to_numpy(self.model.optimizer.learning_rate))

    def _applies(self) -> bool:
        return self.start_epoch <= self._epoch and (self.end_epoch is None or self._epoch < self.end_epoch)

    def _set(self, multiplier: float) -> None:
        self.model.optimizer.learning_rate = self.initial_lr * multiplier


class LearningRateWarmupCallback(LearningRateScheduleCallback):
    """From one worker's learning rate to `initial_lr`, that of all of them together, over the first epochs.

    `initial_lr` is already multiplied by the number of workers; the rate begins at `initial_lr` / workers and rises
    with every batch (Goyal et al., Accurate, Large Minibatch SGD, 2017).
    """

    def __init__(
        self,
        initial_lr: float,
        *,
        warmup_epochs: int = 5,
        momentum_correction: bool = False,
        steps_per_epoch: int | None = None,
        verbose: int = 0,
    ) -> None:
        super().__init__(
            initial_lr,
            self._rise,
            end_epoch=warmup_epochs,
            staircase=False,
            momentum_correction=momentum_correction,
            steps_per_epoch=steps_per_epoch,
        )
        self.warmup_epochs = warmup_epochs
        self.verbose = verbose

    def _rise(self, epoch: float) -> float:
        """The last batch of the warm-up has the whole rate."""
        assert self.steps_per_epoch
        epochs = epoch + 1.0 / self.steps_per_epoch
        return (1.0 + epochs * (size() - 1) / self.warmup_epochs) / size()

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        super().on_epoch_end(epoch, logs)
        if self.verbose and epoch == self.warmup_epochs - 1:
            print(f"\nepoch {epoch + 1}: warm-up is over, the learning rate is {self.initial_lr:g}")
