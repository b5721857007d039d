"""Legato for Keras 3, on TensorFlow, torch and JAX.

import legato.keras as lg
lg.init()
model.compile(lg.DistributedOptimizer(keras.optimizers.Adam()), loss)
model.fit(..., callbacks=[lg.BroadcastGlobalVariablesCallback(0), lg.MetricAverageCallback()])
"""

from legato.keras import callbacks
from legato.keras.api import (
    DistributedOptimizer,
    broadcast_variables,
    init,
    local_rank,
    local_size,
    rank,
    shutdown,
    size,
)
from legato.keras.callbacks import (
    BroadcastGlobalVariablesCallback,
    LearningRateScheduleCallback,
    LearningRateWarmupCallback,
    MetricAverageCallback,
)
from legato.keras.models import load_model

__all__ = [
    "BroadcastGlobalVariablesCallback",
    "DistributedOptimizer",
    "LearningRateScheduleCallback",
    "LearningRateWarmupCallback",
    "MetricAverageCallback",
    "broadcast_variables",
    "callbacks",
    "init",
    "load_model",
    "local_rank",
    "local_size",
    "rank",
    "shutdown",
    "size",
]
