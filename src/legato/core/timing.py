"""What a policy may know of time when it makes a plan."""

from dataclasses import dataclass

from legato.errors import InputError


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """Times by tensor index, measured or assumed, and the price of an operation: α + bytes × β."""

    forward_s: tuple[float, ...]
    """Forward time of the layer that uses the tensor."""
    backward_s: tuple[float, ...]
    """Backward time of that layer."""
    startup_s: float = 0.0
    """Cost of an operation before its first byte (α)."""
    seconds_per_byte: float = 0.0
    """Cost of each byte (β)."""

    def __post_init__(self) -> None:
        if len(self.forward_s) != len(self.backward_s):
            raise InputError(f"timing: {len(self.forward_s)} forward but {len(self.backward_s)} backward times")
        if any(not value >= 0 for value in (*self.forward_s, *self.backward_s, self.startup_s, self.seconds_per_byte)):
            raise InputError("timing: every time must be 0 or more")
