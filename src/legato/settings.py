"""Settings: the only reader of environment and files. docs/environment.md has every variable in one table.

What is given in code wins over the environment; in the environment LEGATO_* wins over the launcher's variables, and of
several launchers the innermost: torchrun's, then BytePS's, Open MPI's, Slurm's.
"""

import math
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import TypeVar

from legato.core.shards import Deployment
from legato.errors import InputError
from legato.observe.notes import LAST_STEP, TimelineConfig
from legato.transports.addresses import host_of_interface
from legato.transports.join import JoinConfig
from legato.transports.member import NUM_CONNECTIONS, MemberConfig
from legato.transports.player import EngineConfig
from legato.transports.session import NativeConfig

DEFAULT_PORT = 29400
PORT_OFFSET = 1000
"""The conductor's port is this far from MASTER_PORT, where torchrun listens itself."""

BYTEPS_STALENESS = 16
"""How many steps BYTEPS_ENABLE_ASYNC lets a worker be ahead."""

T = TypeVar("T")


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
    """Talk beyond loopback without a key."""
    timeout_s: float
    """How long any wait may take."""
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
    """Whose variables said where this process is, for `doctor` and logs."""
    timeline: TimelineConfig | None
    """What happens when, for a viewer; None writes nothing."""
    min_compress_bytes: int | None = None
    """Smaller tensors are not compressed; None leaves it to each codec."""
    check: bool | None = None
    """Whether ranks compare their weights before every step; None is before two of the first ones."""
    staleness: int = 0
    """How many steps a worker may be ahead of the slowest, where the code does not say; 0 is synchronous."""

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
            ),
            engine=EngineConfig(num_io_threads=self.num_io_threads, heartbeat_s=self.heartbeat_s),
        )


