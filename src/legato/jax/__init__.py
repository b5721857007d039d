"""Legato for JAX.

import legato.jax as lg
lg.init()
params = lg.broadcast(params)
optimizer = lg.schedule(optax.adam(1e-3))
state = optimizer.init(params)
step = jax.jit(optimizer.step(loss))  # params, state, value = step(params, state, batch)
"""

from legato.exchange import ExchangeOptions
from legato.jax.api import (
    DistributedOptimizer,
    broadcast,
    check,
    init,
    is_initialized,
    local_rank,
    local_size,
    push_pull,
    rank,
    schedule,
    shutdown,
    size,
    typed_errors,
    value_and_grad,
)
from legato.jax.hooks import Schedule, ScheduledState
from legato.jax.tracing import first_use

__all__ = [
    "DistributedOptimizer",
    "ExchangeOptions",
    "Schedule",
    "ScheduledState",
    "broadcast",
    "check",
    "first_use",
    "init",
    "is_initialized",
    "local_rank",
    "local_size",
    "push_pull",
    "rank",
    "schedule",
    "shutdown",
    "size",
    "typed_errors",
    "value_and_grad",
]
