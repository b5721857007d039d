"""The testbed: hosts that reach each other through shaped links, and nothing left when it or its owner is gone."""

import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyroute2 import IPRoute

from bench.testbed import crew, quota
from bench.testbed.background import flow
from bench.testbed.link import LinkShape
from bench.testbed.namespace import EXIT_NOT_PERMITTED, Namespace, is_permitted
from bench.testbed.quota import Quota, QuotaError
from bench.testbed.testbed import Testbed

pytestmark = pytest.mark.skipif(not is_permitted(), reason="this user may not make network namespaces")

_PORT = 4000
_TICK_S = 64e-9
"""The kernel's packet scheduler counts time in ticks of 64 ns."""


def qdisc(namespace: Namespace, link_name: str) -> dict[str, Any]:
    """What the kernel says of the token bucket on a link: rate and limit in bytes, buffer in ticks."""

    def read() -> dict[str, Any]:
        with IPRoute() as network:
            [link] = network.link_lookup(ifname=link_name)
            [found] = [entry for entry in network.get_qdiscs(index=link) if entry["index"] == link]
            assert found.get_attr("TCA_KIND") == "tbf"
            parameters: dict[str, Any] = found.get_attr("TCA_OPTIONS").get_attr("TCA_TBF_PARMS")
            return parameters

    return namespace.run(read)


def links_of(namespace: Namespace) -> list[str]:
    def read() -> list[str]:
        with IPRoute() as network:
            return sorted(link.get_attr("IFLA_IFNAME") for link in network.get_links())

    return namespace.run(read)


def tether(witness: Namespace, fd: int, name: str) -> None:
    """Tie a link of `witness` to a namespace: the link goes when that namespace goes, and only then."""

    def tie() -> None:
        with IPRoute() as network:
            network.link("add", ifname=name, kind="veth", peer={"ifname": f"{name}x", "net_ns_fd": fd})

    witness.run(tie)


