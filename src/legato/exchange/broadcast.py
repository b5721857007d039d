"""Weights, not gradients: from one rank to all, through numpy."""

from collections.abc import Mapping

from legato.errors import InputError
from legato.transports.buffer import Array, Buffer
from legato.transports.declaration import ITEM_BYTES, Declaration, Operation
from legato.transports.native.group import NativeGroup


def broadcast_arrays(group: NativeGroup, arrays: Mapping[str, Array], root: int) -> None:
    """Overwrite arrays with the root's. All are declared at once, so that a wrong shape is named, and are on their way
    together."""
    wires = {name: _wire(name, array) for name, array in arrays.items() if array.size}
    group.declare(
        [
            Declaration(name=name, shape=wire.shape, dtype=wire.dtype, operation=Operation.BROADCAST, root=root)
            for name, wire in wires.items()
        ]
    )
    for handle in [group.broadcast_async(name, wire, root=root) for name, wire in wires.items()]:
        handle.wait()


def _wire(name: str, array: Array) -> Buffer:
    """An array as it travels; as bytes, with one more dimension, if nobody computes with its dtype."""
    if not (array.flags.c_contiguous and array.flags.writeable):
        raise InputError(f"{name} is not contiguous in memory, or read-only; give a writable copy in C's order")
    shape, dtype = array.shape, array.dtype.name
    if dtype not in ITEM_BYTES:
        shape, dtype = (*shape, array.itemsize), "uint8"
    return Buffer(address=array.ctypes.data, shape=shape, dtype=dtype, owner=array)
