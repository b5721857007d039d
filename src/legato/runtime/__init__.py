"""The runtime: the thread and the clock around the scheduling core. It knows no framework."""

from legato.runtime.record import Record
from legato.runtime.runtime import Observer, Runtime

__all__ = ["Observer", "Record", "Runtime"]
