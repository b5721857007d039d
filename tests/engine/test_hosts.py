"""Several workers on each host: what all sum crosses the network once per host, and every sum is what it was."""

import random
import struct
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from legato._native import Handle
from tests.engine.lone import Lone
from tests.engine.mesh import EVERYONE, TIMEOUT_S, Array, Mesh, eventually, finish, spread
from tests.engine.numbers import DTYPES, REDUCTIONS, by_parts, contributions, item_bytes, reduced
from tests.engine.wire import ABORT, HEADER_BYTES, LATE, PUSH, SUM, Header

TWO_BY_TWO = [0, 0, 1, 1]
CHUNK = 4096


@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_every_dtype_and_reduction(dtype: str, reduction: str) -> None:
    num_items = 10_007
    num_bytes = num_items * item_bytes(dtype)
    with Mesh(4, hosts=TWO_BY_TWO, chunk_bytes=CHUNK) as mesh:
        mesh.declare(0, num_bytes, dtype, spread(num_bytes, 16_384, range(4)))
        for step in range(2):
            sources = contributions(dtype, num_items, 4, seed=step)
            for result in mesh.push_pull(0, step, sources, reduction=reduction):
                np.testing.assert_array_equal(result, reduced(dtype, reduction, sources))


@pytest.mark.parametrize(
    ("hosts", "num_workers"),
    [
        ([0, 0, 0, 0], 4),
        ([0, 1, 1, 1, 1], 5),
        ([0, 1, 0, 1, 2, 0], 6),
        ([0, 0, 1, 1, 2], 4),
        ([0, 0, 1, 1, 1, 0], 4),
        ([7, 7, 7, 3, 3], 3),
    ],
    ids=["one host", "one and four", "mixed up", "a server elsewhere", "servers beside workers", "servers on one host"],
)
def test_hosts_of_different_sizes(hosts: list[int], num_workers: int) -> None:
    num_members = len(hosts)
    with Mesh(num_workers, num_members - num_workers, hosts=hosts) as mesh:
        mesh.declare(0, 400_000, "float32", spread(400_000, 10_000, range(num_members)))
        for step in range(3):
            arrays = contributions("float32", 100_000, num_workers, seed=step)
            expected = reduced("float32", "average", arrays)
            finish(mesh.submit(0, step, arrays, arrays, reduction="average"))
            for array in arrays:
                np.testing.assert_array_equal(array, expected)


