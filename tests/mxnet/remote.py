"""A transport in another process: MXNet has one worker per process, and the contract's ranks are threads of one.

    the contract's thread ── name, arguments ──► worker's process: KVStoreTransport
                          ◄── result or error, and what has landed in memory ──

Run as `python -m tests.mxnet.remote ADDRESS`, it is the worker's process.
"""

import sys
from collections.abc import Sequence
from multiprocessing.connection import Client, Connection
from typing import Any

import numpy as np

from legato.core.part import Part, Stage
from legato.core.plan import Plan
from legato.core.scheduler import Finished, Sent
from legato.transports.buffer import Array, Buffer
from legato.transports.declaration import Declaration


class RemoteTransport:
    """A rank's transport, seen from here."""

    stages = frozenset(Stage)
    reports_sent = True

    def __init__(self, connection: "Connection[Any, Any]", rank: int, size: int) -> None:
        self.rank = rank
        self.size = size
        self._connection = connection
        self._destinations: dict[tuple[int, int], Array] = {}
        self._call("make")

    def declare(self, tensors: Sequence[Declaration]) -> None:
        self._call("declare", list(tensors))

    def set_plan(self, plan: Plan, from_step: int) -> None:
        self._call("set_plan", plan, from_step)

    def offer(
        self,
        step: int,
        bucket: int,
        source: Buffer,
        destination: Buffer,
        *,
        priority: int = 0,  # noqa: ARG002
        reduction: str = "sum",
    ) -> None:
        self._destinations[step, bucket] = destination.array().reshape(-1)
        in_place = source.address == destination.address
        self._call("offer", step, bucket, source.array().copy(), in_place, reduction)

    def start(self, part: Part) -> None:
        self._call("start", part)

    def events(self, timeout_s: float) -> list[Sent | Finished]:
        events, landed = self._call("events", timeout_s)
        for part, values in landed:
            first = part.offset // values.itemsize if values.itemsize else 0
            self._destinations[part.step, part.bucket][first : first + values.size] = values
        return list(events)

    def close(self) -> None:
        self._call("close")

    def _call(self, name: str, *arguments: Any) -> Any:
        self._connection.send((name, arguments))
        result = self._connection.recv()
        if isinstance(result, BaseException):
            raise result
        return result


class _Host:
    """The other end."""

    def __init__(self, kv: Any) -> None:
        self._kv = kv
        self._transport: Any = None
        self._memory: dict[tuple[int, int], tuple[Array, Array]] = {}

    def make(self) -> None:
        from legato.mxnet.transport import KVStoreTransport

        self._memory.clear()
        self._transport = KVStoreTransport(self._kv, num_servers=2, spread_elements=20_000, timeout_s=10.0)

    def offer(self, step: int, bucket: int, source: Array, in_place: bool, reduction: str) -> None:
        destination = source if in_place else np.zeros_like(source)
        self._memory[step, bucket] = (source, destination)
        self._transport.offer(
            step, bucket, Buffer.of(source, "source"), Buffer.of(destination, "destination"), reduction=reduction
        )

    def events(self, timeout_s: float) -> tuple[list[Sent | Finished], list[tuple[Part, Array]]]:
        events = self._transport.events(timeout_s)
        landed = []
        for event in events:
            if isinstance(event, Finished):
                part = event.part
                source, destination = self._memory[part.step, part.bucket]
                piece = slice(part.offset // source.itemsize, (part.offset + part.length) // source.itemsize)
                landed.append((part, destination.reshape(-1)[piece].copy()))
        return events, landed

    def serve(self, connection: "Connection[Any, Any]") -> None:
        while True:
            try:
                name, arguments = connection.recv()
            except EOFError:
                return
            try:
                call = getattr(self if hasattr(self, name) else self._transport, name)
                connection.send(call(*arguments))
            except Exception as error:  # noqa: BLE001 - carried to the contract
                connection.send(error)


def main() -> None:
    import mxnet as mx

    kv = mx.kv.create("dist_sync")
    with Client(sys.argv[1]) as connection:
        connection.send(kv.rank)
        _Host(kv).serve(connection)


if __name__ == "__main__":
    main()
