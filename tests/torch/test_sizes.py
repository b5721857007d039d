"""Partition and credit, asked for in code or by variables: the engine's own record says what travels."""

import os
from typing import Any

import pytest
import torch
from torch import nn

import legato.torch as lg
from legato.errors import InputError
from legato.job import Job
from legato.torch.scheduling.hooks import Schedule
from legato.torch.sync.c10d import C10dSynchronizer
from tests.torch.crew import Crew


def _model() -> tuple[nn.Module, torch.optim.Optimizer]:
    model = nn.Linear(256, 512, bias=False)
    return model, torch.optim.SGD(model.parameters(), lr=0.1)


def _init(variables: dict[str, str]) -> Job:
    os.environ.update(variables)
    try:
        return lg.init()
    finally:
        for name in variables:
            del os.environ[name]


def _parts(options: dict[str, Any], variables: dict[str, str]) -> tuple[int, int | None]:
    """The largest part that has left this rank, and the credit it left within."""
    session = _init(variables).group.session
    model, optimizer = lg.schedule(*_model(), transport="native", **options)
    session.engine.set_trace(0, 100, 10_000)
    for _ in range(3):
        optimizer.zero_grad()
        model(torch.ones(4, 256)).sum().backward()
        optimizer.step()
    lg.flush(model)
    # Gradients alone are as large: comparing weights takes a few bytes.
    lengths = [length for _, what, _, _, _, length in session.engine.take_events() if what == "start"]
    return max(lengths), session.player.period(2).credit_bytes


@pytest.mark.parametrize(
    ("options", "variables", "expected"),
    [
        ({"tuner": "off"}, {}, (262144, None)),
        ({"partition_bytes": "64KiB"}, {}, (65536, None)),
        ({"policy": "bytescheduler", "partition_bytes": "64KiB"}, {}, (65536, 16_000_000)),
        ({"partition_bytes": 32768, "credit_bytes": 65536}, {}, (32768, 65536)),
        ({"credit_bytes": "1MB"}, {}, (262144, 1_000_000)),
        ({"policy": "fifo", "partition_bytes": 65536}, {}, (65536, None)),
        ({"credit_bytes": 65536}, {"LEGATO_PARTITION_BYTES": "128KiB"}, (131072, 65536)),
        ({}, {"BYTEPS_PARTITION_BYTES": "65536", "BYTEPS_SCHEDULING_CREDIT": "4"}, (65536, 262144)),
        ({}, {"BYTESCHEDULER_PARTITION": "8192", "BYTESCHEDULER_CREDIT": "16384"}, (32768, 65536)),
        ({"partition_bytes": "64KiB", "credit_bytes": 65536}, {"LEGATO_PARTITION_BYTES": "128KiB"}, (65536, 65536)),
    ],
)
def test_parts_have_the_size_that_was_asked_for(
    crew: Crew, options: dict[str, Any], variables: dict[str, str], expected: tuple[int, int | None]
) -> None:
    assert crew.run(_parts, options, variables) == [expected] * 2


def _operations() -> tuple[int | None, ...]:
    lg.init()
    torch.distributed.init_process_group("gloo")
    model, _ = lg.schedule(*_model(), transport="c10d", partition_bytes="64KiB")
    synchronizer = Schedule.of(model).synchronizer
    assert isinstance(synchronizer, C10dSynchronizer)
    return synchronizer.plan.partition_bytes


def test_operations_over_process_groups_have_it_too(crew: Crew) -> None:
    for sizes in crew.run(_operations):
        assert set(sizes) == {65536}


def _train_cast() -> list[float]:
    lg.init()
    model = nn.Linear(3, 1, bias=False)
    model, optimizer = lg.schedule(
        model, torch.optim.SGD(model.parameters(), lr=0.5), transport="native", partition_bytes=64, compression="fp16"
    )
    with torch.no_grad():
        model.weight.zero_()
    model(torch.ones(1, 3)).sum().backward()
    optimizer.step()
    lg.flush(model)
    weights: list[float] = model.weight.flatten().tolist()
    return weights


def test_sizes_go_with_casts_of_an_odd_number_of_items(crew: Crew) -> None:
    assert crew.run(_train_cast) == [[-0.5] * 3] * 2


@pytest.mark.parametrize("wrong", ["much", 0, -1, "0", True, 1.5])
def test_what_is_no_size(crew: Crew, wrong: Any) -> None:
    with pytest.raises(InputError, match="partition_bytes"):
        crew.run(_parts, {"partition_bytes": wrong}, {})
