"""Hosts on one machine: network namespaces whose links to one switch are shaped, for measuring what crosses a network.

    host 0           host 1                 each host: a namespace with eth0, 10.0.0.(host + 1)
  ┌────────┐       ┌────────┐
  │  eth0  │       │  eth0  │               tbf on eth0: what the host sends
  └───┬────┘       └───┬────┘
┌─────┴────────────────┴─────┐              tbf on the switch's port: what the host receives
│ port 0   bridge    port 1  │
└────────────────────────────┘              the switch: a namespace of its own; the root namespace shows nothing

With a latency, or where links can lose frames, a relay stands between each port and the bridge (relay.py). A quota on a
host's processors makes it a straggler (quota.py), flows between hosts are somebody else's traffic (background.py).
"""

import multiprocessing
import os
from collections.abc import Callable, Sequence
from functools import partial
from multiprocessing import Pipe, resource_tracker
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess
from types import TracebackType
from typing import Any

from pyroute2 import IPRoute

from bench.testbed.link import LinkShape
from bench.testbed.namespace import Namespace, die_with_parent
from bench.testbed.quota import Quota
from bench.testbed.relay import Loss, relay

MAX_HOSTS = 254
_REAP_S = 2.0
_RELAY_S = 30.0


class Testbed:
    """`hosts` hosts and then `servers` more on one switch, each link `gbps` in both directions.

    A context manager: leaves nothing behind.
    """

    __test__ = False  # not a test, whatever pytest thinks of the name

    def __init__(
        self,
        *,
        hosts: int = 4,
        servers: int = 0,
        gbps: float = 1.0,
        mtu: int = 1500,
        latency_s: float = 0.0,
        lossy: bool = False,
    ) -> None:
        """`lossy`: links can lose frames (`set_loss`), which hosts then send one packet each."""
        if hosts < 1 or servers < 0 or hosts + servers > MAX_HOSTS:
            raise ValueError(f"hosts and servers must be 1 to {MAX_HOSTS} together, not {hosts} and {servers}")
        if not 0 <= latency_s <= 1:
            raise ValueError(f"latency_s must be 0 to 1, not {latency_s}")
        self.num_hosts = hosts + servers
        self.mtu = mtu
        self.latency_s = latency_s
        self.lossy = lossy
        self._shapes = [LinkShape(gbps=gbps)] * self.num_hosts
        self._name = f"lg{os.getpid()}"
        self._switch: Namespace | None = None
        self._hosts: list[Namespace] = []
        self._processes: dict[SpawnProcess, int | None] = {}
        """With the host of each; None is the switch."""
        self._quotas: dict[int, Quota] = {}
        self._relay_line: Connection[Loss, None] | None = None

    def __enter__(self) -> "Testbed":
        try:
            self._build()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def address(self, host: int) -> str:
        """The IPv4 address of a host, reachable from every other."""
        self._check(host)
        return f"10.0.0.{host + 1}"

    def shape(self, host: int) -> LinkShape:
        """What the link of a host is shaped to at present."""
        self._check(host)
        return self._shapes[host]

    @property
    def switch(self) -> Namespace:
        """The namespace of the bridge and of the ports' shaping."""
        if self._switch is None:
            raise RuntimeError("the testbed is not open: use it in a with statement")
        return self._switch

    def namespace(self, host: int) -> Namespace:
        """The namespace of a host."""
        self._check(host)
        return self._hosts[host]

    def set_rate(self, gbps: float, host: int | None = None) -> None:
        """Change the rate of one link, or of all, while traffic flows."""
        shape = LinkShape(gbps=gbps)
        for index in range(self.num_hosts) if host is None else [host]:
            self._shape(index, shape, "change")

    def set_loss(self, share: float, host: int, *, sent: bool = True, received: bool = True) -> None:
        """Lose this share of what a host sends and receives, or of one of them, from now on; 1.0 cuts it off."""
        self._check(host)
        if self._relay_line is None:
            raise RuntimeError("this testbed loses nothing: make it lossy")
        self._relay_line.send(Loss(host, share if sent else 0.0, share if received else 0.0))
        self._hear_relay(self._relay_line)

    def set_cpus(self, cpus: float, host: int) -> None:
        """Leave a host so many processors, while it works: a straggler. They are shared by all that runs there."""
        self._check(host)
        if host in self._quotas:
            self._quotas[host].set(cpus)
            return
        quota = self._quotas[host] = Quota(cpus)
        for process, place in self._processes.items():
            if place == host and process.pid is not None:
                quota.add(process.pid)

    def spawn(self, host: int, target: Sequence[str] | Callable[..., object], *args: object) -> SpawnProcess:
        """Start a process on a host: a command line, or a function of an importable module with its arguments.

        It ends at the latest with the testbed, or with the thread that calls this.
        """
        process = self._start(self.namespace(host), f"host{host}", target, args)
        self._processes[process] = host
        if host in self._quotas and process.pid is not None:
            self._quotas[host].add(process.pid)
        return process

    def _start(
        self,
        namespace: Namespace,
        name: str,
        target: Sequence[str] | Callable[..., object],
        args: Sequence[object],
    ) -> SpawnProcess:
        # The first process started would start multiprocessing's tracker beside it, which then holds the namespace.
        resource_tracker.ensure_running()
        process = multiprocessing.get_context("spawn").Process(
            target=_run_child, args=(os.getpid(), target, args), name=name
        )
        with namespace.entered():
            process.start()
        return process

    def reap(self, process: SpawnProcess) -> None:
        """Wait a little for a process that is ending, end it otherwise, and forget it."""
        process.join(_REAP_S)
        if process.is_alive():
            process.kill()
            process.join()
        del self._processes[process]
        process.close()

    def stop(self, process: SpawnProcess) -> None:
        """End a process, and forget it."""
        process.terminate()
        self.reap(process)

    def close(self) -> None:
        """End every process, then let go of the namespaces: the kernel takes links and queues down with them."""
        for process in self._processes:
            process.terminate()
        for process in list(self._processes):
            self.reap(process)
        if self._relay_line is not None:
            self._relay_line.close()
            self._relay_line = None
        for quota in self._quotas.values():
            quota.close()
        self._quotas.clear()
        for namespace in self._hosts:
            namespace.close()
        self._hosts.clear()
        if self._switch is not None:
            self._switch.close()
            self._switch = None

    def _build(self) -> None:
        self._switch = Namespace()
        for _ in range(self.num_hosts):
            self._hosts.append(Namespace())
        self._switch.run(self._build_switch)
        for host, namespace in enumerate(self._hosts):
            namespace.run(partial(self._build_host, host))
            self._shape(host, self._shapes[host], "add")
        if self._is_relayed:
            self._relay()

    @property
    def _is_relayed(self) -> bool:
        return self.lossy or self.latency_s > 0

    def _relay(self) -> None:
        self._relay_line, theirs = Pipe()
        with theirs:
            pairs = [(self.port(host), self._relayed(host)) for host in range(self.num_hosts)]
            process = self._start(self.switch, "relay", relay, (pairs, self.latency_s, theirs))
            self._processes[process] = None
            self._hear_relay(self._relay_line)

    @staticmethod
    def _hear_relay(line: "Connection[Loss, None]") -> None:
        if not line.poll(_RELAY_S):
            raise TimeoutError(f"the relay does not answer after {_RELAY_S:g} s")
        line.recv()

    def _build_switch(self) -> None:
        with IPRoute() as network:
            network.link("add", ifname=self._name, kind="bridge", br_stp_state=0, mtu=self.mtu)
            [bridge] = network.link_lookup(ifname=self._name)
            network.link("set", index=bridge, state="up")
            for host, namespace in enumerate(self._hosts):
                peer = {"ifname": "eth0", "net_ns_fd": namespace.fd, "mtu": self.mtu}
                network.link("add", ifname=self.port(host), kind="veth", mtu=self.mtu, peer=peer)
                inner = self.port(host)
                if self._is_relayed:
                    inner = f"{self._name}b{host}"
                    peer = {"ifname": self._relayed(host), "mtu": self.mtu}
                    network.link("add", ifname=inner, kind="veth", mtu=self.mtu, peer=peer)
                    for name in (self.port(host), self._relayed(host)):
                        network.link("set", index=network.link_lookup(ifname=name)[0], state="up")
                [port] = network.link_lookup(ifname=inner)
                network.link("set", index=port, master=bridge, state="up")

    def _build_host(self, host: int) -> None:
        with IPRoute() as network:
            for name in ("lo", "eth0"):
                [link] = network.link_lookup(ifname=name)
                network.link("set", index=link, state="up")
            if self.lossy:
                network.link("set", index=link, gso_max_segs=1)
            network.addr("add", index=link, address=self.address(host), prefixlen=24)

    def _shape(self, host: int, shape: LinkShape, command: str) -> None:
        self._hosts[host].run(lambda: shape_egress("eth0", shape, command))
        self.switch.run(lambda: shape_egress(self.port(host), shape, command))
        self._shapes[host] = shape

    def port(self, host: int) -> str:
        """The switch's end of a host's link."""
        return f"{self._name}h{host}"

    def _relayed(self, host: int) -> str:
        """Where the relay hands on what the host sends."""
        return f"{self._name}r{host}"

    def _check(self, host: int) -> None:
        if not 0 <= host < self.num_hosts:
            raise ValueError(f"host must be 0 to {self.num_hosts - 1}, not {host}")


def shape_egress(name: str, shape: LinkShape, command: str) -> None:
    with IPRoute() as network:
        [link] = network.link_lookup(ifname=name)
        network.tc(
            command, "tbf", link, root=True, rate=shape.bytes_per_s, burst=shape.burst_bytes, limit=shape.queue_bytes
        )


def _run_child(parent: int, target: Sequence[str] | Callable[..., Any], args: Sequence[Any]) -> None:
    die_with_parent(parent)
    if callable(target):
        target(*args)
    else:
        os.execvp(target[0], list(target))
