"""JAX keeps the contract of plugins: leaves that compiled programs start and finish are CommTasks like any other."""

from collections.abc import Sequence
from typing import Any, Unpack

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

import legato.jax as lg
from legato.core import Plan
from legato.exchange import ExchangeOptions, TensorSpec
from legato.jax.buffers import TreeExchange
from legato.job import Job
from legato.testing.plugin_contract import PluginContract


class Driven:
    """A tree of gradients, as the contract drives it: one leaf at a time."""

    def __init__(self, job: Job, tensors: Sequence[TensorSpec], options: ExchangeOptions) -> None:
        like = {tensor.name: jnp.zeros(tensor.shape, tensor.dtype) for tensor in tensors}
        self._job = job
        self._like = list(like.values())
        self._exchange = TreeExchange(job, like, options)
        self._started: dict[int, jax.Array] = {}

    @property
    def plan(self) -> Plan:
        return self._exchange.plan

    def notify_ready(self, place: int, gradient: NDArray[Any]) -> None:
        self._started[place] = self._exchange.start_leaf(place, jnp.asarray(gradient), np.zeros((), np.uint32))

    def is_finished(self, place: int) -> bool:
        return self._exchange.is_finished(place)

    def wait_finish(self, place: int) -> NDArray[Any]:
        with lg.typed_errors(job=self._job):
            return np.asarray(self._exchange.finish_leaf(place, self._started[place], self._like[place]))


class TestContract(PluginContract):
    def plugin(self, job: Job, tensors: Sequence[TensorSpec], **options: Unpack[ExchangeOptions]) -> Driven:
        return Driven(job, tensors, options)
