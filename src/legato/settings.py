"""Settings: the only reader of environment and files. docs/environment.md has every variable in one table.

What is given in code wins over the environment; in the environment LEGATO_* wins over the launcher's variables
(launchers.py).
"""

import logging
import os
import re
import shlex
import stat
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

from legato.core.policies import POLICIES
from legato.core.shards import Deployment
from legato.environment import Environment
from legato.errors import InputError
from legato.launchers import Place, given_place, overlooked, told_place
from legato.observe.notes import LAST_STEP, TimelineConfig
from legato.predecessors import check_idle
from legato.transports.native.player import EngineConfig
from legato.transports.native.session import NativeConfig
from legato.transports.rendezvous.addresses import host_of_interface
from legato.transports.rendezvous.join import JoinConfig
from legato.transports.rendezvous.keys import check_key
from legato.transports.rendezvous.member import NUM_CONNECTIONS, MemberConfig
from legato.tuning.tuner import TUNERS
from legato.units import parse_bytes

_log = logging.getLogger(__name__)

BYTEPS_PARTITION_BYTES = 4_096_000
"""BytePS's default, of which its credit counts parts."""
BYTEPS_STALENESS = 16
"""How many steps BYTEPS_ENABLE_ASYNC lets a worker be ahead."""

NONFINITE = ("pass", "skip", "fail")
"""What can be done with gradients that are not finite."""

_LOG_LEVELS: dict[str, int | None] = {
    "trace": logging.DEBUG,
    "debug": logging.DEBUG,
    "info": logging.INFO,
    "warning": logging.WARNING,
    "error": logging.ERROR,
    "fatal": logging.CRITICAL,
}


class Role(StrEnum):
    """What a process does in the job."""

    WORKER = "worker"
    """Trains; servers of their own sum."""
    SERVER = "server"
    """Sums for the workers."""
    JOINT = "joint"
    """Trains, and sums its share."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Where this process is in which job, and how its members talk."""

    role: Role
    """What this process does."""
    rank: int | None
    """The worker's rank; None is a server."""
    num_workers: int
    """Processes that train."""
    num_servers: int
    """Extra processes that only sum."""
    workers_serve: bool
    """Whether workers sum their share."""
    local_rank: int
    """Place among the workers of this host."""
    local_size: int
    """Workers on this host."""
    conductor_host: str
    """Where rank 0 is."""
    conductor_port: int
    """Where its conductor listens."""
    host: str | None
    """Address to listen at; None is the one by which the conductor is reached."""
    key: bytes | None = field(repr=False)
    """The job's shared key."""
    insecure: bool
    """Talk without a key."""
    timeout_s: float
    """How long any wait may take while the others live."""
    stall_s: float
    """How long a rank waits before all hear who waits for whom."""
    join_timeout_s: float
    """How long all members may take to gather."""
    heartbeat_s: float
    """How often members show that they live."""
    num_connections: int
    """Connections between each two members."""
    shared_memory: bool
    """Reach members on this host through memory."""
    num_io_threads: int
    """Threads that read and write sockets."""
    launcher: str
    """Whose variables said where this process is."""
    told_by: str
    """The same with the variables' names, for logs."""
    overlooked: tuple[str, ...]
    """Variables by which there may be other workers, although this one believes to be alone."""
    timeline: TimelineConfig | None
    """What happens when, for a viewer; None writes nothing."""
    partition_bytes: int | None = None
    """Largest part, where the code does not say; None leaves it to plans."""
    credit_bytes: int | None = None
    """Bytes in flight, where the code does not say; None leaves it to plans."""
    fusion_bytes: int | None = None
    """Neighbours are merged up to this, where the code does not say; None leaves it to plans."""
    policy: str = "auto"
    """What orders gradients, where the code does not say."""
    min_compress_bytes: int | None = None
    """Smaller tensors are not compressed; None leaves it to each codec."""
    check: bool | None = None
    """Whether ranks compare their weights before every step; None is before two of the first ones."""
    nonfinite: str = "pass"
    """What becomes of gradients that are not finite: `pass` averages them like others, `skip` skips the step on all
    ranks, `fail` ends the job."""
    staleness: int = 0
    """How many steps a worker may be ahead of the slowest, where the code does not say; 0 is synchronous."""
    tuner: str | None = None
    """What looks for better plans, where the code does not say; None is the twin, where nobody says what to do."""
    log_level: int | None = None
    """From which level on the log is shown; None leaves it to the program."""
    without_effect: tuple[str, ...] = ()
    """Variables of predecessors that are set and do nothing, and why, in sentences."""
    set_by_launcher: tuple[str, ...] = ()
    """The same of those that a launcher sets by itself."""

    def native(self) -> NativeConfig:
        """What the native transport needs of them."""
        return NativeConfig(
            member=MemberConfig(
                rank=self.rank,
                deployment=Deployment(
                    num_workers=self.num_workers, num_servers=self.num_servers, workers_serve=self.workers_serve
                ),
                conductor_host=self.conductor_host,
                conductor_port=self.conductor_port,
                host=self.host,
                join=JoinConfig(key=self.key, insecure=self.insecure),
                num_connections=self.num_connections,
                shared_memory=self.shared_memory,
                join_timeout_s=self.join_timeout_s,
                timeout_s=self.timeout_s,
                stall_s=self.stall_s,
            ),
            engine=EngineConfig(num_io_threads=self.num_io_threads, heartbeat_s=self.heartbeat_s),
        )


