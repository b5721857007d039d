"""The model of all settings: what each is called, how it is written, what it means, and who else has a name for it.

Settings are read by it (settings.py), `legato config show` shows them by it, and docs/environment.md is made from it.
"""

import logging
import re
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, Generic, TypeVar

from legato.core.policies import POLICIES
from legato.environment import DECIMAL, FLAG, SECONDS, SIZE, TEXT, WHOLE, Environment, Format, one_of, whole
from legato.errors import InputError
from legato.observe.notes import LAST_STEP
from legato.transports.native.player import WIRES
from legato.transports.rendezvous.addresses import host_of_interface
from legato.tuning.tuner import TUNERS

T = TypeVar("T")

PREFIX = "LEGATO_"
BYTEPS_PARTITION_BYTES = 4_096_000
"""BytePS's default, of which its credit counts parts."""
BYTEPS_STALENESS = 16
"""How many steps BYTEPS_ENABLE_ASYNC lets a worker be ahead: a bound that is rarely met comes near to none."""


class Role(StrEnum):
    """What a process does in the job."""

    WORKER = "worker"
    """Trains; servers of their own sum."""
    SERVER = "server"
    """Sums for the workers."""
    JOINT = "joint"
    """Trains, and sums its share."""


class Group(StrEnum):
    """What a setting is about: the sections of docs/environment.md."""

    MEMBERS = "Who is in the job"
    TRUST = "How members find and trust each other"
    PLAN = "What is sent when"
    WAITS = "Waits and connections"
    WATCH = "What happened when"


@dataclass(frozen=True, slots=True)
class Alias(Generic[T]):
    """Names that a predecessor has for a setting."""

    names: tuple[str, ...]
    value: Callable[[Environment], T | None]
    """What they say, in our units; None is nothing."""
    note: str = ""
    """How it is converted, in words."""
    by_launcher: bool = False
    """Set by launchers rather than by users: no warning."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting(Generic[T]):
    """One thing that can be set: by a variable or, in lower case, by a key of legato.toml."""

    name: str
    form: Format[T]
    group: Group
    meaning: str
    """In Markdown, for docs/environment.md."""
    default: str
    """The same."""
    aliases: tuple[Alias[T], ...] = ()
    in_file: bool = True
    """Whether legato.toml may have it."""

    @property
    def variable(self) -> str:
        return PREFIX + self.name.upper()


# ---- values that are no plain number ----


@dataclass(frozen=True, slots=True)
class Address:
    """`host:port`, of which either may be missing."""

    host: str | None
    port: int | None

    def __str__(self) -> str:
        host = f"[{self.host}]" if self.host and ":" in self.host else self.host or ""
        return host if self.port is None else f"{host}:{self.port}"


def _address(text: str) -> Address:
    found = re.fullmatch(r"(?P<host>\[[^\]]+\]|[^:\[\]]*)(?::(?P<port>\d{1,5}))?", text)
    if found is None or (found["port"] is not None and not 0 < int(found["port"]) < 65536):
        raise ValueError
    return Address(found["host"].strip("[]") or None, int(found["port"]) if found["port"] else None)


@dataclass(frozen=True, slots=True)
class Steps:
    """The first and the last step of a stretch."""

    first: int = 0
    last: int = LAST_STEP

    def __str__(self) -> str:
        return f"{self.first}-{'' if self.last == LAST_STEP else self.last}"


def _steps(text: str) -> Steps:
    found = re.fullmatch(r"(\d{1,18})-(\d{1,18})?", text)
    if found is None:
        raise ValueError
    return Steps(int(found[1]), LAST_STEP if found[2] is None else int(found[2]))


LOG_LEVELS = {
    "trace": logging.DEBUG,
    "debug": logging.DEBUG,
    "info": logging.INFO,
    "warning": logging.WARNING,
    "error": logging.ERROR,
    "fatal": logging.CRITICAL,
}
_LEVEL = one_of({name: name for name in LOG_LEVELS})


def _dashboard(text: str) -> Address | None:
    """A port alone is one of the loopback's."""
    if text in ("0", "off"):
        return None
    address = _address(f":{text}" if text.isdecimal() else text)
    if address.port is None:
        raise ValueError
    return Address(address.host or "127.0.0.1", address.port)


_PATH = Format(Path, "is a path")


# ---- what predecessors say ----


def _same(name: str, form: Format[T], note: str = "", *, by_launcher: bool = False) -> Alias[T]:
    """The same thing by another name."""
    return Alias((name,), lambda read: read.value(name, form), note, by_launcher)


