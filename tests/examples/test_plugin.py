"""The plugin for a toy framework: it keeps the contract, and two workers train as one process on the joined batch."""

from collections.abc import Sequence
from typing import Any, Unpack

import numpy as np
from numpy.typing import NDArray

from examples.numpy_plugin import Dense, Scheduled
from legato.core import Plan
from legato.exchange import Exchange, ExchangeOptions, TensorSpec
from legato.job import Job
from legato.testing.plugin_contract import PluginContract
from tests.examples.test_examples import ended, losses, torchrun
from tests.programs import Programs

SCRIPT = "examples/numpy_plugin.py"


def test_two_workers_train_as_one_process_on_the_joined_batch(programs: Programs) -> None:
    """Both workers' images of a step are those of one process, and so is the mean of their losses."""
    alone = ended(programs.start(SCRIPT, "--steps", "50", "--batch", "32"))
    together = torchrun(programs, SCRIPT, "--steps", "50", "--batch", "16")
    assert len(losses(alone)) == 6
    assert losses(alone)[-1] < losses(alone)[0] / 2
    assert all(abs(one - two) < 2e-4 for one, two in zip(losses(alone), losses(together), strict=True))
    assert "legato, 2 workers: " in together


class Driven:
    """The toy's plugin, as the contract drives it."""

    def __init__(self, scheduled: Scheduled, layers: Sequence[Dense]) -> None:
        assert scheduled.exchange is not None
        self._exchange: Exchange = scheduled.exchange
        self._scheduled = scheduled
        self._layers = layers

    @property
    def plan(self) -> Plan:
        return self._exchange.plan

    def notify_ready(self, place: int, gradient: NDArray[Any]) -> None:
        self._layers[place].gradient[:] = gradient
        self._scheduled.notify_ready(place)

    def is_finished(self, place: int) -> bool:
        return self._exchange.poll(place)

    def wait_finish(self, place: int) -> NDArray[Any]:
        """The plugin updates a weight, at a rate of 1, where it waits for its average."""
        layer = self._layers[place]
        before = layer.weight.copy()
        self._scheduled.wait_finish(place)
        np.testing.assert_allclose(before - layer.weight, layer.gradient, atol=1e-4)
        return layer.gradient


class TestContract(PluginContract):
    def plugin(self, job: Job, tensors: Sequence[TensorSpec], **options: Unpack[ExchangeOptions]) -> Driven:
        rng = np.random.default_rng(0)
        layers = [Dense(rng, tensor.shape[0] - 1, tensor.shape[1]) for tensor in tensors]
        return Driven(Scheduled(job, layers, 1.0, **options), layers)
