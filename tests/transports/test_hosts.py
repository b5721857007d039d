"""Several workers on one host: who shares it is found out, memory is handed over at the door, the network is spared."""

import os
import socket
from dataclasses import replace

import numpy as np
import pytest

from bench.testbed.namespace import Namespace, is_permitted
from legato.core.shards import Deployment
from legato.errors import DeadlineError, ProtocolError
from legato.testing.native_job import job_configs, run_job
from legato.transports.native.group import NativeGroup
from legato.transports.rendezvous import hosts
from legato.transports.rendezvous.shared_path import MEMORY_BYTES, hand_over, listen_here, take_over
from tests.leftovers import expect_nothing_beyond, open_files_and_threads
from tests.transports.places import place_ranks


def test_members_with_one_identity_share_a_host() -> None:
    assert hosts.number(["b/1", "b/2", "b/1", "", "", "b/2"]) == (0, 1, 0, 2, 3, 1)


def test_words() -> None:
    assert hosts.words((0, 1, 0, 1, 2)) == "members 0, 2 share a host; members 1, 3 share a host"
    assert hosts.words((0, 1)) == "every member has a host of its own"


def test_an_identity_is_of_the_boot_the_network_namespace_and_the_user() -> None:
    here = hosts.identity()
    assert here == hosts.identity()
    boot, network, user = here.split("/")
    assert len(boot) == 36
    assert user == str(os.geteuid())
    if not is_permitted():
        pytest.skip("network namespaces are not permitted here")
    namespace = Namespace()
    try:
        elsewhere = namespace.run(hosts.identity).split("/")
    finally:
        namespace.close()
    assert elsewhere[0] == boot
    assert elsewhere[1] != network


def test_memory_is_handed_over_and_has_no_name() -> None:
    ours, theirs = socket.socketpair()
    given, taken = hand_over(ours), take_over(theirs, 5.0)
    try:
        os.pwrite(given.memory, b"hello", 100)
        assert os.pread(taken.memory, 5, 100) == b"hello"
        assert os.fstat(taken.memory).st_size == MEMORY_BYTES
        assert os.fstat(taken.memory).st_nlink == 0
        assert not os.get_inheritable(taken.memory)
        with pytest.raises(PermissionError):
            os.ftruncate(taken.memory, 0)
    finally:
        given.close()
        taken.close()


def test_something_else_than_memory_is_refused_and_closed() -> None:
    before = open_files_and_threads()
    ours, theirs = socket.socketpair()
    with ours:
        ours.send(b"x")
        with pytest.raises(ProtocolError, match="something else than memory"):
            take_over(theirs, 5.0)
    ours, theirs = socket.socketpair()
    with ours, pytest.raises(DeadlineError, match="in time"):
        take_over(theirs, 0.05)
    ours, theirs = socket.socketpair()
    with ours:
        large = os.memfd_create("large")
        os.ftruncate(large, 1 << 40)
        socket.send_fds(ours, [b"M"], [large])
        os.close(large)
        with pytest.raises(ProtocolError, match=f"memory of {1 << 40} bytes; accepted are {MEMORY_BYTES}"):
            take_over(theirs, 5.0)
    expect_nothing_beyond(before)


def test_a_door_is_not_in_the_file_system() -> None:
    with listen_here() as door:
        assert door.getsockname().startswith(b"\0")


def push_pull(group: NativeGroup) -> dict[str, int]:
    value = np.full(300_000, group.rank + 1.0, np.float32)
    group.push_pull("t", value)
    assert value.tolist() == [6.0] * 300_000
    return group.session.engine.statistics()


def test_members_on_one_host_use_no_network() -> None:
    for counters in run_job(job_configs(Deployment(num_workers=3)), push_pull):
        assert counters["bytes_sent"] == 0
        assert counters["bytes_shared"] > 1_200_000


@pytest.mark.parametrize("sharing", [(), (0, 2)], ids=["switched off", "on some members"])
def test_sharing_can_be_switched_off(sharing: tuple[int, ...]) -> None:
    configs = job_configs(Deployment(num_workers=3))
    configs = [
        replace(config, member=replace(config.member, shared_memory=rank in sharing))
        for rank, config in enumerate(configs)
    ]
    for rank, counters in enumerate(run_job(configs, push_pull)):
        assert (counters["bytes_shared"] > 0) == (rank in sharing)
        assert counters["bytes_sent"] > 0


@pytest.mark.parametrize(
    "deployment",
    [
        Deployment(num_workers=5),
        Deployment(num_workers=5, num_servers=1),
        Deployment(num_workers=5, num_servers=2, workers_serve=False),
    ],
    ids=["joint", "mixed", "separate"],
)
def test_hosts_of_two_and_three_workers(deployment: Deployment, monkeypatch: pytest.MonkeyPatch) -> None:
    place_ranks(monkeypatch, lambda rank: rank // 3)

    def body(group: NativeGroup) -> None:
        for step in range(5):
            value = np.full(200_000, group.rank + 1.0, np.float32)
            group.push_pull("t", value, step=step)
            assert value.tolist() == [15.0] * 200_000
        assert group.broadcast("b", np.full(10, group.rank), root=3).tolist() == [3] * 10
        assert group.allgather("g", np.full(group.rank, group.rank)).tolist() == [1, 2, 2, 3, 3, 3, 4, 4, 4, 4]
        assert group.reducescatter("r", np.arange(10.0)).tolist() == [10.0 * group.rank, 10.0 * group.rank + 5]
        group.barrier()

    run_job(job_configs(deployment), body)


def test_who_shares_a_host_is_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO", "legato"):
        run_job(job_configs(Deployment(num_workers=3)), push_pull)
    assert "members 0, 1, 2 share a host" in caplog.messages