def assert_within(seconds: float, holds: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline_s
        time.sleep(0.01)  # the kernel takes namespaces down in the background and tells nobody


@pytest.fixture
def witness() -> Iterator[Namespace]:
    namespace = Namespace()
    yield namespace
    namespace.close()


def greet(station: crew.Station, addresses: list[str]) -> str:
    """Send one's rank to the next host, and return what came from the one before."""
    following = addresses[(station.rank + 1) % len(addresses)]
    with socket.create_server((addresses[station.rank], _PORT)) as listener:
        station.meet()
        with socket.create_connection((following, _PORT), 10) as outgoing:
            outgoing.sendall(str(station.rank).encode())
        incoming, (source, _) = listener.accept()
        with incoming:
            return f"{source} says {incoming.recv(16).decode()}"


def test_hosts_reach_each_other() -> None:
    with Testbed(hosts=3) as testbed:
        addresses = [testbed.address(host) for host in range(3)]
        assert crew.run(testbed, range(3), greet, addresses) == [
            "10.0.0.3 says 2",
            "10.0.0.1 says 0",
            "10.0.0.2 says 1",
        ]


def test_two_testbeds_at_once() -> None:
    with Testbed(hosts=2, gbps=1) as first, Testbed(hosts=2, gbps=2) as second:
        for testbed in (first, second):
            addresses = [testbed.address(host) for host in range(2)]
            assert crew.run(testbed, range(2), greet, addresses) == ["10.0.0.2 says 1", "10.0.0.1 says 0"]
        assert qdisc(first.namespace(0), "eth0")["rate"] == 125_000_000
        assert qdisc(second.namespace(0), "eth0")["rate"] == 250_000_000


def assert_shaped(testbed: Testbed, host: int, gbps: float) -> None:
    shape = LinkShape(gbps=gbps)
    for namespace, link_name in (
        (testbed.namespace(host), "eth0"),
        (testbed.switch, testbed.port(host)),
    ):
        found = qdisc(namespace, link_name)
        assert (found["rate"], found["limit"]) == (shape.bytes_per_s, shape.queue_bytes)
        burst_bytes = found["buffer"] * _TICK_S * shape.bytes_per_s
        # netlink carries the burst as whole microseconds of the rate
        assert burst_bytes == pytest.approx(shape.burst_bytes, abs=2e-6 * shape.bytes_per_s)


def test_both_directions_of_every_link_are_shaped() -> None:
    with Testbed(hosts=2, gbps=0.5) as testbed:
        for host in range(2):
            assert_shaped(testbed, host, 0.5)


def test_rates_change_live() -> None:
    with Testbed(hosts=2, gbps=1) as testbed:
        testbed.set_rate(0.1, host=1)
        assert_shaped(testbed, 0, 1)
        assert_shaped(testbed, 1, 0.1)
        testbed.set_rate(4)
        assert_shaped(testbed, 0, 4)
        assert_shaped(testbed, 1, 4)
        assert testbed.shape(1) == LinkShape(gbps=4)


@pytest.mark.parametrize("gbps", [0.1, 0.5, 1, 4])
def test_a_burst_holds_a_whole_packet_or_two_milliseconds(gbps: float) -> None:
    shape = LinkShape(gbps=gbps)
    assert shape.burst_bytes >= min(65536 + 14, 0.002 * shape.bytes_per_s)
    assert 0.004 <= shape.queue_bytes / shape.bytes_per_s <= 0.016


@pytest.mark.parametrize("gbps", [0, -1, 33, float("nan")])
def test_impossible_rates_are_refused(gbps: float) -> None:
    with pytest.raises(ValueError, match="gbps"):
        Testbed(gbps=gbps)


def test_servers_are_more_hosts_on_the_same_switch() -> None:
    with Testbed(hosts=1, servers=2) as testbed:
        addresses = [testbed.address(host) for host in range(3)]
        assert crew.run(testbed, range(3), greet, addresses)[0] == "10.0.0.3 says 2"
        assert_shaped(testbed, 2, 1)
    with pytest.raises(ValueError, match="servers"):
        Testbed(hosts=250, servers=5)


def exchange(station: crew.Station, address: str, num_rounds: int) -> float:
    """Rank 1 sends a byte to rank 0 and gets it back, some times: the shortest time it took."""
    if station.rank == 0:
        with socket.create_server((address, _PORT)) as listener:
            station.meet()
            connection, _ = listener.accept()
            with connection:
                while found := connection.recv(1):
                    connection.sendall(found)
        return 0.0
    station.meet()
    with socket.create_connection((address, _PORT), 10) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        times_s = []
        for _ in range(num_rounds):
            begin_s = time.monotonic()
            connection.sendall(b"x")
            connection.recv(1)
            times_s.append(time.monotonic() - begin_s)
    return min(times_s)


def test_a_latency_is_added_to_each_way() -> None:
    with Testbed(hosts=2, latency_s=0.01) as testbed:
        assert_shaped(testbed, 0, 1)
        _, shortest_s = crew.run(testbed, range(2), exchange, testbed.address(0), 10)
        assert 0.02 <= shortest_s < 0.04
        assert crew.run(testbed, range(2), receive, testbed.address(0), 20_000_000)[0] == 20_000_000


def receive(station: crew.Station, address: str, num_bytes: int) -> int:
    """Rank 1 sends many bytes; how many rank 0 got."""
    if station.rank == 1:
        station.meet()
        with socket.create_connection((address, _PORT), 10) as connection:
            connection.sendall(bytes(num_bytes))
        return 0
    received = 0
    with socket.create_server((address, _PORT)) as listener:
        station.meet()
        connection, _ = listener.accept()
        with connection:
            while found := len(connection.recv(1 << 20)):
                received += found
    return received


def received_bytes(namespace: Namespace) -> int:
    """By eth0, since it is there."""

    def read() -> int:
        with IPRoute() as network:
            [link] = network.get_links(ifname="eth0")
            found: int = link.get_attr("IFLA_STATS64")["rx_bytes"]
            return found

    return namespace.run(read)


def test_a_background_flow_loads_its_links_and_no_others() -> None:
    with Testbed(hosts=3, gbps=1) as testbed:
        with flow(testbed, 0, 1):
            before = [received_bytes(testbed.namespace(host)) for host in range(3)]
            assert_within(30, lambda: received_bytes(testbed.namespace(1)) > before[1] + 10_000_000)
            idle = received_bytes(testbed.namespace(2)) - before[2]
        assert idle < 100_000
        after = received_bytes(testbed.namespace(1))
        with flow(testbed, 0, 1, gbps=0.001):
            begin_s = time.monotonic()
            assert_within(30, lambda: received_bytes(testbed.namespace(1)) > after + 300_000)
            # 1 Mbit/s is 125 KB a second, and a burst at its beginning.
            assert time.monotonic() - begin_s > 0.5


def may_have_quotas() -> bool:
    try:
        Quota(1.0).close()
    except QuotaError:
        return False
    return True


needs_quotas = pytest.mark.skipif(not may_have_quotas(), reason=quota.HELP)


def spin(station: crew.Station, cpu_s: float) -> float:
    """How long it takes to compute for so long."""
    station.meet()
    begin_s, until_s = time.monotonic(), time.process_time() + cpu_s
    while time.process_time() < until_s:
        pass
    return time.monotonic() - begin_s


@needs_quotas
def test_a_quota_makes_a_straggler() -> None:
    with Testbed(hosts=2) as testbed:
        sleepers = [testbed.spawn(host, time.sleep, 600) for host in range(2)]
        testbed.set_cpus(0.2, host=0)
        groups = [Path(f"/proc/{sleeper.pid}/cgroup").read_text() for sleeper in sleepers]
        assert [f"/lg{os.getpid()}." in group for group in groups] == [True, False]
        [slowed_s, _] = crew.run(testbed, range(2), spin, 0.3)
        assert slowed_s > 1.3  # 1.5 s at a fifth of a processor, less what a period lets through at once
    assert [*Path("/sys/fs/cgroup").glob(f"**/lg{os.getpid()}.*")] == []


@needs_quotas
def test_clean_removes_the_quotas_of_dead_owners_only() -> None:
    script = "import os; from bench.testbed.quota import Quota; Quota(1.0); os.kill(os.getpid(), 9)"
    owner = subprocess.Popen([sys.executable, "-c", script], cwd=Path(__file__).parents[2])
    assert owner.wait(30) == -signal.SIGKILL
    ours = Quota(1.0)
    try:
        removed = quota.clean()
        assert [name for name in removed if name.startswith(f"lg{owner.pid}.")]
        assert not [name for name in removed if name.startswith(f"lg{os.getpid()}.")]
        ours.set(2.0)  # it is still there
        assert quota.clean() == []
    finally:
        ours.close()


def test_without_a_cgroup_one_line_says_what_is_missing(tmp_path: Path) -> None:
    with pytest.raises(QuotaError, match="a quota on processors needs a cgroup"):
        Quota(1.0, tmp_path / "none")
    assert quota.clean(tmp_path / "none") == []


def test_the_mtu_is_that_of_every_link() -> None:
    with Testbed(hosts=2, mtu=9000) as testbed:
        assert testbed.namespace(1).run(_mtu_of_eth0) == 9000


def _mtu_of_eth0() -> int:
    with IPRoute() as network:
        [link] = network.get_links(ifname="eth0")
        mtu: int = link.get_attr("IFLA_MTU")
        return mtu


def test_the_root_namespace_shows_nothing() -> None:
    before = sorted(name for _, name in socket.if_nameindex())
    with Testbed(hosts=2):
        assert sorted(name for _, name in socket.if_nameindex()) == before


def test_a_command_line_runs_on_a_host() -> None:
    check = f"import socket; socket.create_server(('10.0.0.2', {_PORT})).close()"
    with Testbed(hosts=2) as testbed:
        process = testbed.spawn(1, [sys.executable, "-c", check])
        process.join(30)
        assert process.exitcode == 0


def test_an_exception_leaves_nothing(witness: Namespace) -> None:
    def fail() -> None:
        with Testbed(hosts=2) as testbed:
            testbed.spawn(0, time.sleep, 600)
            tether(witness, testbed.namespace(0).fd, "host")
            tether(witness, testbed.switch.fd, "switch")
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert_within(10, lambda: links_of(witness) == ["lo"])


def test_a_failing_rank_ends_the_crew() -> None:
    with (
        Testbed(hosts=2) as testbed,
        pytest.raises(crew.CrewError, match=r"rank 1 failed(.|\n)*division by zero"),
    ):
        crew.run(testbed, range(2), fail_on_rank_1)


def fail_on_rank_1(station: crew.Station) -> None:
    if station.rank == 1:
        1 / 0  # noqa: B018 (the point of it)
    station.meet()


OWNER = """
import sys, time
from bench.testbed.testbed import Testbed

if __name__ == "__main__":
    with Testbed(hosts=2) as testbed:
        for host in range(2):
            testbed.spawn(host, time.sleep, 600)
        print(testbed.switch.fd, testbed.namespace(0).fd, testbed.namespace(1).fd, flush=True)
        sys.stdin.read()
"""


def test_kill_9_of_the_owner_leaves_nothing(witness: Namespace, tmp_path: Path) -> None:
    script = tmp_path / "owner.py"
    script.write_text(OWNER)
    owner = subprocess.Popen(
        [sys.executable, script],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
    )
    with owner:
        assert owner.stdout is not None
        for index, number in enumerate(owner.stdout.readline().split()):
            fd = os.open(f"/proc/{owner.pid}/fd/{number}", os.O_RDONLY)
            tether(witness, fd, f"t{index}")
            os.close(fd)
        assert links_of(witness) == ["lo", "t0", "t1", "t2"]
        owner.send_signal(signal.SIGKILL)
    # A process inside would keep its namespace, so this says that the sleepers are gone too.
    assert_within(10, lambda: links_of(witness) == ["lo"])


UNPRIVILEGED = """
from bench.testbed.namespace import acquire_permission
from bench.testbed.testbed import Testbed

if __name__ == "__main__":
    acquire_permission()
    with Testbed(hosts=2) as testbed:
        process = testbed.spawn(1, ["true"])
        process.join()
        print(testbed.address(1), process.exitcode)
"""


def run_program(launcher: list[str], tmp_path: Path) -> "subprocess.CompletedProcess[str]":
    script = tmp_path / "program.py"
    script.write_text(UNPRIVILEGED)
    return subprocess.run(
        [*launcher, sys.executable, str(script)],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
        timeout=60,
        check=False,
    )


def test_without_privileges_a_user_namespace_does(tmp_path: Path) -> None:
    if shutil.which("setpriv") is None:
        pytest.skip("no setpriv to give up privileges with")
    ended = run_program(["setpriv", "--bounding-set", "-sys_admin,-net_admin"], tmp_path)
    if ended.returncode == EXIT_NOT_PERMITTED:
        pytest.skip(ended.stderr)
    assert (ended.returncode, ended.stdout) == (0, "10.0.0.2 0\n"), ended.stderr


def test_where_nothing_helps_one_line_and_77(tmp_path: Path) -> None:
    if shutil.which("unshare") is None:
        pytest.skip("no unshare to make a namespace without namespaces with")
    limit = 'echo 0 > /proc/sys/user/max_net_namespaces && exec "$@"'
    ended = run_program(["unshare", "--user", "--map-root-user", "bash", "-c", limit, "bash"], tmp_path)
    assert ended.returncode == EXIT_NOT_PERMITTED
    assert len(ended.stderr.splitlines()) == 1
    assert "network namespaces need root" in ended.stderr
