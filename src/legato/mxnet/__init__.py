"""Legato for MXNet: communication scheduling under Gluon's `Trainer` and `Module.fit`."""

from legato.mxnet.api import ScheduledKVStore

__all__ = ["ScheduledKVStore"]
