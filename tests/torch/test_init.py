"""`init` says who the process is and who told it, and doubts that it is alone where a launcher left traces."""

import logging
import os
from collections.abc import Mapping
from unittest.mock import patch

import pytest
import torch

import legato.torch as lg
from legato.testing.ports import free_port
from tests.torch.crew import Crew

BY_TORCHRUN = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


def said_at_init(
    environ: Mapping[str, str], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> list[tuple[str, str]]:
    for name in BY_TORCHRUN:
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


def trained_by_slurm(conductor: str) -> tuple[str, list[float]]:
    """Who told this rank of its place, and by how much three steps have changed weights and bias."""
    of_rank = dict.fromkeys(("SLURM_PROCID", "SLURM_LOCALID"), os.environ["RANK"])
    of_job = {"SLURM_NTASKS": "2", "SLURM_STEP_TASKS_PER_NODE": "2", "SLURM_STEP_NODELIST": "localhost"}
    with patch.dict(os.environ, {**of_rank, **of_job, "LEGATO_CONDUCTOR": conductor}):
        for name in BY_TORCHRUN:
            del os.environ[name]
        job = lg.init()
        model = torch.nn.Linear(2, 1)
        before = torch.cat([each.detach().flatten() for each in model.parameters()])
        model, optimizer = lg.schedule(model, torch.optim.SGD(model.parameters(), lr=0.5))
        for _ in range(3):
            optimizer.zero_grad()
            model(torch.full((1, 2), float(lg.rank()))).sum().backward()
            optimizer.step()
        after = torch.cat([each.flatten() for each in model.state_dict().values()])
    return str(job.settings.launcher), (before - after).tolist()


def test_trains_by_slurms_variables_alone(crew: Crew) -> None:
    """Inputs are 0 on rank 0 and 1 on rank 1: a gradient of a half for each weight, and of 1 for the bias."""
    changed = pytest.approx([0.75, 0.75, 1.5])
    assert crew.run(trained_by_slurm, f"127.0.0.1:{free_port()}") == [("Slurm", changed)] * 2
