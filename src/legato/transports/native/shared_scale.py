"""Scales: what the ranks agree on before a step of a tensor whose compression needs it."""

import numpy as np

from legato import _native
from legato.transports.buffer import Buffer
from legato.transports.declaration import Declaration
from legato.transports.native.channel import Channels, Scale


def agree_on_scale(
    group: Channels, tensor: Declaration, source: Buffer, *, step: int | None, absent: bool
) -> Scale | None:
    """Begin to agree on the scale of a step, where the tensor needs one; it goes before all else."""
    meaning = tensor.scale
    if meaning is None:
        return None
    if group.session.member.definition(tensor) is None:
        group.declare([meaning, tensor])  # so that neither task waits for an agreement that the other has
    value = np.array([0.0 if absent else _native.largest(source.array())], np.float32)
    address = value.ctypes.data
    handle = group.channel(meaning).launch(
        source=address,
        destination=address,
        num_bytes=value.nbytes,
        memory=value,
        result=None,
        reduction="max",
        step=step,
        absent=absent,
    )
    return Scale(value, handle)
