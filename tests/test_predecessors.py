"""Variables of Horovod, BytePS and ByteScheduler: each acts, or is named once with the reason; rubbish is an error."""

import importlib
import logging
import re
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from legato.cli.server import server
from legato.environment import DECIMAL, TEXT, WHOLE
from legato.errors import InputError, LegatoError
from legato.job import _said, join
from legato.predecessors import OF_LAUNCHERS, PREFIXES, WITHOUT_EFFECT
from legato.settings import ACTING, read_settings
from legato.testing.log import said

PAGE = (Path(__file__).parents[1] / "docs/environment.md").read_text()
WORKER = {"DMLC_ROLE": "worker", "DMLC_NUM_WORKER": "2", "DMLC_WORKER_ID": "1", "DMLC_PS_ROOT_URI": "head"}
SERVER = {**WORKER, "DMLC_ROLE": "server", "DMLC_NUM_SERVER": "1"}

EFFECTS: list[tuple[dict[str, str], str, str, Any]] = [
    ({"HOROVOD_FUSION_THRESHOLD": "1024"}, "lots", "fusion_bytes", 1024),
    ({"HOROVOD_FUSION_THRESHOLD": "0"}, "-1", "fusion_bytes", 1),
    ({"HOROVOD_AUTOTUNE": "1"}, "yes", "tuner", "twin"),
    ({"HOROVOD_AUTOTUNE": "0"}, "2", "tuner", "off"),
    ({"BYTESCHEDULER_CREDIT_TUNING": "1", "BYTESCHEDULER_PARTITION_TUNING": "0"}, "on", "tuner", "twin"),
    ({"BYTESCHEDULER_PARTITION_TUNING": "0"}, "on", "tuner", "off"),
    ({"HOROVOD_LOG_LEVEL": "TRACE"}, "loud", "log_level", logging.DEBUG),
    ({"BYTEPS_LOG_LEVEL": "FATAL"}, "loud", "log_level", logging.CRITICAL),
    ({"BYTESCHEDULER_DEBUG": "1"}, "loud", "log_level", logging.DEBUG),
    ({"HOROVOD_STALL_SHUTDOWN_TIME_SECONDS": "90"}, "never", "timeout_s", 90.0),
    ({"HOROVOD_STALL_SHUTDOWN_TIME_SECONDS": "0"}, "-1", "timeout_s", 1800.0),
    ({"HOROVOD_GLOO_IFACE": "lo"}, "eth77", "host", "127.0.0.1"),
    ({"DMLC_INTERFACE": "lo", "DMLC_NODE_HOST": "10.0.0.1"}, "eth77", "host", "127.0.0.1"),
    ({"BYTEPS_SCHEDULING_CREDIT": "0"}, "some", "policy", "fifo"),
    ({"BYTEPS_SCHEDULING_CREDIT": "0"}, "-2", "credit_bytes", None),
    ({"BYTEPS_SCHEDULING_CREDIT": "2"}, "1.5", "credit_bytes", 8_192_000),
    ({"BYTEPS_PARTITION_BYTES": "1000"}, "0", "partition_bytes", 1000),
    ({"BYTESCHEDULER_PARTITION": "1000"}, "0", "partition_bytes", 4000),
    ({"BYTESCHEDULER_CREDIT": "4e6"}, "0.5", "credit_bytes", 16_000_000),
    ({"BYTEPS_ENABLE_ASYNC": "1"}, "maybe", "staleness", 16),
    ({"BYTEPS_MIN_COMPRESS_BYTES": "7"}, "few", "min_compress_bytes", 7),
    ({"BYTEPS_SERVER_ENGINE_THREAD": "3", **SERVER}, "0", "num_io_threads", 3),
    ({"BYTEPS_GLOBAL_RANK": "0", **WORKER}, "2", "rank", 0),
    ({"BYTEPS_ENABLE_MIXED_MODE": "1", **SERVER}, "2", "workers_serve", True),
]
"""(variables, rubbish for the first of them, what it acts on, the effect)."""
ANY_TEXT = {"HOROVOD_TIMELINE", "BYTESCHEDULER_TIMELINE", "DMLC_NODE_HOST"}
"""Tried below and, like what launchers say of places and BytePS's traces, in test_settings.py."""


@pytest.mark.parametrize(("environ", "rubbish", "what", "effect"), EFFECTS)
def test_what_means_something_here_acts(environ: dict[str, str], rubbish: str, what: str, effect: Any) -> None:
    assert getattr(read_settings(environ), what) == effect
    name = next(iter(environ))
    with pytest.raises(InputError, match=f"^{name} is '{rubbish}'"):
        read_settings({**environ, name: rubbish})


def test_every_acting_variable_is_tried() -> None:
    places = {"RANK", "SIZE", "ADDR", "PORT", "ROLE", "WORKER", "SERVER", "ID", "URI", "ON", "DIR", "STEP"}
    tried = {name for environ, *_ in EFFECTS for name in environ} | ANY_TEXT
    assert {name for name in ACTING - tried if name.rpartition("_")[2] not in places} == set()


@pytest.mark.parametrize(
    ("environ", "path"),
    [
        ({"HOROVOD_TIMELINE": "/tmp/h.json"}, "/tmp/h.json"),
        ({"HOROVOD_TIMELINE": "/tmp/h.json", "LEGATO_TIMELINE": "/tmp/l.json"}, "/tmp/l.json"),
        ({"HOROVOD_TIMELINE": "DYNAMIC"}, None),
    ],
)
def test_horovods_timeline(environ: dict[str, str], path: str | None) -> None:
    timeline = read_settings(environ).timeline
    assert (None if timeline is None else str(timeline.path)) == path


