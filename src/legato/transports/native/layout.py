"""Layouts: as which parts the tensor of an operation travels, and between whom."""

from typing import NamedTuple

from legato.core.part import split
from legato.core.shards import Deployment, Shards
from legato.transports.declaration import Declaration, Operation

EVERYONE = -1


class PartRoute(NamedTuple):
    """A part, who serves it, who gives it and who gets it (a rank, or EVERYONE): what the engine's `lay_out` takes."""

    offset: int
    length: int
    server: int
    writer: int
    reader: int


Layout = tuple[PartRoute, ...]


def lay_out(tensor: Declaration, deployment: Deployment, shards: Shards, partition_bytes: int | None) -> Layout:
    """The layout of a declared tensor; `shards` remembers what its owners carry."""
    if tensor.segments:
        return _segments(tensor, deployment, shards, partition_bytes)
    writer = EVERYONE if tensor.root is None else tensor.root
    parts = shards.add(tensor.num_bytes, tensor.item_bytes, partition_bytes)
    return tuple(PartRoute(part.offset, part.length, part.server, writer, EVERYONE) for part in parts)


def _segments(tensor: Declaration, deployment: Deployment, shards: Shards, partition_bytes: int | None) -> Layout:
    """Where workers serve, a segment goes straight from who gives it to who gets it; otherwise through a server."""
    direct = 0 in deployment.owners()
    routes: list[PartRoute] = []
    start = 0
    for rank, length in enumerate(tensor.segments):
        writer, reader = _ends(tensor, rank)
        # With one writer, the writer serves an all-gather: the bytes leave it once for each reader either way. All
        # other segments have one reader, and it serves.
        owner = writer if reader == EVERYONE else reader
        if not length:
            continue
        if direct:
            pieces = [(offset, size, owner) for offset, size in split(length, partition_bytes, tensor.item_bytes)]
        else:
            pieces = list(shards.add(length, tensor.item_bytes, partition_bytes))
        routes += [PartRoute(start + offset, size, server, writer, reader) for offset, size, server in pieces]
        start += length
    return tuple(routes)


def _ends(tensor: Declaration, rank: int) -> tuple[int, int]:
    """Writer and reader of a rank's segment."""
    if tensor.operation is Operation.REDUCE_SCATTER:
        return EVERYONE, rank
    if tensor.operation is Operation.ALL_GATHER:
        return rank, EVERYONE
    assert tensor.root is not None
    return rank, tensor.root
