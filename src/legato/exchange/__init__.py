"""What every framework's room stands on: tensors that are averaged step after step, by the plan of the job."""

from legato.exchange.broadcast import broadcast_arrays
from legato.exchange.exchange import Exchange, TensorSpec
from legato.exchange.opening import ExchangeOptions, check_options, open_exchange
from legato.exchange.planner import NativePlanner
from legato.exchange.plugin import Plugin

__all__ = [
    "Exchange",
    "ExchangeOptions",
    "NativePlanner",
    "Plugin",
    "TensorSpec",
    "broadcast_arrays",
    "check_options",
    "open_exchange",
]