def test_an_address_of_byteps() -> None:
    assert read_settings({"DMLC_NODE_HOST": "10.0.0.1", "HOROVOD_GLOO_IFACE": "lo"}).host == "10.0.0.1"


def test_ours_come_before_theirs() -> None:
    theirs = {"HOROVOD_AUTOTUNE": "1", "HOROVOD_LOG_LEVEL": "debug", "HOROVOD_GLOO_IFACE": "lo"}
    theirs |= {"BYTEPS_SCHEDULING_CREDIT": "0", "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS": "9"}
    ours = {"LEGATO_TUNER": "grid", "LEGATO_LOG_LEVEL": "error", "LEGATO_HOST": "10.0.0.1", "LEGATO_POLICY": "rsag"}
    settings = read_settings({**theirs, **ours, "LEGATO_TIMEOUT_S": "7"})
    assert (settings.tuner, settings.log_level, settings.host) == ("grid", logging.ERROR, "10.0.0.1")
    assert (settings.policy, settings.timeout_s) == ("rsag", 7.0)
    with pytest.raises(InputError, match="LEGATO_TUNER is 'best'; accepted are twin, autobyte, bayes, grid, off"):
        read_settings({"LEGATO_TUNER": "best"})


GOOD = {WHOLE: "1", DECIMAL: "3.5", TEXT: "x"}


@pytest.mark.parametrize("name", sorted({**WITHOUT_EFFECT, **OF_LAUNCHERS}))
def test_what_means_nothing_is_checked_and_named_with_the_reason(name: str) -> None:
    idle = {**WITHOUT_EFFECT, **OF_LAUNCHERS}[name]
    settings = read_settings({name: GOOD[idle.form]})
    lines = settings.set_by_launcher if name in OF_LAUNCHERS else settings.without_effect
    assert lines == (f"{name} has no effect: {idle.why}",)
    if idle.form is not TEXT:
        with pytest.raises(InputError, match=f"^{name} is 'rubbish'"):
            read_settings({name: "rubbish"})


def test_an_unknown_one_is_named_too() -> None:
    environ = {"BYTEPS_X": "1", "BYTE": "1", "HOROVOD_EMPTY": "", "HOROVOD_CYCLE_TIMES": "1"}
    assert read_settings(environ).without_effect == (
        "BYTEPS_X has no effect: legato does not know it (docs/environment.md)",
        "HOROVOD_CYCLE_TIMES has no effect: legato does not know it (docs/environment.md); did you mean "
        "HOROVOD_CYCLE_TIME?",
    )


def test_each_is_named_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("legato.job._said", set(_said))
    monkeypatch.setenv("HOROVOD_CYCLE_TIME", "5")
    monkeypatch.setenv("HOROVOD_CONTROLLER", "gloo")
    with said("legato.job", logging.WARNING) as lines:
        join().close()
        join().close()
    assert lines == ["HOROVOD_CYCLE_TIME has no effect: there are no cycles: a gradient goes when it is ready"]


def test_a_server_names_them_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("legato.job._said", set())
    module = importlib.import_module("legato.cli.server")  # the package has a function of that name
    monkeypatch.setattr(module, "Server", Mock(side_effect=LegatoError("not today")))
    monkeypatch.setenv("BYTEPS_SERVER_ENABLE_SCHEDULE", "1")
    with said("legato.job", logging.WARNING) as lines, pytest.raises(LegatoError, match="not today"):
        server(workers=2)
    assert lines == ["BYTEPS_SERVER_ENABLE_SCHEDULE has no effect: servers always answer in the order of priority"]


def test_the_log_is_shown_where_somebody_asks(monkeypatch: pytest.MonkeyPatch) -> None:
    logger = logging.getLogger("legato")
    monkeypatch.setattr(logger, "handlers", [])
    monkeypatch.setattr(logger, "propagate", False)  # pytest's own handlers are above it
    before = logger.level
    try:
        join().close()
        assert logger.handlers == []
        monkeypatch.setenv("BYTEPS_LOG_LEVEL", "INFO")
        join().close()
        join().close()
        assert (len(logger.handlers), logger.level) == (1, logging.INFO)
    finally:
        logger.setLevel(before)


def test_the_page_has_them_all_and_no_others() -> None:
    page = set(re.findall(rf"`((?:{'|'.join(PREFIXES)})[A-Z0-9_]+)`", PAGE))
    assert page == ACTING | WITHOUT_EFFECT.keys() | OF_LAUNCHERS.keys()
    assert not ACTING & (WITHOUT_EFFECT.keys() | OF_LAUNCHERS.keys())


@pytest.mark.parametrize("idle", [*WITHOUT_EFFECT.items(), *OF_LAUNCHERS.items()], ids=lambda each: each[0])
def test_the_page_gives_the_reason(idle: tuple[str, Any]) -> None:
    name, why = idle[0], idle[1].why
    [row] = [line for line in PAGE.splitlines() if line.startswith("| ") and f"`{name}`" in line.split(" | ")[0]]
    plain = row.split(" | ")[1].replace("`", "").replace("([tuning.md](tuning.md))", "(docs/tuning.md)")
    assert plain.removesuffix(" |") == why