def _default_io_threads(local_size: int) -> int:
    """Up to four: one thread moves about 10 Gbit/s, with sums and checksums. Half of the cores stay for training."""
    return max(1, min(4, len(os.sched_getaffinity(0)) // (2 * local_size)))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Place:
    """What a launcher says of this process."""

    launcher: str
    rank: int | None
    num_workers: int
    local_rank: int
    local_size: int
    host: str | None
    """Where rank 0 is; None where the launcher does not say."""
    port: int


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
    read = _Reader(environ)
    role = _role(read) if role is None else role
    num_servers = _num_servers(read) if num_servers is None else num_servers
    place = _given(role, rank, num_workers) or _place(read, role)
    conductor_host, conductor_port = _conductor(read, place, conductor)
    return Settings(
        role=role,
        rank=None if role is Role.SERVER else place.rank,
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
        timeout_s=read.seconds("LEGATO_TIMEOUT_S", 60.0),
        join_timeout_s=read.seconds("LEGATO_JOIN_TIMEOUT_S", 60.0),
        heartbeat_s=read.seconds("LEGATO_HEARTBEAT_S", 5.0),
        num_connections=read.number("LEGATO_CONNECTIONS", NUM_CONNECTIONS, at_least=1),
        shared_memory=read.flag("LEGATO_SHARED_MEMORY", default=True),
        num_io_threads=read.number("LEGATO_THREADS", _default_io_threads(place.local_size), at_least=1),
        launcher=place.launcher,
        min_compress_bytes=_min_compress_bytes(read),
        check=read.flag("LEGATO_CHECK") if read.has("LEGATO_CHECK") else None,
        staleness=_staleness(read),
        timeline=_timeline(read),
    )


def _min_compress_bytes(read: "_Reader") -> int | None:
    for name in ("LEGATO_MIN_COMPRESS_BYTES", "BYTEPS_MIN_COMPRESS_BYTES"):
        if read.has(name):
            return read.number(name)
    return None


def _staleness(read: "_Reader") -> int:
    """BytePS's workers never wait for each other: a bound that is rarely met comes near, and keeps them together."""
    default = BYTEPS_STALENESS if read.flag("BYTEPS_ENABLE_ASYNC") else 0
    return read.number("LEGATO_STALENESS", default)


class _Reader:
    """Values of an environment; a wrong one is an error that says which variable, what it holds, what is accepted."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        self._environ = environ

    def has(self, name: str) -> bool:
        return bool(self._environ.get(name))

    def text(self, name: str) -> str | None:
        return self._environ.get(name) or None

    def number(self, name: str, default: int | None = None, *, at_least: int = 0, below: int | None = None) -> int:
        accepted = f"a whole number from {at_least}" + (f" to {below - 1}" if below is not None else " on")
        value = self.text(name)
        if value is None:
            if default is None:
                raise InputError(f"{name} is not set; accepted is {accepted}")
            return default
        if (
            not re.fullmatch(r"-?\d{1,18}", value)
            or int(value) < at_least
            or (below is not None and int(value) >= below)
        ):
            raise InputError(f"{name} is {value!r}; accepted is {accepted}")
        return int(value)

    def seconds(self, name: str, default: float) -> float:
        value = self.text(name)
        try:
            seconds = default if value is None else float(value)
        except ValueError:
            seconds = math.nan
        if not 0 < seconds < math.inf:
            raise InputError(f"{name} is {value!r}; accepted is a number of seconds above 0")
        return seconds

    def flag(self, name: str, *, default: bool = False) -> bool:
        return self.choice(name, {"1": True, "true": True, "0": False, "false": False}, default=default)

    def choice(self, name: str, choices: Mapping[str, T], default: T) -> T:
        value = self.text(name)
        if value is None:
            return default
        try:
            return choices[value.lower()]
        except KeyError:
            raise InputError(f"{name} is {value!r}; accepted are {', '.join(choices)}") from None

    def port(self, name: str) -> int:
        return self.number(name, at_least=1, below=65536)


def _role(read: _Reader) -> Role:
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


def _num_servers(read: _Reader) -> int:
    return read.number("LEGATO_SERVERS" if read.has("LEGATO_SERVERS") else "DMLC_NUM_SERVER", 0)


def _workers_serve(read: _Reader, role: Role, num_servers: int) -> bool:
    """A worker's role says it; a server must be told, and without a word takes it that servers do all."""
    if role is Role.SERVER:
        return read.flag("BYTEPS_ENABLE_MIXED_MODE") or read.flag("LEGATO_MIXED")
    if role is Role.WORKER and not num_servers:
        raise InputError("LEGATO_SERVERS is 0, but the role is 'worker'; accepted is 1 or more, or the role 'joint'")
    return role is Role.JOINT


def _given(role: Role, rank: int | None, num_workers: int | None) -> _Place | None:
    """Where the process is when the code says so."""
    if num_workers is None or (rank is None and role is not Role.SERVER):
        if rank is not None or (num_workers is not None and role is not Role.SERVER):
            raise InputError(f"rank={rank} and num_workers={num_workers}: give both, or none")
        return None
    if num_workers < 1 or (rank is not None and not 0 <= rank < num_workers):
        raise InputError(f"rank={rank} with num_workers={num_workers}; accepted is a rank from 0 to num_workers - 1")
    return _Place(
        launcher="code",
        rank=rank,
        num_workers=num_workers,
        local_rank=rank or 0,
        local_size=num_workers,
        host=None,
        port=DEFAULT_PORT,
    )


def _place(read: _Reader, role: Role) -> _Place:
    """Where the process is, from the innermost launcher that speaks."""
    if read.has("RANK") or read.has("WORLD_SIZE"):
        return _torchrun(read, role)
    if read.has("DMLC_NUM_WORKER") or read.has("DMLC_WORKER_ID"):
        return _dmlc(read, role)
    if read.has("OMPI_COMM_WORLD_SIZE"):
        return _mpi(read)
    if read.has("SLURM_PROCID"):
        return _slurm(read)
    alone = _Place(
        launcher="none", rank=0, num_workers=1, local_rank=0, local_size=1, host="127.0.0.1", port=DEFAULT_PORT
    )
    if role is Role.SERVER:
        raise InputError("WORLD_SIZE is not set; accepted is the number of workers that the server is for")
    return alone


def _torchrun(read: _Reader, role: Role) -> _Place:
    size = read.number("WORLD_SIZE", at_least=1)
    rank = None if role is Role.SERVER else read.number("RANK", below=size)
    local_size = read.number("LOCAL_WORLD_SIZE", size, at_least=1, below=size + 1)
    local_rank = read.number("LOCAL_RANK", 0 if rank is None else rank % local_size, below=local_size)
    return _Place(
        launcher="torchrun",
        rank=rank,
        num_workers=size,
        local_rank=local_rank,
        local_size=local_size,
        host=read.text("MASTER_ADDR"),
        port=_beside_master(read),
    )


def _dmlc(read: _Reader, role: Role) -> _Place:
    size = read.number("DMLC_NUM_WORKER", at_least=1)
    rank = None if role is Role.SERVER else read.number("DMLC_WORKER_ID", 0 if size == 1 else None, below=size)
    local_size = read.number("BYTEPS_LOCAL_SIZE", 1, at_least=1)
    return _Place(
        launcher="DMLC",
        rank=rank,
        num_workers=size,
        local_rank=read.number("BYTEPS_LOCAL_RANK", 0, below=local_size),
        local_size=local_size,
        host=read.text("DMLC_PS_ROOT_URI"),
        port=read.port("DMLC_PS_ROOT_PORT") if read.has("DMLC_PS_ROOT_PORT") else DEFAULT_PORT,
    )


def _mpi(read: _Reader) -> _Place:
    size = read.number("OMPI_COMM_WORLD_SIZE", at_least=1)
    local_size = read.number("OMPI_COMM_WORLD_LOCAL_SIZE", at_least=1, below=size + 1)
    return _Place(
        launcher="Open MPI",
        rank=read.number("OMPI_COMM_WORLD_RANK", below=size),
        num_workers=size,
        local_rank=read.number("OMPI_COMM_WORLD_LOCAL_RANK", below=local_size),
        local_size=local_size,
        host=read.text("MASTER_ADDR") or ("127.0.0.1" if local_size == size else None),
        port=_beside_master(read),
    )


def _slurm(read: _Reader) -> _Place:
    size = read.number("SLURM_NTASKS", at_least=1)
    tasks = re.match(r"\d+", read.text("SLURM_STEP_TASKS_PER_NODE") or read.text("SLURM_TASKS_PER_NODE") or "")
    local_size = min(int(tasks.group()), size) if tasks else size
    # Jobs may share a node: their numbers keep their conductors apart.
    job = read.number("SLURM_JOB_ID", 0)
    nodes = read.text("SLURM_STEP_NODELIST") or read.text("SLURM_JOB_NODELIST")
    return _Place(
        launcher="Slurm",
        rank=read.number("SLURM_PROCID", below=size),
        num_workers=size,
        local_rank=read.number("SLURM_LOCALID", 0),
        local_size=local_size,
        host=read.text("MASTER_ADDR") or (first_node(nodes) if nodes else read.text("SLURM_LAUNCH_NODE_IPADDR")),
        port=_beside_master(read) if read.has("MASTER_PORT") else DEFAULT_PORT + job % PORT_OFFSET,
    )


def first_node(nodes: str) -> str:
    """The first host of a Slurm node list: `gpu[003-005,9],cpu1` begins with gpu003."""
    found = re.match(r"(?P<name>[^\[,]+)(?:\[(?P<first>\d+)[^\]]*\](?P<rest>[^,]*))?", nodes)
    if found is None:
        raise InputError(f"SLURM_JOB_NODELIST is {nodes!r}; accepted is a node list such as node[01-04]")
    return found["name"] + (found["first"] or "") + (found["rest"] or "")


def _beside_master(read: _Reader) -> int:
    if not read.has("MASTER_PORT"):
        return DEFAULT_PORT
    port = read.port("MASTER_PORT")
    return port + PORT_OFFSET if port + PORT_OFFSET < 65536 else port - PORT_OFFSET


def _conductor(read: _Reader, place: _Place, given: str | None) -> tuple[str, int]:
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


def _host(read: _Reader) -> str | None:
    interface = read.text("LEGATO_INTERFACE")
    if interface is None:
        return read.text("LEGATO_HOST")
    try:
        return host_of_interface(interface)
    except InputError as error:
        raise InputError(f"LEGATO_INTERFACE is {interface!r}: {error}") from None


def _timeline(read: _Reader) -> TimelineConfig | None:
    """ByteScheduler names a file; BytePS a folder and steps, of which it keeps 10 to 20 where nothing is said."""
    path = read.text("LEGATO_TIMELINE") or read.text("BYTESCHEDULER_TIMELINE")
    if path is not None:
        return TimelineConfig(path=Path(path), **_steps(read, "LEGATO_TIMELINE_STEPS"))
    if not read.flag("BYTEPS_TRACE_ON"):
        return None
    return TimelineConfig(
        path=Path(read.text("BYTEPS_TRACE_DIR") or ".") / "timeline.json",
        first_step=read.number("BYTEPS_TRACE_START_STEP", 10),
        last_step=read.number("BYTEPS_TRACE_END_STEP", 20),
    )


def _steps(read: _Reader, name: str) -> dict[str, int]:
    value = read.text(name)
    if value is None:
        return {}
    found = re.fullmatch(r"(\d{1,18})-(\d{1,18})?", value)
    if found is None:
        raise InputError(
            f"{name} is {value!r}; accepted are the first and the last step, 10-20, or the first alone, 10-"
        )
    return {"first_step": int(found[1]), "last_step": LAST_STEP if found[2] is None else int(found[2])}


def _key(read: _Reader) -> bytes | None:
    """The shared key, without the line's end that editors leave in files."""
    key, path = read.text("LEGATO_KEY"), read.text("LEGATO_KEY_FILE")
    if path is None:
        return None if key is None else key.encode()
    return read_key(Path(path), "LEGATO_KEY_FILE")


def read_key(path: Path, name: str) -> bytes:
    """The key in a file; `name` says in errors who named the file."""
    try:
        key = path.read_bytes().strip()
    except OSError as error:
        raise InputError(
            f"{name} is {str(path)!r}, which cannot be read ({error.strerror}); accepted is a file"
        ) from None
    if not key:
        raise InputError(f"{name} is {str(path)!r}, which is empty; accepted is a file that holds the key")
    return key
