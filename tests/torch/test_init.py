"""`init` says who the process is and who told it, and doubts that it is alone where a launcher left traces."""

import logging
from collections.abc import Mapping

import pytest

import legato.torch as lg


def said_at_init(
    environ: Mapping[str, str], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> list[tuple[str, str]]:
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    caplog.set_level(logging.INFO, logger="legato")
    lg.init()
    lg.shutdown(now=True)
    return [(record.levelname, record.message) for record in caplog.records if record.name == "legato.job"]


def test_who_it_is_and_who_told_it(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    environ = {"RANK": "1", "WORLD_SIZE": "4"}
    assert said_at_init(environ, monkeypatch, caplog) == [("INFO", "rank 1 of 4, told by torchrun (RANK, WORLD_SIZE)")]


def test_alone(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    assert said_at_init({}, monkeypatch, caplog) == [("INFO", "rank 0 of 1, told by nobody")]


def test_alone_among_a_launchers_variables(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    said = (
        "this process trains alone, although a launcher seems to have set SLURM_NTASKS, MASTER_ADDR: where is its rank?"
    )
    environ = {"MASTER_ADDR": "head", "SLURM_NTASKS": "4"}
    assert said_at_init(environ, monkeypatch, caplog)[1:] == [("WARNING", said)]