def _count(read: Environment, name: str, unit_bytes: int) -> int | None:
    """So many units; ByteScheduler's users write 4e6."""
    number = read.value(name, DECIMAL)
    if number is None:
        return None
    if number < 1 or not number.is_integer():
        raise InputError(f"{name} is {read.text(name)!r}; accepted is a whole number from 1 on")
    return unit_bytes * int(number)


def _elements(name: str) -> Alias[int]:
    return Alias((name,), lambda read: _count(read, name, 4), "float32 elements")


def _byteps_credit(read: Environment) -> int | None:
    if read.text("BYTEPS_SCHEDULING_CREDIT") == "0":
        return None  # it turns scheduling off: _byteps_policy
    part_bytes = read.number("BYTEPS_PARTITION_BYTES", BYTEPS_PARTITION_BYTES, at_least=1)
    return _count(read, "BYTEPS_SCHEDULING_CREDIT", part_bytes)


def _byteps_policy(read: Environment) -> str | None:
    """BytePS without credit sends gradients as they come."""
    return "fifo" if read.text("BYTEPS_SCHEDULING_CREDIT") == "0" else None


def _horovod_fusion(read: Environment) -> int | None:
    return 1 if read.text("HOROVOD_FUSION_THRESHOLD") == "0" else _count(read, "HOROVOD_FUSION_THRESHOLD", 1)


_TUNING = ("HOROVOD_AUTOTUNE", "BYTESCHEDULER_CREDIT_TUNING", "BYTESCHEDULER_PARTITION_TUNING")


def _tuning(read: Environment) -> str | None:
    told = [read.value(name, FLAG) for name in _TUNING if read.has(name)]
    return None if not told else TUNERS[0] if any(told) else "off"


def _byteps_staleness(read: Environment) -> int | None:
    is_async = read.value("BYTEPS_ENABLE_ASYNC", FLAG)
    return None if is_async is None else BYTEPS_STALENESS if is_async else 0


def _byteps_role(read: Environment) -> Role | None:
    if (read.text("DMLC_ROLE") or "").lower() == "scheduler":
        raise InputError(
            "DMLC_ROLE is 'scheduler'; accepted are worker, server, joint: legato needs no scheduler process, its "
            "conductor lives beside worker 0, which must run at DMLC_PS_ROOT_URI"
        )
    return read.value("DMLC_ROLE", _ROLE)


def _bytescheduler_debug(read: Environment) -> str | None:
    return "debug" if read.value("BYTESCHEDULER_DEBUG", FLAG) else None


def address_of(name: str, interface: str) -> str:
    """The address of an interface that `name` names."""
    try:
        return host_of_interface(interface)
    except InputError as error:
        raise InputError(f"{name} is {interface!r}: {error}") from None


def _interface(name: str) -> Alias[str]:
    def value(read: Environment) -> str | None:
        interface = read.text(name)
        return None if interface is None else address_of(name, interface)

    return Alias((name,), value, "an interface", by_launcher=True)


def _horovod_timeline(read: Environment) -> Path | None:
    """Horovod's DYNAMIC is no file: start_timeline() will name one."""
    path = read.value("HOROVOD_TIMELINE", _PATH)
    return None if path == Path("DYNAMIC") else path


def _byteps_timeline(read: Environment) -> Path | None:
    if not read.value("BYTEPS_TRACE_ON", FLAG):
        return None
    return Path(read.text("BYTEPS_TRACE_DIR") or ".") / "timeline.json"


def _byteps_steps(read: Environment) -> Steps | None:
    if not read.value("BYTEPS_TRACE_ON", FLAG):
        return None
    return Steps(read.number("BYTEPS_TRACE_START_STEP", 10), read.number("BYTEPS_TRACE_END_STEP", 20))


# ---- the settings ----

_ROLE = one_of({role.value: role for role in Role})

