"""Settings: the only reader of environment and files. docs/environment.md has every one of them.

What is given in code wins over the environment, the environment over legato.toml. In the environment LEGATO_* wins over
predecessors' names for the same thing (variables.py), and over what the launcher says (launchers.py).
"""

import os
import shlex
import stat
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import IntEnum
from pathlib import Path
from typing import Any, TypeVar

from legato import variables
from legato.config_file import ConfigFile, find_config_file, read_config_file
from legato.core.shards import Deployment
from legato.environment import Environment, did_you_mean
from legato.errors import InputError
from legato.launchers import VARIABLES, Place, given_place, overlooked, told_place
from legato.live.config import LiveConfig
from legato.observe.notes import TimelineConfig
from legato.predecessors import PREFIXES, check_idle
from legato.transports.native.player import EngineConfig
from legato.transports.native.session import NativeConfig
from legato.transports.rendezvous.join import JoinConfig
from legato.transports.rendezvous.keys import check_key
from legato.transports.rendezvous.member import NUM_CONNECTIONS, MemberConfig
from legato.variables import PREFIX, SETTINGS, Address, Role, Setting, Steps, address_of

__all__ = ["ACTING", "Found", "Level", "Role", "Settings", "read_key", "read_settings"]

T = TypeVar("T")
Default = TypeVar("Default")

ACTING = frozenset(
    name
    for names in (
        *(alias.names for setting in SETTINGS.values() for alias in setting.aliases),
        *(row.names for row in VARIABLES),
    )
    for name in names
    if name.startswith(PREFIXES)
)
"""Predecessors' variables that mean something here."""


class Level(IntEnum):
    """Where a value comes from; the first wins."""

    ARGUMENT = 0
    ENVIRONMENT = 1
    FILE = 2
    DEFAULT = 3


@dataclass(frozen=True, slots=True)
class Found:
    """A setting's value and where it comes from."""

    setting: Setting[Any]
    value: object
    """None is the default, in the setting's words; a secret is not told."""
    level: Level
    where: str
    """The variable, or the file and the line; empty for the others."""

    @property
    def label(self) -> str:
        """The subject of an error about it."""
        return f"{self.setting.name} in {self.where}" if self.level is Level.FILE else self.where


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
    wire: str
    """What protects frames between hosts."""
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
    live: LiveConfig | None = None
    """Who is told of training while it runs; None is nobody."""
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
    elastic: int | None = None
    """The least number of workers that a job goes on with when it loses some; None: it ends."""
    members_file: Path | None = None
    """Where workers of an elastic job leave word of where it can be reached."""
    stragglers: str | None = None
    """What becomes of ranks that the others wait for: `wait` names them in rank 0's log, `evict` has an elastic job
    go on without those that are far slower, `off` does not look for them; None is `wait` where gradients are on
    processors."""
    in_host: bool = False
    """Whether ranks of a host sum gradients over a process group, and each sends a share."""
    staleness: int = 0
    """How many steps a worker may be ahead of the slowest, where the code does not say; 0 is synchronous."""
    tuner: str | None = None
    """What looks for better plans, where the code does not say; None is the twin, where nobody says what to do."""
    log_level: int | None = None
    """From which level on the log is shown; None leaves it to the program."""
    translated: tuple[str, ...] = ()
    """Variables of predecessors that act, and as what, in sentences."""
    without_effect: tuple[str, ...] = ()
    """Variables that are set and do nothing, and why, in sentences."""
    set_by_launcher: tuple[str, ...] = ()
    """The same of those that a launcher sets by itself."""
    found: tuple[Found, ...] = field(default=(), repr=False)
    """Every setting and where it comes from."""

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
                evicts=self.stragglers == "evict",
            ),
            engine=EngineConfig(num_io_threads=self.num_io_threads, heartbeat_s=self.heartbeat_s, wire=self.wire),
        )


