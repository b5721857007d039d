"""Rows: sparse tensors, as embeddings give them for gradients, through the transport and back."""

import torch

from legato.errors import InputError
from legato.torch.sync.synchronizer import Slot
from legato.transports.buffer import Array
from legato.transports.native.group import NativeGroup
from legato.transports.native.rows import DTYPES, Rows


def rows_of(tensor: torch.Tensor) -> Rows:
    """The rows that a tensor has: those that are stored in a sparse one, all of another."""
    if not tensor.is_sparse:
        return Rows(torch.arange(len(tensor)).numpy(), _array(tensor))
    if tensor.sparse_dim() != 1:
        raise InputError(
            f"a sparse tensor with {tensor.sparse_dim()} sparse dimensions; accepted is 1, rows of a table"
        )
    tensor = tensor.detach().cpu()
    return Rows(tensor._indices()[0].numpy(), _array(tensor._values()))


def tensor_of(rows: Rows, shape: torch.Size, device: torch.device) -> torch.Tensor:
    """A sparse tensor of these rows."""
    indices, values = torch.from_numpy(rows.indices)[None], torch.from_numpy(rows.values)
    return torch.sparse_coo_tensor(indices, values, shape, is_coalesced=True, check_invariants=False).to(device)


def dtype_of_rows(tensor: torch.Tensor, name: str) -> str:
    dtype = str(tensor.dtype).removeprefix("torch.")
    if dtype not in DTYPES:
        raise InputError(f"tensor {name!r} has rows of {dtype}; accepted are {', '.join(DTYPES)}")
    return dtype


class RowsPassage:
    """The rows of one gradient on their way through one step."""

    def __init__(self, group: NativeGroup, name: str, slot: Slot, gradient: torch.Tensor | None) -> None:
        if gradient is not None:
            slot.check(gradient)
        self._size = group.size
        self._parameter = slot.parameter
        self._is_dense = gradient is not None and not gradient.is_sparse
        self._handle = group.push_pull_rows_async(
            name,
            None if gradient is None else rows_of(gradient),
            shape=tuple(slot.parameter.shape),
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
        average = tensor_of(rows, self._parameter.shape, self._parameter.device) / self._size
        return average.to_dense() if self._is_dense else average


def _array(tensor: torch.Tensor) -> Array:
    array: Array = tensor.detach().cpu().contiguous().numpy()
    return array
