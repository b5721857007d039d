"""Checks: what the facts of all ranks mean for a job, and what to do about it."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum

from legato.doctor.facts import Facts
from legato.doctor.links import Links
from legato.settings import Settings
from legato.transports.rendezvous.hosts import number

MOST_RUN_DELAY = 0.1
LEAST_OPEN_FILES = 1024
LEAST_DEV_SHM_BYTES = 256 << 20
SLOWER = 0.7
"""A link with less than this of another's rate, or of what its interface says, is worth a word."""
_GIB = 1 << 30


class Status(StrEnum):
    """How a check went."""

    OK = "ok"
    NOTE = "note"
    """Good to know."""
    WARNING = "warning"
    """It costs speed, or the job."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One thing that was looked at."""

    name: str
    status: Status
    found: str
    advice: str = ""
    """What to do; nothing where all is well."""


def check_all(ranks: Sequence[Facts], links: Links | None, settings: Settings) -> list[Check]:
    """In the order to be shown."""
    first_of_hosts = _first_of_hosts(ranks)
    return [
        _versions(ranks),
        _instructions(ranks),
        *_interfaces(first_of_hosts),
        *([] if links is None else _links(links, ranks)),
        *_processors(ranks, first_of_hosts),
        _congestion_control(first_of_hosts),
        _open_files(ranks),
        *_shared_memory(ranks, first_of_hosts),
        _settings(settings),
    ]


def _first_of_hosts(ranks: Sequence[Facts]) -> list[Facts]:
    hosts = number([facts.identity for facts in ranks])
    return [ranks[hosts.index(host)] for host in range(max(hosts) + 1)]


def _host(facts: Facts) -> str:
    """With its first rank, since hosts may have the same name."""
    return f"{facts.hostname} (rank {facts.rank})"


def _check(name: str, found: str, advice: str = "", *, status: Status = Status.WARNING) -> Check:
    """It went well where there is no advice."""
    return Check(name=name, status=status if advice else Status.OK, found=found, advice=advice)


def _different(ranks: Iterable[Facts], name: str) -> list[str]:
    return list(dict.fromkeys(str(getattr(facts, name)) for facts in ranks))


def _versions(ranks: Sequence[Facts]) -> Check:
    names = ("legato", "python", "torch", "kernel")
    values = {name: _different(ranks, name) for name in names}
    mixed = [name for name in names[:3] if len(values[name]) > 1]
    return _check(
        "versions",
        ", ".join(f"{name} {' and '.join(values[name])}" for name in names),
        f"install the same version of {' and '.join(mixed)} on every host" if mixed else "",
    )


def _instructions(ranks: Sequence[Facts]) -> Check:
    scalar = [facts.hostname for facts in ranks if facts.instructions == "scalar"]
    advice = f"sums are slow on {scalar[0]}, whose processor has none of avx2, avx512 and neon" if scalar else ""
    return _check("instructions", " and ".join(_different(ranks, "instructions")), advice, status=Status.NOTE)


def _interfaces(hosts: Sequence[Facts]) -> Iterator[Check]:
    for facts in hosts:
        used = facts.interface()
        known = ", ".join(
            f"{each.name} {each.address} (MTU {each.mtu}"
            f"{'' if each.speed_gbps is None else f', {each.speed_gbps:g} Gbit/s'}{', used' if each is used else ''})"
            for each in facts.interfaces
        )
        fastest = max(facts.interfaces, key=lambda each: each.speed_gbps or 0.0, default=None)
        advice = ""
        if used is not None and used.speed_gbps and fastest is not None and fastest.speed_gbps != used.speed_gbps:
            advice = f"{fastest.name} is faster; if hosts reach each other by it, set LEGATO_INTERFACE={fastest.name}"
        yield _check(f"interfaces of {_host(facts)}", known, advice)


