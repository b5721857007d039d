"""The kvstore transport keeps the contract of all transports, as far as MXNet's servers can: they sum floats."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from multiprocessing.connection import Listener
from typing import Any

import numpy as np
import pytest

from legato.errors import InputError
from legato.testing import transport_contract
from legato.testing.transport_contract import TransportContract
from legato.transports.base import Transport
from legato.transports.buffer import Buffer
from legato.transports.declaration import Declaration
from tests.mxnet.cluster import cluster
from tests.mxnet.remote import RemoteTransport

pytest.importorskip("mxnet", reason="needs mxnet, which has an environment of its own: make test-mxnet")

DTYPES = ("float32", "float64", "float16")


class Jobs:
    """A job for each number of workers, started when it is first asked for, and a connection to each of its ranks."""

    def __init__(self, stack: ExitStack) -> None:
        self._stack = stack
        self._connections: dict[int, list[Any]] = {}

    def connections(self, size: int) -> list[Any]:
        if size not in self._connections:
            job = self._stack.enter_context(cluster(workers=size, servers=2))
            listener = self._stack.enter_context(Listener(family="AF_UNIX"))
            for _ in range(size):
                job.start_worker("-m", "tests.mxnet.remote", str(listener.address))
            accepted = [self._stack.enter_context(listener.accept()) for _ in range(size)]
            by_rank = sorted(((connection.recv(), connection) for connection in accepted), key=lambda each: each[0])
            self._connections[size] = [connection for _, connection in by_rank]
        return self._connections[size]


@pytest.fixture(scope="module")
def jobs() -> Iterator[Jobs]:
    with ExitStack() as stack:
        yield Jobs(stack)


@pytest.mark.timeout(240)  # jobs start in it: up to nine processes that import MXNet
class TestKVStore(TransportContract):
    @pytest.fixture(autouse=True)
    def prepare(self, jobs: Jobs, monkeypatch: pytest.MonkeyPatch) -> None:
        self.jobs = jobs
        monkeypatch.setattr(transport_contract, "DTYPES", DTYPES)

    def transports(self, size: int) -> Callable[[int], Transport]:
        connections = self.jobs.connections(size)
        return lambda rank: RemoteTransport(connections[rank], rank, size)

    def test_reductions(self) -> None:
        """Sums are all there is; the rest is refused."""

        def body(transport: Transport) -> None:
            transport.declare([Declaration(name="t", shape=(4,), dtype="float32")])
            transport_contract._follow(
                transport, [Declaration(name="t", shape=(4,), dtype="float32")], partition_bytes=None
            )
            buffer = Buffer.of(np.ones(4, np.float32), "t")
            with pytest.raises(InputError, match="servers only sum, accepted is 'sum'"):
                transport.offer(0, 0, buffer, buffer, reduction="max")

        self.run(2, body)

    def test_integers_are_refused(self) -> None:
        def body(transport: Transport) -> None:
            with pytest.raises(InputError, match="tensor 't' is int32; a KVStore's servers sum float32, float64"):
                transport.declare([Declaration(name="t", shape=(4,), dtype="int32")])

        self.run(2, body)