class _Reader:
    """Looks settings up, and keeps where each was found."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        self.environment = Environment(environ)
        self.found: dict[str, Found] = {}
        self.translated: list[str] = []
        self._file: ConfigFile | None = None
        path = self.get(variables.CONFIG, None) or find_config_file(Path.cwd())
        if path is not None:
            self._file = _checked_file(read_config_file(path))
            self.show_as(variables.CONFIG, path)

    def get(
        self, setting: Setting[T], default: Default, *, given: T | None = None, by_alias: bool = True
    ) -> T | Default:
        """The value of the first level that has one; without `by_alias`, predecessors' names do not count."""
        value: T | Default
        value, level, where = default, Level.DEFAULT, ""
        if given is not None:
            value, level = given, Level.ARGUMENT
        elif (text := self.environment.text(setting.variable)) is not None:
            value, level, where = setting.form.read(setting.variable, text), Level.ENVIRONMENT, setting.variable
        elif by_alias and (translated := self._translate(setting)) is not None:
            (value, where), level = translated, Level.ENVIRONMENT
        elif self._file is not None and setting.name in self._file.entries:
            level, where = Level.FILE, self._file.where(setting.name)
            value = setting.form.read(f"{setting.name} in {where}", self._file.entries[setting.name].text)
        self.found[setting.name] = Found(setting, value, level, where)
        return value

    def nearest(self, first: Setting[Any], second: Setting[Any]) -> Found | None:
        """Of two ways to say the same, both looked up: the one that wins; None where neither was used."""
        found = min((self.found[each.name] for each in (first, second)), key=lambda each: each.level)
        return None if found.level is Level.DEFAULT else found

    def _translate(self, setting: Setting[T]) -> tuple[T, str] | None:
        for alias in setting.aliases:
            value = alias.value(self.environment)
            if value is not None:
                names = ", ".join(filter(self.environment.has, alias.names))
                if not alias.by_launcher:
                    self.translated.append(f"{names} is taken for {setting.variable}={value}")
                return value, names
        return None

    def show_as(self, setting: Setting[Any], value: object) -> None:
        """Keep another value: what it comes to here, or that it is a secret."""
        self.found[setting.name] = replace(self.found[setting.name], value=value)


def _checked_file(file: ConfigFile) -> ConfigFile:
    """Refuse keys that nobody reads."""
    for key in file.entries:
        if key not in SETTINGS:
            meant = did_you_mean(key, SETTINGS)
            question = f"did you mean {meant}?" if meant else "docs/environment.md lists them"
            raise InputError(f"{file.where(key)}: {key!r} is not a setting; {question}")
        if not SETTINGS[key].in_file:
            raise InputError(f"{file.where(key)}: {key!r} cannot be set in a file; set {SETTINGS[key].variable}")
    return file


def _unknown(environment: Environment) -> tuple[str, ...]:
    """A variable that is nearly one of ours is an error; one that is not may be somebody else's, and gets a line."""
    known = {setting.variable for setting in SETTINGS.values()}
    lines = []
    for name in sorted(environment.names((PREFIX,)) - known):
        meant = did_you_mean(name, known, PREFIX)
        if meant is not None:
            raise InputError(f"{name} is not a variable of legato; did you mean {meant}?")
        lines.append(f"{name} has no effect: legato does not know it (docs/environment.md)")
    return tuple(lines)


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
    read = _Reader(environ)
    unknown = _unknown(read.environment)
    without_effect, set_by_launcher = check_idle(read.environment, ACTING)
    num_servers = read.get(variables.SERVERS, 0, given=num_servers)
    mixed = read.get(variables.MIXED, False)
    role = _role(read, role, num_servers, mixed)
    has_rank = role is not Role.SERVER
    place = given_place(rank, num_workers, has_rank=has_rank) or told_place(read.environment, has_rank=has_rank)
    conductor_host, conductor_port = _conductor(read, place, conductor)
    return Settings(
        role=role,
        rank=place.rank if has_rank else None,
        num_workers=place.num_workers,
        num_servers=num_servers,
        workers_serve=_workers_serve(role, num_servers, mixed),
        local_rank=place.local_rank,
        local_size=place.local_size,
        conductor_host=conductor_host,
        conductor_port=conductor_port,
        host=_host(read),
        key=_key(read),
        insecure=read.get(variables.INSECURE, False),
        wire=read.get(variables.WIRE, "plain"),
        timeout_s=read.get(variables.TIMEOUT_S, 1800.0),
        stall_s=read.get(variables.STALL_S, 10.0),
        join_timeout_s=read.get(variables.JOIN_TIMEOUT_S, 60.0),
        heartbeat_s=read.get(variables.HEARTBEAT_S, 5.0),
        num_connections=read.get(variables.CONNECTIONS, NUM_CONNECTIONS),
        shared_memory=read.get(variables.SHARED_MEMORY, True),
        num_io_threads=_num_io_threads(read, role, place.local_size),
        launcher=place.launcher,
        told_by=place.told_by,
        overlooked=overlooked(read.environment, place),
        partition_bytes=read.get(variables.PARTITION_BYTES, None),
        credit_bytes=read.get(variables.CREDIT_BYTES, None),
        fusion_bytes=read.get(variables.FUSION_BYTES, None),
        policy=read.get(variables.POLICY, "auto"),
        min_compress_bytes=read.get(variables.MIN_COMPRESS_BYTES, None),
        check=read.get(variables.CHECK, None),
        nonfinite=read.get(variables.NONFINITE, "pass"),
        elastic=read.get(variables.ELASTIC, None),
        members_file=read.get(variables.MEMBERS_FILE, None),
        stragglers=read.get(variables.STRAGGLERS, None),
        in_host=read.get(variables.IN_HOST, False),
        staleness=read.get(variables.STALENESS, 0),
        timeline=_timeline(read),
        live=_live(read),
        tuner=read.get(variables.TUNER, None),
        log_level=_log_level(read),
        translated=tuple(read.translated),
        without_effect=(*unknown, *without_effect),
        set_by_launcher=set_by_launcher,
        found=tuple(read.found[name] for name in SETTINGS),
    )