def _links(links: Links, ranks: Sequence[Facts]) -> Iterator[Check]:
    if not links.is_measured:
        yield _check("links", f"{links.gbps:g} Gbit/s between {links.num_hosts} hosts, as given; nothing measured")
        return
    where = "loopback of one host" if links.num_hosts == 1 else f"{links.num_hosts} hosts"
    for flow in links.flows:
        slow = flow.gbps < SLOWER * max(each.gbps for each in links.flows)
        advice = f"the slowest link sets the pace: look at the way from rank {flow.sender} to rank {flow.receiver}"
        used = ranks[flow.receiver].interface()
        if not slow and used is not None and flow.gbps < SLOWER * (used.speed_gbps or 0.0):
            slow = True
            advice = f"{used.name} says {used.speed_gbps:g} Gbit/s; others may use the link, or a quota may limit it"
        yield _check(
            f"link of rank {flow.sender} to {flow.receiver}",
            f"{flow.gbps:.3g} Gbit/s ({flow.low_gbps:.3g} to {flow.high_gbps:.3g}), "
            f"{flow.latency_s * 1e6:.0f} µs one way",
            advice if slow else "",
        )
    assert links.engine_gbps is not None
    slow = links.num_hosts > 1 and links.engine_gbps < SLOWER * links.gbps
    yield _check(
        "engine",
        f"{links.engine_gbps:.3g} Gbit/s over the {where} with {links.num_workers} ranks",
        "legato's engine is slower than TCP alone: it lacks processors, or threads (LEGATO_THREADS)" if slow else "",
    )
    if links.num_hosts == 1:
        yield _check(
            "network",
            "all ranks are on this host: its loopback was measured, not a network",
            "run it on all hosts (legato run --hosts a:4,b:4 -m legato.cli doctor), or give --workers and --gbps",
            status=Status.NOTE,
        )


def _processors(ranks: Sequence[Facts], hosts: Sequence[Facts]) -> Iterator[Check]:
    for facts in hosts:
        here = [each for each in ranks if each.identity == facts.identity]
        delays = [each.run_delay for each in here if each.run_delay is not None]
        threads = sum(1 + each.io_threads for each in here)
        found = f"cores: {facts.cores:g}, ranks: {len(here)}, their threads: {threads}, load {facts.load:.1f}"
        advice = ""
        if delays:
            found += f", a busy thread waits {max(delays):.0%} of its time"
        if delays and max(delays) > MOST_RUN_DELAY:
            advice = "other processes, or too many ranks, take the processors: steps will be longer than forecast"
        elif len(here) > facts.cores:
            advice = "there are more ranks than cores: fine if they compute on accelerators"
        yield _check(f"processors of {_host(facts)}", found, advice)


def _congestion_control(hosts: Sequence[Facts]) -> Check:
    values = _different(hosts, "congestion_control")
    return _check(
        "congestion control",
        f"{' and '.join(values)} (legato's connections ask for reno; Gloo's and NCCL's take the default)",
        "hosts differ: net.ipv4.tcp_congestion_control" if len(values) > 1 else "",
        status=Status.NOTE,
    )


def _open_files(ranks: Sequence[Facts]) -> Check:
    least = min(facts.open_files for facts in ranks)
    advice = "raise it before the job starts: ulimit -n 4096" if least < LEAST_OPEN_FILES else ""
    return _check("open files", f"at most {least}", advice)


def _shared_memory(ranks: Sequence[Facts], hosts: Sequence[Facts]) -> Iterator[Check]:
    shared = any(facts.local_ranks > 1 for facts in ranks)
    off = shared and not all(facts.shared_memory for facts in ranks)
    found = "on" if all(facts.shared_memory for facts in ranks) else "off"
    advice = "ranks of one host talk over the loopback, which is slower; unset LEGATO_SHARED_MEMORY" if off else ""
    yield _check("shared memory", found, advice)
    for facts in hosts:
        if facts.dev_shm_bytes is not None and facts.dev_shm_bytes < LEAST_DEV_SHM_BYTES:
            yield _check(
                f"/dev/shm of {_host(facts)}",
                f"{facts.dev_shm_bytes / _GIB:.2f} GiB free",
                "PyTorch's DataLoader needs it for its workers; with Docker: --shm-size 8g",
            )


def _settings(settings: Settings) -> Check:
    warnings = [*settings.translated, *settings.without_effect]
    return _check("settings", f"rank 0 of {settings.num_workers}, told by {settings.told_by}", "; ".join(warnings))