CONFIG = Setting(
    name="config",
    form=_PATH,
    group=Group.MEMBERS,
    meaning="the file to read in place of `legato.toml`",
    default="`legato.toml`, where there is one",
    in_file=False,
)
ROLE = Setting(
    name="role",
    form=_ROLE,
    group=Group.MEMBERS,
    meaning="`joint`: train, and sum a share; `worker`: only train, servers sum; `server`: only sum",
    default="joint",
    aliases=(
        Alias(
            ("DMLC_ROLE",),
            _byteps_role,
            "a worker without servers, or in mixed mode, is joint; no `scheduler`: worker 0 has the conductor",
            by_launcher=True,
        ),
    ),
)
SERVERS = Setting(
    name="servers",
    form=WHOLE,
    group=Group.MEMBERS,
    meaning="extra servers in the job",
    default="0",
    aliases=(_same("DMLC_NUM_SERVER", WHOLE, by_launcher=True),),
)
MIXED = Setting(
    name="mixed",
    form=FLAG,
    group=Group.MEMBERS,
    meaning="for a server: 1 when the workers are joint",
    default="0",
    aliases=(_same("BYTEPS_ENABLE_MIXED_MODE", FLAG, by_launcher=True),),
)
CONDUCTOR = Setting(
    name="conductor",
    form=Format(_address, "is host:port, host or :port, with [ ] around an IPv6 address"),
    group=Group.TRUST,
    meaning="where rank 0's conductor is: `host:port`, `host` or `:port`",
    default="from the launcher",
)
INTERFACE = Setting(
    name="interface",
    form=TEXT,
    group=Group.TRUST,
    meaning="the interface on whose address this member listens; it wins over `LEGATO_HOST`",
    default="the one that reaches the conductor",
)
HOST = Setting(
    name="host",
    form=TEXT,
    group=Group.TRUST,
    meaning="the address itself",
    default="the interface's",
    aliases=(
        _interface("DMLC_INTERFACE"),
        _same("DMLC_NODE_HOST", TEXT, by_launcher=True),
        _interface("HOROVOD_GLOO_IFACE"),
    ),
)
KEY = Setting(
    name="key",
    form=TEXT,
    group=Group.TRUST,
    meaning="the job's shared secret, at least 16 bytes",
    default="one that rank 0 makes, for members of the same user on the loopback",
    in_file=False,
)
KEY_FILE = Setting(
    name="key_file",
    form=_PATH,
    group=Group.TRUST,
    meaning="a file of mode 0600 that holds the secret; it wins over `LEGATO_KEY`",
    default="none",
)
INSECURE = Setting(
    name="insecure",
    form=FLAG,
    group=Group.TRUST,
    meaning="1: talk without a key; only where you trust every user of every machine on the network",
    default="0",
)
WIRE = Setting(
    name="wire",
    form=one_of({name: name for name in WIRES}),
    group=Group.TRUST,
    meaning="what protects gradients and weights between hosts ([security.md](security.md)): `plain`, a checksum "
    "against accidents; `authenticated`, nobody in between can change, repeat or drop them unnoticed; `encrypted`, nor "
    "read them. The same on all members; it needs a key, and transport `native`",
    default="`plain`",
)
POLICY = Setting(
    name="policy",
    form=one_of({name: name for name in ("auto", *POLICIES)}),
    group=Group.PLAN,
    meaning="what orders gradients ([policies](policies.md)), where `schedule` is not told",
    default="`auto`",
    aliases=(Alias(("BYTEPS_SCHEDULING_CREDIT",), _byteps_policy, "0 is `fifo`: it turns BytePS's scheduling off"),),
)
PARTITION_BYTES = Setting(
    name="partition_bytes",
    form=SIZE,
    group=Group.PLAN,
    meaning="the largest part (`256KiB`, `4MB`), unless `schedule` is given one",
    default="the plan's",
    aliases=(
        Alias(("BYTEPS_PARTITION_BYTES",), lambda read: _count(read, "BYTEPS_PARTITION_BYTES", 1), "bytes"),
        _elements("BYTESCHEDULER_PARTITION"),
    ),
)
CREDIT_BYTES = Setting(
    name="credit_bytes",
    form=SIZE,
    group=Group.PLAN,
    meaning="the bytes in flight at once. Over c10d, where the order of operations is fixed, it only shapes that order",
    default="the plan's",
    aliases=(
        Alias(("BYTEPS_SCHEDULING_CREDIT",), _byteps_credit, "parts of `BYTEPS_PARTITION_BYTES`"),
        _elements("BYTESCHEDULER_CREDIT"),
    ),
)
FUSION_BYTES = Setting(
    name="fusion_bytes",
    form=SIZE,
    group=Group.PLAN,
    meaning="neighbours that fit in this go together",
    default="the plan's",
    aliases=(Alias(("HOROVOD_FUSION_THRESHOLD",), _horovod_fusion, "bytes; 0 merges nothing"),),
)
TUNER = Setting(
    name="tuner",
    form=one_of({name: name for name in (*TUNERS, "off")}),
    group=Group.PLAN,
    meaning="what looks for better plans ([tuning.md](tuning.md)), where `schedule` is not told: "
    + ", ".join(f"`{name}`" for name in (*TUNERS, "off")),
    default="the twin, where nothing else is said",
    aliases=(Alias(_TUNING, _tuning, "the twin, if any is 1; `off`, if all that are set are 0"),),
)
STALENESS = Setting(
    name="staleness",
    form=WHOLE,
    group=Group.PLAN,
    meaning="how many steps a worker may be ahead of the slowest ([asynchrony.md](asynchrony.md))",
    default="0: synchronous",
    aliases=(Alias(("BYTEPS_ENABLE_ASYNC",), _byteps_staleness, f"1 is {BYTEPS_STALENESS}"),),
)
MIN_COMPRESS_BYTES = Setting(
    name="min_compress_bytes",
    form=WHOLE,
    group=Group.PLAN,
    meaning="tensors smaller than this are not compressed",
    default="0 for casts, 65536 for other codecs",
    aliases=(_same("BYTEPS_MIN_COMPRESS_BYTES", WHOLE),),
)
CHECK = Setting(
    name="check",
    form=FLAG,
    group=Group.PLAN,
    meaning="1: ranks compare their weights before every step and stop if they differ (`DivergedError`); 0: never",
    default="before the first and the third step",
)
NONFINITE = Setting(
    name="nonfinite",
    form=one_of({name: name for name in ("pass", "skip", "fail")}),
    group=Group.PLAN,
    meaning="what `schedule` does when a gradient holds NaN or infinity: `pass` averages and applies it; `skip` skips "
    "the step on all ranks and logs which rank and parameter; `fail` ends the job with a `NonFiniteError` that names "
    "them ([reliability.md](reliability.md#numbers))",
    default="`pass`",
)
ELASTIC = Setting(
    name="elastic",
    form=whole(1),
    group=Group.MEMBERS,
    meaning="workers and servers may come and go: a job that loses some goes on with those that are left, as long as "
    "there are so many workers ([elastic.md](elastic.md)). `legato run --min 2 --max 8` sets it",
    default="not elastic: a lost worker or server ends the job",
)
MEMBERS_FILE = Setting(
    name="members_file",
    form=_PATH,
    group=Group.MEMBERS,
    meaning="where the workers of an elastic job leave word of where it can be reached; a worker or a server that "
    "starts and finds some joins that job. `legato run --min 2 --max 8` sets it",
    default="none: nobody can join later",
)
JOIN_TIMEOUT_S = Setting(
    name="join_timeout_s",
    form=SECONDS,
    group=Group.WAITS,
    meaning="how long all members may take to gather",
    default="60",
)
TIMEOUT_S = Setting(
    name="timeout_s",
    form=SECONDS,
    group=Group.WAITS,
    meaning="how long any other wait may take while all members live. A member that dies is heard of within seconds "
    "([reliability.md](reliability.md))",
    default="1800",
    aliases=(
        Alias(
            ("HOROVOD_STALL_SHUTDOWN_TIME_SECONDS",),
            lambda read: read.value("HOROVOD_STALL_SHUTDOWN_TIME_SECONDS", DECIMAL) or None,
            "if it is not 0",
        ),
    ),
)
STALL_S = Setting(
    name="stall_s",
    form=SECONDS,
    group=Group.WAITS,
    meaning="how long a rank waits before every log says who waits for whom, and the log of the one that is waited for "
    "shows its stacks",
    default="10",
)
STRAGGLERS = Setting(
    name="stragglers",
    form=one_of({name: name for name in ("wait", "evict", "off")}),
    group=Group.WAITS,
    meaning="what `schedule` does, over native, about a rank that the others wait for in every step: `wait` names it "
    "in rank 0's log, with what it is slow at; `evict` also has an elastic job go on without it, where it is more than "
    "twice as slow as the others for fifteen steps; `off` does not look ([reliability.md](reliability.md#stragglers))",
    default="`wait`, where gradients are on processors",
)
HEARTBEAT_S = Setting(
    name="heartbeat_s",
    form=SECONDS,
    group=Group.WAITS,
    meaning="how often members show that they are alive",
    default="5",
)
CONNECTIONS = Setting(
    name="connections",
    form=whole(1),
    group=Group.WAITS,
    meaning="connections between each pair of members",
    default="1",
)
SHARED_MEMORY = Setting(
    name="shared_memory",
    form=FLAG,
    group=Group.WAITS,
    meaning="0: talk to members on the same host over the network as well",
    default="1",
)
IN_HOST = Setting(
    name="in_host",
    form=FLAG,
    group=Group.WAITS,
    meaning="1: over native, the ranks of a host sum gradients over a process group of torch.distributed, and each "
    "sends a share of the sum ([hosts.md](hosts.md#accelerators-of-one-host))",
    default="0",
)
THREADS = Setting(
    name="threads",
    form=whole(1),
    group=Group.WAITS,
    meaning="threads that read and write sockets, and sum",
    default="half of the cores divided by the workers on this host, 1 to 4",
    aliases=(_same("BYTEPS_SERVER_ENGINE_THREAD", whole(1), "on servers"),),
)
TIMELINE = Setting(
    name="timeline",
    form=_PATH,
    group=Group.WATCH,
    meaning="the file for a timeline of all ranks ([timeline.md](timeline.md)); set it on every worker",
    default="none",
    aliases=(
        _same("BYTESCHEDULER_TIMELINE", _PATH),
        Alias(("HOROVOD_TIMELINE",), _horovod_timeline, "`DYNAMIC` leaves it to `start_timeline`"),
        Alias(("BYTEPS_TRACE_ON", "BYTEPS_TRACE_DIR"), _byteps_timeline, "1: `timeline.json` in the folder"),
    ),
)
TIMELINE_STEPS = Setting(
    name="timeline_steps",
    form=Format(_steps, "are the first and the last step, 10-20, or the first alone, 10-"),
    group=Group.WATCH,
    meaning="the steps to keep: `10-20`, or `10-` for all from 10 on",
    default="all, while there is room",
    aliases=(
        Alias(("BYTEPS_TRACE_START_STEP", "BYTEPS_TRACE_END_STEP"), _byteps_steps, "10 and 20, with `BYTEPS_TRACE_ON`"),
    ),
)
DASHBOARD = Setting(
    name="dashboard",
    form=Format(_dashboard, "are a port of the loopback (8321), host:port, and off"),
    group=Group.WATCH,
    meaning="where rank 0 serves the [dashboard](live.md): a port of the loopback, or `host:port`, which needs a "
    "token; set it on every worker",
    default="off",
)
DASHBOARD_TOKEN = Setting(
    name="dashboard_token",
    form=TEXT,
    group=Group.WATCH,
    meaning="what whoever reads the dashboard must show, at least 16 bytes; on addresses other than the loopback's "
    "there must be one",
    default="none",
    in_file=False,
)
PROGRESS_S = Setting(
    name="progress_s",
    form=SECONDS,
    group=Group.WATCH,
    meaning="how often rank 0 prints a line with steps/s, exposed communication and T* to stderr",
    default="never",
)
TENSORBOARD = Setting(
    name="tensorboard",
    form=_PATH,
    group=Group.WATCH,
    meaning="the folder in which rank 0 keeps the dashboard's figures for TensorBoard",
    default="none",
)
WANDB = Setting(
    name="wandb",
    form=TEXT,
    group=Group.WATCH,
    meaning="the Weights & Biases project of an offline run in which rank 0 keeps them; a run of the script's own is "
    "used instead, if there is one",
    default="none",
)
LOG_LEVEL = Setting(
    name="log_level",
    form=_LEVEL,
    group=Group.WATCH,
    meaning=f"from which level on the log is shown: {', '.join(f'`{name}`' for name in LOG_LEVELS)}; it goes to stderr "
    "where the program has set up no logging",
    default="the program's",
    aliases=(
        _same("HOROVOD_LOG_LEVEL", _LEVEL),
        _same("BYTEPS_LOG_LEVEL", _LEVEL),
        Alias(("BYTESCHEDULER_DEBUG",), _bytescheduler_debug, "1: `debug`"),
    ),
)

SETTINGS: dict[str, Setting[Any]] = {
    setting.name: setting
    for setting in (
        CONFIG,
        ROLE,
        SERVERS,
        MIXED,
        CONDUCTOR,
        INTERFACE,
        HOST,
        KEY,
        KEY_FILE,
        INSECURE,
        ELASTIC,
        MEMBERS_FILE,
        WIRE,
        POLICY,
        PARTITION_BYTES,
        CREDIT_BYTES,
        FUSION_BYTES,
        TUNER,
        STALENESS,
        MIN_COMPRESS_BYTES,
        CHECK,
        NONFINITE,
        JOIN_TIMEOUT_S,
        TIMEOUT_S,
        STALL_S,
        STRAGGLERS,
        HEARTBEAT_S,
        CONNECTIONS,
        SHARED_MEMORY,
        IN_HOST,
        THREADS,
        TIMELINE,
        TIMELINE_STEPS,
        DASHBOARD,
        DASHBOARD_TOKEN,
        PROGRESS_S,
        TENSORBOARD,
        WANDB,
        LOG_LEVEL,
    )
}
"""All of them, by their keys."""
