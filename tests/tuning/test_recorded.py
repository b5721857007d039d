"""Tuners on windows that a real engine has measured: where it overtakes, and simulated links do not."""

import json
from pathlib import Path
from typing import Any

import pytest

from legato.core import Layer, Workload
from legato.core.shards import Deployment
from legato.torch.tuning import SPACE, shape_of
from legato.tuning.candidate import Candidate
from legato.tuning.statistics import WINDOW_STEPS, Statistics
from legato.tuning.tuners import tuner_named
from legato.tuning.twin import Twin

RECORDED: dict[str, Any] = json.loads((Path(__file__).parent / "windows.json").read_text())
WORKERS = 4


def measured(window: dict[str, Any]) -> Statistics:
    layers = tuple(Layer(f"layer{place}", *values) for place, values in enumerate(window["layers"]))
    return Statistics(
        candidate=Candidate("bytescheduler", window["partition_bytes"], window["credit_bytes"]),
        steps=WINDOW_STEPS,
        iteration_s=window["iteration_s"],
        workers=WORKERS,
        workload=Workload("recorded", layers),
        rates_bytes_per_s=tuple(window["rates"]),
    )


@pytest.mark.parametrize("name", ["twin", "autobyte"])
@pytest.mark.parametrize("window", RECORDED["windows"], ids=["2 MiB, 2", "8 MiB, 3", "256 KiB, 16"])
def test_one_window_is_enough_to_come_within_5_percent_of_the_grid(name: str, window: dict[str, Any]) -> None:
    statistics = measured(window)
    tuner = tuner_named(name, SPACE, shape_of(Deployment(num_workers=WORKERS)), statistics.candidate)
    tuner.tell(statistics)
    choice = tuner.ask()
    assert choice.partition_bytes is not None
    assert RECORDED["grid_ms"][str(choice.partition_bytes >> 10)] <= 1.05 * RECORDED["best_ms"]


@pytest.mark.parametrize("window", RECORDED["windows"][::2], ids=["2 MiB, 2", "256 KiB, 16"])
def test_what_the_twin_predicts_is_what_the_grid_has_measured(window: dict[str, Any]) -> None:
    statistics = measured(window)
    twin = Twin(SPACE, shape_of(Deployment(num_workers=WORKERS)), start=statistics.candidate)
    twin.tell(statistics)
    for prediction in twin.predictions():
        partition_bytes = prediction.candidate.partition_bytes
        known_ms = RECORDED["grid_ms"].get(str((partition_bytes or 0) >> 10))
        if known_ms is not None and prediction.candidate in SPACE:
            assert prediction.iteration_s * 1e3 == pytest.approx(known_ms, rel=0.1)
