"""Links between ranks that run as threads, over the loopback."""

import socket
import threading
import time
from dataclasses import asdict

import pytest

from legato.core.shards import Deployment
from legato.doctor import links as room
from legato.doctor.links import Door, dial, gather, given_links, measure_links
from legato.errors import DeadlineError
from legato.testing.native_job import job_configs, run_job
from legato.transports.native.group import NativeGroup
from legato.transports.rendezvous.hosts import identity


@pytest.mark.parametrize("num_ranks", [2, 3])
def test_every_rank_of_a_host_is_in_the_ring(num_ranks: int) -> None:
    results = run_job(job_configs(Deployment(num_workers=num_ranks)), measure_links)
    links = results[0]
    assert all(each.flows == links.flows for each in results)
    assert (links.num_workers, links.num_hosts, links.num_places) == (num_ranks, 1, num_ranks)
    pairs = [(flow.sender, flow.receiver) for flow in links.flows]
    assert pairs == [(rank, (rank + 1) % num_ranks) for rank in range(num_ranks)]
    for flow in links.flows:
        assert 0 < flow.low_gbps <= flow.gbps <= flow.high_gbps
        assert 0 < flow.latency_s < 1
    assert links.low_gbps <= links.gbps == min(flow.gbps for flow in links.flows)
    assert links.engine_gbps is not None
    assert links.engine_gbps > 0


def test_a_flow_is_as_fast_as_what_arrives() -> None:
    """A sender that paces itself: its rate is known."""
    sender, receiver = socket.socketpair()
    num_bytes, rate = 0, 20e6

    def send() -> None:
        nonlocal num_bytes
        begin_s = time.monotonic()
        while (elapsed_s := time.monotonic() - begin_s) < room.WARM_UP_S + room.MEASURED_S:
            due = int(elapsed_s * rate) - num_bytes
            if due > 0:
                sender.sendall(bytes(due))
                num_bytes += due
        sender.close()

    thread = threading.Thread(target=send)
    thread.start()
    with receiver:
        rates = room._receive(receiver)
    thread.join()
    assert sum(rates) / len(rates) == pytest.approx(rate * 8e-9, rel=0.25)


def test_a_stranger_is_sent_away() -> None:
    with Door("127.0.0.1") as door:
        where = door.whereabouts
        with socket.create_connection((where.host, where.port)) as stranger:
            stranger.sendall(bytes(16))
            with dial(where) as rank, door.accept() as accepted:
                rank.sendall(b"hello")
                assert accepted.recv(5) == b"hello"
            assert stranger.recv(1) == b""


def test_a_door_waits_for_so_long() -> None:
    with Door("127.0.0.1") as door, pytest.raises(TimeoutError):
        door.accept(0.05)


def test_links_as_given() -> None:
    links = given_links(4, 10.0, 20e-6)
    assert (links.num_places, links.gbps, links.latency_s, links.is_measured) == (4, 10.0, 20e-6, False)


def test_a_rank_that_cannot_be_reached_is_named() -> None:
    """Rank 1 does as the others do, but nobody is behind the door that it tells of."""

    def body(group: NativeGroup) -> str:
        if group.rank == 0:
            with pytest.raises(DeadlineError) as caught:
                measure_links(group)
            return str(caught.value)
        gather(group, "legato/doctor/hosts", identity())
        with Door("127.0.0.1") as door:
            gone = asdict(door.whereabouts)
        gather(group, "legato/doctor/doors", gone)
        group.barrier()
        return ""

    said = run_job(job_configs(Deployment(num_workers=2)), body)[0]
    assert said.startswith("rank 0 could not measure its links to ranks 1 and 1 (")