def _default_io_threads(local_size: int) -> int:
    """Up to four: one thread moves about 10 Gbit/s, with sums and checksums. Half of the cores stay for training."""
    return max(1, min(4, len(os.sched_getaffinity(0)) // (2 * local_size)))


def read_settings(
    environ: Mapping[str, str],
    *,
    role: Role | None = None,
    rank: int | None = None,
    num_workers: int | None = None,
    num_servers: int | None = None,
    conductor: str | None = None,
) -> Settings:
    """The settings of an environment; what is given here comes before it. Others: `dataclasses.replace`."""
    read = Environment(environ)
    without_effect, set_by_launcher = check_idle(read)
    role = _role(read) if role is None else role
    num_servers = _num_servers(read) if num_servers is None else num_servers
    has_rank = role is not Role.SERVER
    place = given_place(rank, num_workers, has_rank=has_rank) or told_place(read, has_rank=has_rank)
    conductor_host, conductor_port = _conductor(read, place, conductor)
    return Settings(
        role=role,
        rank=place.rank if has_rank else None,
        num_workers=place.num_workers,
        num_servers=num_servers,
        workers_serve=_workers_serve(read, role, num_servers),
        local_rank=place.local_rank,
        local_size=place.local_size,
        conductor_host=conductor_host,
        conductor_port=conductor_port,
        host=_host(read),
        key=_key(read),
        insecure=read.flag("LEGATO_INSECURE"),
        timeout_s=read.seconds("LEGATO_TIMEOUT_S", read.decimal("HOROVOD_STALL_SHUTDOWN_TIME_SECONDS") or 1800.0),
        stall_s=read.seconds("LEGATO_STALL_S", 10.0),
        join_timeout_s=read.seconds("LEGATO_JOIN_TIMEOUT_S", 60.0),
        heartbeat_s=read.seconds("LEGATO_HEARTBEAT_S", 5.0),
        num_connections=read.number("LEGATO_CONNECTIONS", NUM_CONNECTIONS, at_least=1),
        shared_memory=read.flag("LEGATO_SHARED_MEMORY", default=True),
        num_io_threads=_num_io_threads(read, role, place.local_size),
        launcher=place.launcher,
        told_by=place.told_by,
        overlooked=overlooked(read, place),
        partition_bytes=_partition_bytes(read),
        credit_bytes=_credit_bytes(read),
        fusion_bytes=_fusion_bytes(read),
        policy=_policy(read),
        min_compress_bytes=_min_compress_bytes(read),
        check=read.flag("LEGATO_CHECK") if read.has("LEGATO_CHECK") else None,
        nonfinite=read.choice("LEGATO_NONFINITE", {name: name for name in NONFINITE}, "pass"),
        staleness=_staleness(read),
        timeline=_timeline(read),
        tuner=_tuner(read),
        log_level=_log_level(read),
        without_effect=without_effect,
        set_by_launcher=set_by_launcher,
    )


def _partition_bytes(read: Environment) -> int | None:
    """ByteScheduler counts elements, of float32."""
    return _size(read, "LEGATO_PARTITION_BYTES", BYTEPS_PARTITION_BYTES=1, BYTESCHEDULER_PARTITION=4)


def _credit_bytes(read: Environment) -> int | None:
    """BytePS counts parts of its partition; none turns its scheduling off."""
    part_bytes = read.number("BYTEPS_PARTITION_BYTES", BYTEPS_PARTITION_BYTES, at_least=1)
    if read.text("BYTEPS_SCHEDULING_CREDIT") == "0":
        return _size(read, "LEGATO_CREDIT_BYTES", BYTESCHEDULER_CREDIT=4)
    return _size(read, "LEGATO_CREDIT_BYTES", BYTEPS_SCHEDULING_CREDIT=part_bytes, BYTESCHEDULER_CREDIT=4)


def _fusion_bytes(read: Environment) -> int | None:
    """Horovod's 0 fuses nothing."""
    if not read.has("LEGATO_FUSION_BYTES") and read.text("HOROVOD_FUSION_THRESHOLD") == "0":
        return 1
    return _size(read, "LEGATO_FUSION_BYTES", HOROVOD_FUSION_THRESHOLD=1)


def _policy(read: Environment) -> str:
    """BytePS without credit sends gradients as they come."""
    default = "fifo" if read.text("BYTEPS_SCHEDULING_CREDIT") == "0" else "auto"
    return read.choice("LEGATO_POLICY", {name: name for name in ("auto", *POLICIES)}, default)


def _tuner(read: Environment) -> str | None:
    """Horovod's and ByteScheduler's tuning is on or off; the twin takes its place."""
    switches = ("HOROVOD_AUTOTUNE", "BYTESCHEDULER_CREDIT_TUNING", "BYTESCHEDULER_PARTITION_TUNING")
    told = [read.flag(name) for name in switches if read.has(name)]
    default = None if not told else TUNERS[0] if any(told) else "off"
    return read.choice("LEGATO_TUNER", {name: name for name in (*TUNERS, "off")}, default)


def _log_level(read: Environment) -> int | None:
    if read.has("BYTESCHEDULER_DEBUG") and read.flag("BYTESCHEDULER_DEBUG"):
        default: int | None = logging.DEBUG
    else:
        default = read.choice("BYTEPS_LOG_LEVEL", _LOG_LEVELS, None)
    default = read.choice("HOROVOD_LOG_LEVEL", _LOG_LEVELS, default)
    return read.choice("LEGATO_LOG_LEVEL", _LOG_LEVELS, default)


def _num_io_threads(read: Environment, role: Role, local_size: int) -> int:
    """BytePS's number is of the threads that sum on a server."""
    default = _default_io_threads(local_size)
    on_server = read.number("BYTEPS_SERVER_ENGINE_THREAD", default, at_least=1)
    return read.number("LEGATO_THREADS", on_server if role is Role.SERVER else default, at_least=1)


def _size(read: Environment, name: str, **aliases: int) -> int | None:
    """A variable of ours, as people write sizes; or a predecessor's for the same thing, in units of so many bytes."""
    value = read.text(name)
    if value is not None:
        try:
            num_bytes = parse_bytes(value)
        except InputError as error:
            raise InputError(f"{name}: {error}") from None
        if num_bytes < 1:
            raise InputError(f"{name} is {value!r}; accepted is 1 byte or more")
        return num_bytes
    for alias, unit_bytes in aliases.items():
        if read.has(alias):
            number = read.decimal(alias)  # ByteScheduler's users write 4e6
            if number < 1 or not number.is_integer():
                raise InputError(f"{alias} is {read.text(alias)!r}; accepted is a whole number from 1 on")
            num_bytes = unit_bytes * int(number)
            _log.warning("%s is taken for %s=%d", alias, name, num_bytes)
            return num_bytes
    return None


def _min_compress_bytes(read: Environment) -> int | None:
    for name in ("LEGATO_MIN_COMPRESS_BYTES", "BYTEPS_MIN_COMPRESS_BYTES"):
        if read.has(name):
            return read.number(name)
    return None


def _staleness(read: Environment) -> int:
    """BytePS's workers never wait for each other: a bound that is rarely met comes near, and keeps them together."""
    default = BYTEPS_STALENESS if read.flag("BYTEPS_ENABLE_ASYNC") else 0
    return read.number("LEGATO_STALENESS", default)


def _role(read: Environment) -> Role:
    roles = {role.value: role for role in Role}
    if read.has("LEGATO_ROLE"):
        return read.choice("LEGATO_ROLE", roles, Role.JOINT)
    if (read.text("DMLC_ROLE") or "").lower() == "scheduler":
        raise InputError(
            "DMLC_ROLE is 'scheduler'; accepted are worker, server, joint: legato needs no scheduler process, its "
            "conductor lives beside worker 0, which must run at DMLC_PS_ROOT_URI"
        )
    role = read.choice("DMLC_ROLE", roles, Role.JOINT)
    if role is Role.WORKER and (_num_servers(read) == 0 or read.flag("BYTEPS_ENABLE_MIXED_MODE")):
        return Role.JOINT
    return role


def _num_servers(read: Environment) -> int:
    return read.number("LEGATO_SERVERS" if read.has("LEGATO_SERVERS") else "DMLC_NUM_SERVER", 0)


def _workers_serve(read: Environment, role: Role, num_servers: int) -> bool:
    """A worker's role says it; a server must be told, and without a word takes it that servers do all."""
    if role is Role.SERVER:
        return read.flag("BYTEPS_ENABLE_MIXED_MODE") or read.flag("LEGATO_MIXED")
    if role is Role.WORKER and not num_servers:
        raise InputError("LEGATO_SERVERS is 0, but the role is 'worker'; accepted is 1 or more, or the role 'joint'")
    return role is Role.JOINT


def _conductor(read: Environment, place: Place, given: str | None) -> tuple[str, int]:
    """Where the conductor is: `host:port`, `host` or `:port`; what is left out comes from the launcher."""
    name, value = ("conductor", given) if given else ("LEGATO_CONDUCTOR", read.text("LEGATO_CONDUCTOR") or "")
    found = re.fullmatch(r"(?P<host>\[[^\]]+\]|[^:\[\]]*)(?::(?P<port>\d{1,5}))?", value)
    port = place.port if found is None or found["port"] is None else int(found["port"])
    if found is None or not 0 < port < 65536:
        raise InputError(f"{name} is {value!r}; accepted is host:port, host or :port, with [ ] around an IPv6 address")
    host = found["host"].strip("[]") or place.host
    if host is None and place.local_size == place.num_workers:
        host = "127.0.0.1"
    if host is None:
        raise InputError(
            f"MASTER_ADDR is not set, and {place.launcher} does not say where rank 0 is; accepted is its name or "
            "address, there or in LEGATO_CONDUCTOR"
        )
    return host, port


def _host(read: Environment) -> str | None:
    """An interface's address before one that is given; ours before BytePS's and Horovod's."""
    for name, host in (("LEGATO_INTERFACE", "LEGATO_HOST"), ("DMLC_INTERFACE", "DMLC_NODE_HOST")):
        if read.has(name):
            return _address_of(read, name)
        if read.has(host):
            return read.text(host)
    return _address_of(read, "HOROVOD_GLOO_IFACE") if read.has("HOROVOD_GLOO_IFACE") else None


def _address_of(read: Environment, name: str) -> str:
    interface = read.text(name) or ""
    try:
        return host_of_interface(interface)
    except InputError as error:
        raise InputError(f"{name} is {interface!r}: {error}") from None


def _timeline(read: Environment) -> TimelineConfig | None:
    """ByteScheduler and Horovod name a file; BytePS a folder and steps, of which it keeps 10 to 20 unless told.

    Horovod's DYNAMIC is no file: start_timeline() will name one.
    """
    horovods = read.text("HOROVOD_TIMELINE")
    path = read.text("LEGATO_TIMELINE") or read.text("BYTESCHEDULER_TIMELINE")
    if path is None and horovods != "DYNAMIC":
        path = horovods
    if path is not None:
        return TimelineConfig(path=Path(path), **_steps(read, "LEGATO_TIMELINE_STEPS"))
    if not read.flag("BYTEPS_TRACE_ON"):
        return None
    return TimelineConfig(
        path=Path(read.text("BYTEPS_TRACE_DIR") or ".") / "timeline.json",
        first_step=read.number("BYTEPS_TRACE_START_STEP", 10),
        last_step=read.number("BYTEPS_TRACE_END_STEP", 20),
    )


def _steps(read: Environment, name: str) -> dict[str, int]:
    value = read.text(name)
    if value is None:
        return {}
    found = re.fullmatch(r"(\d{1,18})-(\d{1,18})?", value)
    if found is None:
        raise InputError(
            f"{name} is {value!r}; accepted are the first and the last step, 10-20, or the first alone, 10-"
        )
    return {"first_step": int(found[1]), "last_step": LAST_STEP if found[2] is None else int(found[2])}


def _key(read: Environment) -> bytes | None:
    """The shared key, without the line's end that editors leave in files."""
    key, path = read.text("LEGATO_KEY"), read.text("LEGATO_KEY_FILE")
    if path is not None:
        return read_key(Path(path), "LEGATO_KEY_FILE")
    if key is None:
        return None
    check_key(key.encode(), "LEGATO_KEY")
    return key.encode()


def read_key(path: Path, name: str) -> bytes:
    """The key in a file of this user that nobody else can read; `name` says in errors who named the file."""
    what = f"{name} is {str(path)!r}, which"
    try:
        with path.open("rb") as file:
            status = os.fstat(file.fileno())
            key = file.read().strip()
    except OSError as error:
        raise InputError(f"{what} cannot be read ({error.strerror}); accepted is a file") from None
    if status.st_uid not in (os.geteuid(), 0):
        raise InputError(f"{what} belongs to user {status.st_uid}; accepted is a file of this user's or root's")
    if status.st_mode & 0o077:
        mode = stat.S_IMODE(status.st_mode)
        raise InputError(f"{what} others can open (its mode is {mode:04o}); run: chmod 600 {shlex.quote(str(path))}")
    if not key:
        raise InputError(f"{what} is empty; accepted is a file that holds the key")
    check_key(key, what)
    return key
