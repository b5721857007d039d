"""The wire: a tensor's memory as the transports take it, and arrays that arrived as tensors again."""

import torch

from legato.torch.buffers import dtype_name
from legato.transports.buffer import Array, Buffer


def on_host(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor's values in one stretch of the host's memory: its own where they already are, else a copy.

    The engine knows no booleans: they travel as bytes of 0 and 1.
    """
    plain = tensor.detach().cpu().contiguous()
    return plain.view(torch.uint8) if plain.dtype is torch.bool else plain


def buffer_of(wire: torch.Tensor) -> Buffer:
    """The memory of a tensor made by `on_host`; the buffer keeps it alive."""
    return Buffer(address=wire.data_ptr(), shape=tuple(wire.shape), dtype=dtype_name(wire.dtype), owner=wire)


def as_tensor(array: Array, like: torch.Tensor) -> torch.Tensor:
    """What arrived, as a tensor of the dtype and on the device of what was sent."""
    wire = torch.from_numpy(array)  # bfloat16 has no numpy: its bits come as uint16
    return (wire if wire.dtype is like.dtype else wire.view(like.dtype)).to(like.device)


def scaled(tensor: torch.Tensor, factor: float) -> torch.Tensor:
    """The tensor times a factor, in its own dtype; the tensor itself where the factor is 1."""
    return tensor if factor == 1.0 else (tensor * factor).to(tensor.dtype)
