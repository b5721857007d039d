"""State on its way to a learner: bytes from rank 0 to the last rank, through the engine, behind all gradients."""

from collections.abc import Sequence

import numpy as np

from legato.transports.buffer import Array
from legato.transports.declaration import Declaration, Operation
from legato.transports.native.group import NativeGroup
from legato.transports.native.handle import TaskHandle

_LAST = 1 << 30
"""A priority that no gradient has."""


class StateStream:
    """Messages of given sizes, one after the other. Every rank makes it; the first sends, and the last receives."""

    def __init__(self, group: NativeGroup, name: str, sizes: Sequence[int]) -> None:
        self._group = group
        self.sizes = sizes
        self._messages = [
            Declaration(
                name=f"{name}/{number}",
                shape=(size,),
                dtype="uint8",
                operation=Operation.GATHER,
                root=group.size - 1,
                segments=(size, *(0,) * (group.size - 1)),
            )
            for number, size in enumerate(sizes)
        ]
        group.declare(self._messages)
        self._under_way: list[TaskHandle[None]] = []
        """What has been sent and may not have arrived."""

    def send(self, number: int, data: bytes) -> None:
        """As much of a message as there is; the rest is padding. A JobError where an earlier one has failed."""
        for handle in [handle for handle in self._under_way if handle.poll()]:
            handle.wait()  # which lets go of its memory
            self._under_way.remove(handle)
        content = np.zeros(self.sizes[number], np.uint8)
        content[: len(data)] = np.frombuffer(data, np.uint8)
        handle = self._group.channel(self._messages[number]).launch(
            source=content.ctypes.data,
            destination=0,
            num_bytes=0,
            memory=content,
            result=None,
            priority=_LAST,
            source_segment=(0, content.nbytes),
        )
        self._under_way.append(handle)

    def receive(self, number: int) -> TaskHandle[Array]:
        content = np.empty(self.sizes[number], np.uint8)
        return self._group.channel(self._messages[number]).launch(
            source=content.ctypes.data,
            destination=content.ctypes.data,
            num_bytes=content.nbytes,
            memory=content,
            result=content,
            priority=_LAST,
            source_segment=(content.nbytes, 0),
        )
