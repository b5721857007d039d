"""Rows: sparse tensors, as embeddings give them for gradients, through the transport and back."""

import math

import numpy as np
import torch

from legato.errors import InputError
from legato.torch.sync.synchronizer import Slot
from legato.transports.buffer import Array
from legato.transports.native.group import NativeGroup
from legato.transports.native.rows import DTYPES, Rows

_NARROW = (torch.float16, torch.bfloat16)


def rows_of(tensor: torch.Tensor) -> Rows:
    """The rows that a tensor has: those that are stored in a sparse one, all of another."""
    if not tensor.is_sparse:
        return Rows(torch.arange(len(tensor)).numpy(), _array(tensor))
    tensor = tensor.detach().cpu()
    first, *others = tensor._indices().numpy()
    places = first
    for indices, length in zip(others, tensor.shape[1:], strict=False):
        places = places * length + indices
    return Rows(places, _array(tensor._values()))


def table_of(shape: torch.Size, sparse_dim: int = 1) -> tuple[int, ...]:
    """The table whose rows a sparse tensor of this shape has: its sparse dimensions are one."""
    return (math.prod(shape[:sparse_dim]), *shape[sparse_dim:])


def tensor_of(rows: Rows, like: torch.Tensor, sparse_dim: int = 1) -> torch.Tensor:
    """A sparse tensor of these rows, with the shape, dtype and device of another tensor."""
    places = np.stack(np.unravel_index(rows.indices, tuple(like.shape[:sparse_dim])))
    values = torch.from_numpy(rows.values).to(like.dtype)
    return torch.sparse_coo_tensor(
        torch.from_numpy(places), values, like.shape, is_coalesced=True, check_invariants=False
    ).to(like.device)


def dtype_of_rows(tensor: torch.Tensor, name: str) -> str:
    """As what its rows are added: narrow floats as float32."""
    dtype = "float32" if tensor.dtype in _NARROW else str(tensor.dtype).removeprefix("torch.")
    if dtype not in DTYPES:
        raise InputError(f"tensor {name!r} has rows of {dtype}; accepted are float16, bfloat16, {', '.join(DTYPES)}")
    return dtype


class RowsPassage:
    """The rows of one gradient on their way through one step."""

    def __init__(
        self, group: NativeGroup, name: str, slot: Slot, gradient: torch.Tensor | None, sparse_dim: int = 1
    ) -> None:
        if gradient is not None:
            slot.check(gradient)
            if gradient.is_sparse and gradient.sparse_dim() != sparse_dim:
                raise InputError(
                    f"parameter {slot.name!r}: its gradient has {gradient.sparse_dim()} sparse dimensions; "
                    f"accepted is {sparse_dim}"
                )
        self._size = group.size
        self._parameter = slot.parameter
        self._sparse_dim = sparse_dim
        self._is_dense = gradient is not None and not gradient.is_sparse
        self._handle = group.push_pull_rows_async(
            name,
            None if gradient is None else rows_of(gradient),
            shape=table_of(slot.parameter.shape, sparse_dim),
            dtype=dtype_of_rows(slot.parameter, name),
        )

    def poll(self) -> bool:
        return self._handle.poll()

    def wait(self) -> bool:
        return self._handle.wait() is not None

    def result(self) -> torch.Tensor:
        """The average; sparse, unless this rank's gradient was not."""
        rows = self._handle.wait()
        assert rows is not None
        average = tensor_of(rows, self._parameter, self._sparse_dim) / self._size
        return average.to_dense() if self._is_dense else average


def _array(tensor: torch.Tensor) -> Array:
    wide = tensor.float() if tensor.dtype in _NARROW else tensor
    array: Array = wide.detach().cpu().contiguous().numpy()
    return array
