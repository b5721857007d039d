"""Workloads: what a model asks of a cluster, as a list of layers with bytes and times, and the least time it takes."""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from legato.core.task import Tensor
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


def bound(forward_s: Sequence[float], backward_s: Sequence[float], communication_s: Sequence[float]) -> float:
    """T* for layers in forward order: no schedule of one link can be shorter.

        T* = max( Σ(f+b),  max_i [ Σ_{j≥i}(f_j+b_j) + Σ_{j≤i} c_j ] )

    Why: the gradients of layers 0..i appear only when backward has come down from the last layer to i, that is after
    Σ_{j>i} b_j + b_i; none of layers i+1.. may run forward before tensor i has arrived, and Σ_{j≤i} c_j must pass the
    link between the two. Preemptive priority by forward order reaches it when parts are infinitely small and free
    (ByteScheduler, SOSP'19, theorem 1).
    """
    compute_from_here = 0.0
    to_come = sum(communication_s)
    best = sum(forward_s) + sum(backward_s)
    for forward, backward, communication in zip(
        reversed(forward_s), reversed(backward_s), reversed(communication_s), strict=True
    ):
        compute_from_here += forward + backward
        best = max(best, compute_from_here + to_come)
        to_come -= communication
    return best


_LAYER_FIELDS = ("name", "num_bytes", "forward_s", "backward_s")


@dataclass(frozen=True, slots=True)
class Layer:
    """One layer. Its parameters travel as one tensor; a layer without any (num_bytes 0) only computes."""

    name: str
    num_bytes: int
    forward_s: float
    backward_s: float

    def __post_init__(self) -> None:
        if self.num_bytes < 0 or not (self.forward_s >= 0 and self.backward_s >= 0):
            raise InputError(f"layer {self.name!r}: num_bytes, forward_s and backward_s must be 0 or more")


@dataclass(frozen=True, slots=True)
class Workload:
    """Layers in forward order."""

    name: str
    layers: tuple[Layer, ...]

    def __post_init__(self) -> None:
        if not any(layer.num_bytes for layer in self.layers):
            raise InputError(f"workload {self.name!r}: at least one layer must have bytes")

    @property
    def num_bytes(self) -> int:
        return sum(layer.num_bytes for layer in self.layers)

    @property
    def compute_s(self) -> float:
        return sum(layer.forward_s + layer.backward_s for layer in self.layers)

    def bound_s(self, *seconds_per_byte: float) -> float:
        """T* where every byte passes these links one after the other, as it does from an accelerator through the host
        and the network and back. Parts are infinitely small, so the slowest link decides."""
        return bound(
            [layer.forward_s for layer in self.layers],
            [layer.backward_s for layer in self.layers],
            [layer.num_bytes * max(seconds_per_byte) for layer in self.layers],
        )

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """One tensor for each layer that has bytes; its priority is the layer's position."""
        return tuple(
            Tensor(
                name=layer.name,
                num_bytes=layer.num_bytes,
                priority=position,
                item_bytes=4 if layer.num_bytes % 4 == 0 else 1,
            )
            for position, layer in enumerate(self.layers)
            if layer.num_bytes
        )

    def timing(self, *, startup_s: float = 0.0, seconds_per_byte: float = 0.0) -> Timing:
        """The times of the layers that have bytes; a layer without any counts to the next one that has."""
        forward: list[float] = []
        backward: list[float] = []
        carried_forward = carried_backward = 0.0
        for layer in self.layers:
            carried_forward += layer.forward_s
            carried_backward += layer.backward_s
            if layer.num_bytes:
                forward.append(carried_forward)
                backward.append(carried_backward)
                carried_forward = carried_backward = 0.0
        forward[-1] += carried_forward
        backward[-1] += carried_backward
        return Timing(
            forward_s=tuple(forward),
            backward_s=tuple(backward),
            startup_s=startup_s,
            seconds_per_byte=seconds_per_byte,
        )

    def scaled(self, *, bytes_by: float = 1.0, time_by: float = 1.0) -> "Workload":
        """The same shape with other bytes (multiples of 4) and other times."""

        def scaled_bytes(num_bytes: int) -> int:
            return num_bytes if bytes_by == 1 or not num_bytes else max(round(num_bytes * bytes_by / 4), 1) * 4

        return Workload(
            self.name,
            tuple(
                Layer(layer.name, scaled_bytes(layer.num_bytes), layer.forward_s * time_by, layer.backward_s * time_by)
                for layer in self.layers
            ),
        )

    def to_json(self) -> str:
        return json.dumps({"name": self.name, "layers": [asdict(layer) for layer in self.layers]}, indent=1)

    @classmethod
    def from_json(cls, text: str) -> "Workload":
        """Read what `to_json` wrote; anything else is refused with the place where it is wrong."""
        try:
            document = json.loads(text)
        except json.JSONDecodeError as error:
            raise InputError(f"workload: not JSON, line {error.lineno}: {error.msg}") from None
        except (ValueError, RecursionError) as error:  # a number too long, lists too deep
            raise InputError(f"workload: {error!s:.80}") from None
        if not isinstance(document, dict) or not isinstance(document.get("layers"), list):
            raise InputError('workload: expected {"name": ..., "layers": [...]}')
        return cls(str(document.get("name", "unnamed")), _read_layers(document["layers"]))


def _read_layers(entries: Sequence[Any]) -> tuple[Layer, ...]:
    layers = []
    for place, entry in enumerate(entries):
        if not isinstance(entry, dict) or set(entry) != set(_LAYER_FIELDS):
            raise InputError(f"workload: layer {place} must have exactly the fields {', '.join(_LAYER_FIELDS)}")
        numbers = [entry[field] for field in _LAYER_FIELDS[1:]]
        if any(isinstance(value, bool) or not isinstance(value, int | float) for value in numbers):
            raise InputError(f"workload: layer {place}: {', '.join(_LAYER_FIELDS[1:])} must be numbers")
        try:
            layers.append(Layer(str(entry["name"]), int(numbers[0]), float(numbers[1]), float(numbers[2])))
        except (OverflowError, ValueError) as error:
            raise InputError(f"workload: layer {place}: {error}") from None
    return tuple(layers)