@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    hosts=st.lists(st.integers(0, 2), min_size=1, max_size=6),
    num_servers=st.integers(0, 2),
    part_bytes=st.sampled_from([64, 4_000, 1 << 20]),
    credit_bytes=st.sampled_from([0, 1, 30_000]),
    dtype=st.sampled_from(["int32", "float16"]),
    sizes=st.lists(st.integers(0, 10_000), min_size=1, max_size=4),
    num_io_threads=st.sampled_from([1, 3]),
    seed=st.integers(0, 2**32 - 1),
)
def test_any_hosts_orders_and_absences(
    hosts: list[int],
    num_servers: int,
    part_bytes: int,
    credit_bytes: int,
    dtype: str,
    sizes: list[int],
    num_io_threads: int,
    seed: int,
) -> None:
    num_workers = max(1, len(hosts) - num_servers)
    chance = random.Random(seed)
    item = item_bytes(dtype)
    options: dict[str, Any] = {"chunk_bytes": 64, "heartbeat_s": 30.0, "num_io_threads": num_io_threads}
    with Mesh(num_workers, len(hosts) - num_workers, hosts=hosts, **options) as mesh:
        layouts = [spread(item * size, part_bytes, range(mesh.num_members)) for size in sizes]
        for tensor, size in enumerate(sizes):
            mesh.declare(tensor, item * size, dtype, layouts[tensor])
        for engine in mesh.workers:
            engine.set_credit(0, credit_bytes)
        for step in range(2):
            sources = [contributions(dtype, size, num_workers, seed=seed + i) for i, size in enumerate(sizes)]
            results = [[np.full_like(array, 77) for array in arrays] for arrays in sources]
            absent = {
                (tensor, rank)
                for tensor in range(len(sizes))
                for rank in range(num_workers)
                if chance.random() < chance.choice([0.0, 0.5, 1.0])
            }
            handles: dict[tuple[int, int], Handle] = {}
            asking = chance.random()
            asks = {
                (tensor, rank)
                for tensor in range(len(sizes))
                for rank in range(num_workers)
                if chance.random() < asking
            }
            for rank, engine in enumerate(mesh.workers):
                for tensor in chance.sample(range(len(sizes)), len(sizes)):
                    handles[tensor, rank] = engine.submit(
                        tensor=tensor,
                        step=step,
                        rank=chance.randrange(3),
                        source=sources[tensor][rank].ctypes.data,
                        destination=results[tensor][rank].ctypes.data,
                        num_bytes=sources[tensor][rank].nbytes,
                        absent=(tensor, rank) in absent,
                        measured=(tensor, rank) in asks,
                    )
            finish([*handles.values()])
            for tensor, arrays in enumerate(sources):
                present = [array for rank, array in enumerate(arrays) if (tensor, rank) not in absent]
                expected = reduced(dtype, "sum", present) if present else np.full_like(arrays[0], 77)
                measured = by_parts(dtype, expected, layouts[tensor]) if present else (0.0, 0.0)
                for rank, result in enumerate(results[tensor]):
                    np.testing.assert_array_equal(result, expected)
                    assert handles[tensor, rank].measure == (measured if (tensor, rank) in asks else None)
        assert all(engine.statistics()["slots"] == 0 for engine in mesh.engines)


def network_bytes(mesh: Mesh, hosts: list[int]) -> Counter[int]:
    sent: Counter[int] = Counter()
    for engine, host in zip(mesh.engines, hosts, strict=True):
        sent[host] += engine.statistics()["bytes_sent"]
    return sent


