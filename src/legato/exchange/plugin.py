"""What a plugin for a framework does, whatever it does it with: ByteScheduler's interface, by the place of a tensor."""

from typing import Any, Protocol

from numpy.typing import NDArray

from legato.core import Plan


class Plugin(Protocol):
    """The gradients of one model on one rank, tensors in the order of their first use.

    Each is a CommTask, step after step. The engine cuts it into parts and starts them, as the plan says:

        notify_ready ──► parts, started in the order of the plan ──► is_finished ──► wait_finish returns

    `legato.testing.plugin_contract` has the tests that an implementation should pass; examples/numpy_plugin.py does.
    """

    @property
    def plan(self) -> Plan:
        """How tensors are cut into parts, and in which order these start."""

    def notify_ready(self, place: int, gradient: NDArray[Any]) -> None:
        """A gradient is there. Returns at once, whatever the other ranks do."""

    def is_finished(self, place: int) -> bool:
        """Whether `wait_finish` would return at once."""

    def wait_finish(self, place: int) -> NDArray[Any]:
        """The dependency proxy: the tensor is used next, so wait for its average, and for no other."""
