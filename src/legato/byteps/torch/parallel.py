"""BytePS's DistributedDataParallel: legato's, with BytePS's arguments."""

from collections.abc import Sequence

import torch
from torch import nn

from legato.errors import InputError
from legato.torch.compat import parallel
from legato.torch.compression import Compression, Compressor


class DistributedDataParallel(parallel.DistributedDataParallel):
    """A module whose gradients are averages over all ranks when `backward()` returns."""

    def __init__(
        self,
        module: nn.Module,
        device_ids: Sequence[int | torch.device] | None = None,
        broadcast_buffers: bool = True,
        compression: type[Compressor] = Compression.none,
    ) -> None:
        if device_ids is not None and len(device_ids) != 1:
            raise InputError(f"device_ids has {len(device_ids)} entries; accepted is one: a process has one device")
        # Scripts give their local rank, with or without a device of that number.
        on_device = any(parameter.is_cuda for parameter in module.parameters())
        super().__init__(
            module,
            device_ids=device_ids if on_device else None,
            broadcast_buffers=broadcast_buffers,
            compression=compression,
        )