def test_a_gradient_crosses_the_network_once_per_host() -> None:
    """To the byte: as many frames leave a host of four workers as leave a host of one."""
    num_bytes, part_bytes = 1 << 20, 1 << 15
    sent = []
    for workers_per_host in (1, 4):
        hosts = [worker // workers_per_host for worker in range(2 * workers_per_host)]
        with Mesh(len(hosts), hosts=hosts, chunk_bytes=1 << 14, heartbeat_s=1000.0) as mesh:
            mesh.declare(0, num_bytes, "float32", spread(num_bytes, part_bytes, range(len(hosts))))
            for step in range(2):
                mesh.push_pull(0, step, contributions("float32", num_bytes // 4, len(hosts)))
            sent.append(network_bytes(mesh, hosts))
    assert sent[0] == sent[1]
    assert sent[0][0] == 2 * (num_bytes + num_bytes // (1 << 14) * HEADER_BYTES)


def test_workers_that_are_all_absent_on_a_host_send_no_bytes() -> None:
    hosts = [0, 0, 1, 1]
    with Mesh(4, hosts=hosts, heartbeat_s=1000.0) as mesh:
        mesh.declare(0, 4000, "float32", [(0, 4000, 0, EVERYONE, EVERYONE)])
        arrays = contributions("float32", 1000, 4)
        results = [np.zeros_like(array) for array in arrays]
        finish(mesh.submit(0, 0, arrays, results, each=[{}, {}, {"absent": True}, {"absent": True}]))
        for result in results:
            np.testing.assert_array_equal(result, reduced("float32", "sum", arrays[:2]))
        assert network_bytes(mesh, hosts)[1] == HEADER_BYTES


def test_the_last_sums_are_delivered_although_servers_and_relays_close() -> None:
    for _ in range(10):
        with Mesh(6, hosts=[0, 0, 0, 1, 1, 1], kind="tcp") as mesh:
            mesh.declare(0, 3 << 20, "float16", spread(3 << 20, 1 << 16, range(6)))
            sources = contributions("float16", 3 << 19, 6)
            results = [np.zeros_like(source) for source in sources]
            handles = mesh.submit(0, 0, sources, results)

            def wait_and_leave(rank: int, mesh: Mesh = mesh, handles: list[Handle] = handles) -> None:
                finish([handles[rank]])
                mesh.engines[rank].close()

            with ThreadPoolExecutor(6) as pool:
                list(pool.map(wait_and_leave, range(6)))
            assert [handle.failure for handle in handles] == [None] * 6


def test_a_worker_that_has_left_its_host_is_missed_by_the_relay() -> None:
    with Mesh(4, hosts=TWO_BY_TWO) as mesh:
        mesh.declare(0, 4096, "float32", [(0, 4096, 2, EVERYONE, EVERYONE)])
        mesh.engines[1].close()
        eventually(lambda: mesh.engines[0].statistics()["connections"] == 2, "the goodbye has come")
        array = np.ones(1024, np.float32)
        handle = mesh.engines[0].submit(
            tensor=0,
            step=0,
            rank=0,
            source=array.ctypes.data,
            destination=array.ctypes.data,
            num_bytes=array.nbytes,
        )
        assert handle.wait(TIMEOUT_S)
        assert handle.failure is not None
        assert (handle.failure.kind, handle.failure.rank) == ("peer_lost", 1)


# ---- one engine among peers in the test's hands: members 0, 1 and 2 on host 0, members 3, 4 and 5 on host 1 ----

LENGTH = 2 * CHUNK
HOSTS = [0, 0, 0, 1, 1, 1]
ONES = np.ones(CHUNK // 4, np.float32).tobytes()


def member(number: int, server: int, **options: float) -> Lone:
    """A part that `server` serves; the relay of the other host has the same place there."""
    lone = Lone(num_workers=6, num_members=6, member=number, chunk_bytes=CHUNK, hosts=HOSTS, **options)
    lone.declare(0, LENGTH, [(0, LENGTH, server, EVERYONE, EVERYONE)])
    return lone


def push(lone: Lone, peer: int, kind: int = PUSH) -> None:
    for chunk_offset in (0, CHUNK):
        header = Header(kind=kind, part_length=LENGTH, chunk_offset=chunk_offset)
        lone.peers[peer].send(header, ONES)


def test_a_relay_speaks_when_all_of_its_host_have_and_passes_the_answer_on() -> None:
    array = np.ones(LENGTH // 4, np.float32)
    with member(0, server=3) as relay:
        handle = relay.submit(0, array)
        push(relay, 1)
        eventually(lambda: relay.engine.statistics()["slots"] == 1, "two of three are in")
        push(relay, 2)
        for chunk_offset in (0, CHUNK):
            frame = relay.peers[3].receive()
            assert (frame.header.kind, frame.header.chunk_offset) == (PUSH, chunk_offset)
            assert frame.payload == (3 * np.ones(CHUNK // 4, np.float32)).tobytes()
        assert not handle.poll()
        total: Array = np.full(CHUNK // 4, 6, np.float32)
        for chunk_offset in (0, CHUNK):
            header = Header(kind=SUM, part_length=LENGTH, chunk_offset=chunk_offset)
            relay.peers[3].send(header, total.tobytes())
        for peer in (1, 2):
            for chunk_offset in (0, CHUNK):
                frame = relay.peers[peer].receive()
                assert (frame.header.kind, frame.header.chunk_offset) == (SUM, chunk_offset)
                assert frame.payload == total.tobytes()
        finish([handle])
        assert array.tolist() == [6.0] * (LENGTH // 4)


def test_a_worker_hands_its_contribution_to_its_relay_and_hears_from_it() -> None:
    array = np.ones(LENGTH // 4, np.float32)
    with member(1, server=3) as worker:
        handle = worker.submit(0, array)
        for chunk_offset in (0, CHUNK):
            frame = worker.peers[0].receive()
            assert (frame.header.kind, frame.header.chunk_offset) == (PUSH, chunk_offset)
        push(worker, 0, kind=SUM)
        finish([handle])


def failure_of(lone: Lone) -> tuple[str, int, str]:
    eventually(lambda: lone.engine.failure is not None, "the engine fails")
    failure = lone.engine.failure
    assert failure is not None
    return failure.kind, failure.rank, failure.message


@pytest.mark.parametrize(
    ("number", "server", "peer", "why"),
    [
        (0, 0, 4, "not the sender's to make"),
        (0, 3, 3, "not the sender's to make"),
        (0, 3, 4, "not the sender's to make"),
        (1, 3, 2, "served elsewhere"),
    ],
    ids=["past its relay", "the server to a relay", "to another host's relay", "to no relay"],
)
def test_a_contribution_by_another_way_is_refused(number: int, server: int, peer: int, why: str) -> None:
    with member(number, server) as lone:
        push(lone, peer)
        kind, rank, message = failure_of(lone)
        assert (kind, rank) == ("protocol", peer)
        assert why in message


@pytest.mark.parametrize(("number", "peer"), [(0, 3), (3, 4)], ids=["of a host", "of a worker"])
def test_a_second_contribution_is_refused(number: int, peer: int) -> None:
    with member(number, server=0) as lone:
        push(lone, peer)
        push(lone, peer)
        kind, rank, message = failure_of(lone)
        assert (kind, rank) == ("protocol", peer)
        assert "second" in message


@pytest.mark.parametrize(("number", "peer"), [(1, 3), (0, 1)], ids=["past its relay", "of another worker"])
def test_an_answer_by_another_way_is_refused(number: int, peer: int) -> None:
    with member(number, server=3) as lone:
        lone.submit(0, np.ones(LENGTH // 4, np.float32))
        push(lone, peer, kind=SUM)
        kind, rank, message = failure_of(lone)
        assert (kind, rank) == ("protocol", peer)
        assert "does not serve" in message


@pytest.mark.parametrize("lost", [1, 3], ids=["a worker of the host", "the server"])
def test_a_relay_that_loses_a_member_tells_the_others(lost: int) -> None:
    with member(0, server=3) as relay:
        handle = relay.submit(0, np.ones(LENGTH // 4, np.float32))
        relay.peers[lost].sock.close()
        assert handle.wait(TIMEOUT_S)
        assert handle.failure is not None
        assert (handle.failure.kind, handle.failure.rank) == ("peer_lost", lost)
        assert relay.peers[2].receive_until(ABORT).header.part_offset == lost


def test_who_is_late_is_named_across_hosts() -> None:
    """A relay tells the server which of its workers are missing, and its workers what the server says."""

    def named(payload: bytes) -> list[int]:
        return list(struct.unpack(f"<{len(payload) // 4}i", payload))

    with member(0, server=3, heartbeat_s=1.0) as relay:
        handle = relay.submit(0, np.ones(LENGTH // 4, np.float32))
        push(relay, 1)
        assert named(relay.peers[1].receive_until(LATE).payload) == [2]
        assert named(relay.peers[3].receive_until(LATE).payload) == [2]
        eventually(lambda: handle.missing == [2], "the own handle knows")
        push(relay, 2)
        late = replace(Header(kind=LATE), part_length=LENGTH)
        relay.peers[3].send(late, struct.pack("<i", 4))
        while named(relay.peers[2].receive_until(LATE).payload) != [4]:
            pass
    with member(3, server=3, heartbeat_s=1.0) as server:
        handle = server.submit(0, np.ones(LENGTH // 4, np.float32))
        push(server, 4)
        assert named(server.peers[4].receive_until(LATE).payload) == [0, 1, 2, 5]
        server.peers[0].send(replace(Header(kind=LATE), part_length=LENGTH), struct.pack("<i", 2))
        eventually(lambda: handle.missing == [2, 5], "the relay has said who is missing")
