"""Facts: what a rank can read, or try, of its process and host."""

import fcntl
import os
import platform
import resource
import socket
import struct
import time
from contextlib import suppress
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from legato import __version__
from legato._native import instruction_set
from legato.errors import InputError
from legato.settings import Settings
from legato.transports.rendezvous.addresses import host_of_interface
from legato.transports.rendezvous.hosts import identity

BUSY_S = 0.5
"""How long a rank keeps a processor busy to see whether it gets one."""
_SIOCGIFMTU = 0x8921
_CONGESTION_CONTROL = Path("/proc/sys/net/ipv4/tcp_congestion_control")
_SCHEDSTAT = Path("/proc/thread-self/schedstat")
_QUOTA = Path("/sys/fs/cgroup/cpu.max")


@dataclass(frozen=True, slots=True, kw_only=True)
class Interface:
    """A network interface with an IPv4 address."""

    name: str
    address: str
    mtu: int
    speed_gbps: float | None
    """What it says of itself; virtual ones mostly say nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """Of one rank; plain values, which travel to rank 0."""

    rank: int
    hostname: str
    identity: str
    """Equal on all ranks of a host."""
    python: str
    legato: str
    torch: str | None
    kernel: str
    instructions: str
    """What sums run on."""
    address: str
    """Where other ranks reach this one; empty in a job of one."""
    interfaces: tuple[Interface, ...]
    congestion_control: str
    """The kernel's default. legato's own connections choose for themselves."""
    cores: float
    """Processors that this process may use."""
    local_ranks: int
    io_threads: int
    """Of legato's engine, for each rank."""
    load: float
    """Runnable threads of the host, over the last minute."""
    run_delay: float | None
    """Of the time in which it wanted a processor, the share in which a thread had to wait for one."""
    open_files: int
    shared_memory: bool
    """Whether ranks of this host can, and may, talk through memory."""
    dev_shm_bytes: int | None
    """Free; PyTorch's DataLoader hands batches over there."""

    def interface(self) -> Interface | None:
        """The one by which other ranks reach this one."""
        return next((each for each in self.interfaces if each.address == self.address), None)


def read_facts(settings: Settings, address: str = "") -> Facts:
    """Of this process. Ranks that call it together see how they get along on their processors."""
    run_delay = measure_run_delay(BUSY_S)
    return Facts(
        rank=settings.rank or 0,
        hostname=socket.gethostname(),
        identity=identity(),
        python=platform.python_version(),
        legato=__version__,
        torch=_version_of("torch"),
        kernel=platform.release(),
        instructions=instruction_set(),
        address=address,
        interfaces=_interfaces(),
        congestion_control=_CONGESTION_CONTROL.read_text().strip(),
        cores=_cores(),
        local_ranks=settings.local_size,
        io_threads=settings.num_io_threads,
        load=float(os.getloadavg()[0]),
        run_delay=run_delay,
        open_files=resource.getrlimit(resource.RLIMIT_NOFILE)[0],
        shared_memory=settings.shared_memory and _has_memfd(),
        dev_shm_bytes=_free_bytes("/dev/shm"),
    )


def measure_run_delay(seconds: float) -> float | None:
    """Keep a processor busy for so long; None where the kernel does not count."""
    try:
        before = _SCHEDSTAT.read_text().split()
    except OSError:
        return None
    until_s = time.monotonic() + seconds
    while time.monotonic() < until_s:
        pass
    ran_ns, waited_ns = (
        int(after) - int(earlier) for after, earlier in zip(_SCHEDSTAT.read_text().split()[:2], before[:2], strict=True)
    )
    return waited_ns / max(ran_ns + waited_ns, 1)


def _version_of(package: str) -> str | None:
    """Without importing it."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _interfaces() -> tuple[Interface, ...]:
    found = []
    for _, name in socket.if_nameindex():
        with suppress(InputError):  # one without an IPv4 address
            address = host_of_interface(name)
            found.append(Interface(name=name, address=address, mtu=_mtu(name), speed_gbps=_speed_gbps(name)))
    return tuple(found)


def _mtu(name: str) -> int:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        answer = fcntl.ioctl(probe.fileno(), _SIOCGIFMTU, struct.pack("256s", name.encode()[:15]))
    return int(struct.unpack_from("i", answer, 16)[0])


def _speed_gbps(name: str) -> float | None:
    folder = Path("/sys/class/net") / name
    try:
        if int((folder / "ifindex").read_text()) != socket.if_nametoindex(name):
            return None  # sysfs may be that of another network namespace
        mbps = int((folder / "speed").read_text())
    except (OSError, ValueError):
        return None
    return mbps / 1e3 if mbps > 0 else None


def _cores() -> float:
    """The processors of its affinity, or less where a control group has a quota."""
    cores = float(len(os.sched_getaffinity(0)))
    with suppress(OSError, ValueError):
        quota, period = _QUOTA.read_text().split()
        if quota != "max":
            cores = min(cores, int(quota) / int(period))
    return cores


def _has_memfd() -> bool:
    try:
        os.close(os.memfd_create("legato", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING))
    except OSError:
        return False
    return True


def _free_bytes(path: str) -> int | None:
    try:
        status = os.statvfs(path)
    except OSError:
        return None
    return status.f_bavail * status.f_frsize