def _num_io_threads(read: _Reader, role: Role, local_size: int) -> int:
    """BytePS's number is of the threads that sum on a server."""
    return read.get(variables.THREADS, _default_io_threads(local_size), by_alias=role is Role.SERVER)


def _role(read: _Reader, given: Role | None, num_servers: int, mixed: bool) -> Role:
    """BytePS's workers sum where nobody else does, or where all do."""
    role = read.get(variables.ROLE, Role.JOINT, given=given)
    if role is Role.WORKER and read.found["role"].where == "DMLC_ROLE" and (num_servers == 0 or mixed):
        read.show_as(variables.ROLE, Role.JOINT)
        return Role.JOINT
    return role


def _workers_serve(role: Role, num_servers: int, mixed: bool) -> bool:
    """A worker's role says it; a server must be told, and without a word takes it that servers do all."""
    if role is Role.SERVER:
        return mixed
    if role is Role.WORKER and not num_servers:
        raise InputError("LEGATO_SERVERS is 0, but the role is 'worker'; accepted is 1 or more, or the role 'joint'")
    return role is Role.JOINT


def _conductor(read: _Reader, place: Place, given: str | None) -> tuple[str, int]:
    """What is left out comes from the launcher."""
    told = None if given is None else variables.CONDUCTOR.form.read("conductor", given)
    address = read.get(variables.CONDUCTOR, Address(None, None), given=told)
    host, port = address.host or place.host, address.port or place.port
    if host is None and place.local_size == place.num_workers:
        host = "127.0.0.1"
    if host is None:
        raise InputError(
            f"MASTER_ADDR is not set, and {place.launcher} does not say where rank 0 is; accepted is its name or "
            "address, there or in LEGATO_CONDUCTOR"
        )
    read.show_as(variables.CONDUCTOR, Address(host, port))
    return host, port


def _host(read: _Reader) -> str | None:
    interface, host = read.get(variables.INTERFACE, None), read.get(variables.HOST, None)
    nearest = read.nearest(variables.INTERFACE, variables.HOST)
    if nearest is None or nearest.setting is variables.HOST or interface is None:
        return host
    return address_of(nearest.label, interface)


def _log_level(read: _Reader) -> int | None:
    name = read.get(variables.LOG_LEVEL, None)
    return None if name is None else variables.LOG_LEVELS[name]


def _timeline(read: _Reader) -> TimelineConfig | None:
    path, steps = read.get(variables.TIMELINE, None), read.get(variables.TIMELINE_STEPS, Steps())
    return None if path is None else TimelineConfig(path=path, first_step=steps.first, last_step=steps.last)


def _live(read: _Reader) -> LiveConfig | None:
    address, token = read.get(variables.DASHBOARD, None), read.get(variables.DASHBOARD_TOKEN, None)
    if token is not None:
        read.show_as(variables.DASHBOARD_TOKEN, "(not shown)")
    config = LiveConfig(
        dashboard=None if address is None else (str(address.host), int(address.port or 0)),
        token=token,
        progress_s=read.get(variables.PROGRESS_S, None),
        tensorboard=read.get(variables.TENSORBOARD, None),
        wandb=read.get(variables.WANDB, None),
    )
    return config if config.is_on else None


def _key(read: _Reader) -> bytes | None:
    """The shared key, without the line's end that editors leave in files."""
    path, key = read.get(variables.KEY_FILE, None), read.get(variables.KEY, None)
    if key is not None:
        read.show_as(variables.KEY, "(not shown)")
    nearest = read.nearest(variables.KEY_FILE, variables.KEY)
    if nearest is not None and nearest.setting is variables.KEY_FILE and path is not None:
        return read_key(path, nearest.label)
    if key is None:
        return None
    check_key(key.encode(), variables.KEY.variable)
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
