"""Buffers: memory that a transport reads or fills, whoever owns it."""

import ctypes
import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from legato.errors import InputError
from legato.transports.declaration import ITEM_BYTES

Array = npt.NDArray[Any]
_NAMES = {np.dtype(name): name for name in ITEM_BYTES if name != "bfloat16"}
"""numpy's own `dtype.name` is slow, and a buffer is looked at for every tensor in every step."""

Bufferable = Any
"""An array, any object with a C-contiguous buffer, a `Buffer`, or an (address, num_bytes, dtype) triple."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Buffer:
    """Contiguous memory at an address."""

    address: int
    """Where it begins; any number where it is empty."""
    shape: tuple[int, ...]
    """Elements in each dimension."""
    dtype: str
    """One of `ITEM_BYTES`."""
    writable: bool = True
    """Whether a transport may write to it."""
    owner: object = field(default=None, repr=False)
    """What must stay alive as long as the memory is used."""

    @property
    def num_bytes(self) -> int:
        return math.prod(self.shape) * ITEM_BYTES[self.dtype]

    @classmethod
    def of(cls, value: Bufferable, what: str) -> "Buffer":
        """The memory of `value`; `what` names it in errors."""
        if isinstance(value, Buffer):
            return value
        if isinstance(value, tuple):
            return cls._of_triple(value, what)
        if not isinstance(value, np.ndarray):
            try:
                value = np.asarray(memoryview(value))
            except (TypeError, ValueError):
                raise InputError(
                    f"{what} is a {type(value).__name__}; accepted are numpy arrays, objects with a buffer, "
                    "and (address, num_bytes, dtype)"
                ) from None
        dtype = _NAMES.get(value.dtype)
        if dtype is None:
            raise InputError(f"{what} has dtype {value.dtype}, accepted are {', '.join(ITEM_BYTES)}")
        if not value.flags.c_contiguous:
            raise InputError(f"{what} is not contiguous in memory; give a contiguous copy")
        return cls(
            address=value.__array_interface__["data"][0],
            shape=value.shape,
            dtype=dtype,
            writable=value.flags.writeable,
            owner=value,
        )

    @classmethod
    def _of_triple(cls, value: tuple[Any, ...], what: str) -> "Buffer":
        try:
            address, num_bytes, dtype = value
            num_items, rest = divmod(num_bytes, ITEM_BYTES[dtype])
        except (ValueError, TypeError, KeyError):
            raise InputError(
                f"{what} is {value!r:.80}; a raw buffer is (address, num_bytes, dtype) with a dtype of "
                f"{', '.join(ITEM_BYTES)}"
            ) from None
        if rest or num_bytes < 0 or (num_bytes and not address):
            raise InputError(
                f"{what} has {num_bytes} bytes at {address:#x}: not a whole number of {dtype} items somewhere"
            )
        return cls(address=address, shape=(num_items,), dtype=dtype)

    def to_write(self, what: str) -> "Buffer":
        """This buffer, when it may be written."""
        if not self.writable:
            raise InputError(f"{what} is read-only; give a writable copy")
        return self

    def rows(self, what: str) -> int:
        """Its first dimension, along which gathering operations work."""
        if not self.shape:
            raise InputError(f"{what} has no dimensions; give it at least one")
        return self.shape[0]

    def array(self) -> Array:
        """The memory as an array, without a copy."""
        if isinstance(self.owner, np.ndarray) and self.owner.ctypes.data == self.address:
            return self.owner
        if not self.num_bytes:
            return np.empty(self.shape, numpy_dtype(self.dtype))
        memory = np.ctypeslib.as_array((ctypes.c_uint8 * self.num_bytes).from_address(self.address))
        return memory.view(numpy_dtype(self.dtype)).reshape(self.shape)


def numpy_dtype(dtype: str) -> "np.dtype[Any]":
    """numpy has no bfloat16: its bits travel as uint16."""
    return np.dtype("uint16" if dtype == "bfloat16" else dtype)
