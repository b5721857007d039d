"""Tuners on windows that a real engine has measured: where it overtakes, and simulated links do not."""

import json
from pathlib import Path
from typing import Any

import pytest

from legato.core import Layer, Workload
from legato.core.shards import Deployment
from legato.torch.tuning.live import SPACE, shape_of
from legato.tuning.candidate import Candidate
from legato.tuning.statistics import Statistics
from legato.tuning.tuners import tuner_named
from legato.tuning.twin import search
from legato.tuning.twin.twin import Twin

RECORDED: dict[str, Any] = json.loads((Path(__file__).parent / "windows.json").read_text())
WORKERS = 4


def measured(window: dict[str, Any]) -> Statistics:
    layers = tuple(Layer(f"layer{place}", *values) for place, values in enumerate(window["layers"]))
    return Statistics(
        candidate=Candidate("bytescheduler", window["partition_bytes"], window["credit_bytes"]),
        iteration_s=window["iteration_s"],
        workload=Workload("recorded", layers),
        rates_bytes_per_s=tuple(window["rates"]),
    )


def grid_ms(partition_bytes: int) -> float:
    """What was measured with parts of this size, or the slower of the two sizes around it."""
    known = {int(kib) << 10: float(ms) for kib, ms in RECORDED["grid_ms"].items()}
    below = max(size for size in known if size <= partition_bytes)
    above = min(size for size in known if size >= partition_bytes)
    return max(known[below], known[above])


@pytest.mark.parametrize("name", ["twin", "autobyte"])
@pytest.mark.parametrize("window", RECORDED["windows"], ids=["2 MiB, 2", "8 MiB, 3", "256 KiB, 16"])
def test_one_window_is_enough_to_come_within_5_percent_of_the_grid(name: str, window: dict[str, Any]) -> None:
    statistics = measured(window)
    tuner = tuner_named(name, SPACE, shape_of(Deployment(num_workers=WORKERS)), statistics.candidate)
    tuner.tell(statistics)
    choice = tuner.ask()
    assert choice.partition_bytes is not None
    assert grid_ms(choice.partition_bytes) <= 1.05 * RECORDED["best_ms"]


@pytest.mark.parametrize("window", RECORDED["windows"], ids=["2 MiB, 2", "8 MiB, 3", "256 KiB, 16"])
def test_what_the_twin_predicts_is_what_the_grid_has_measured(
    window: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """From each of the 3 windows, each of the 5 plans that were measured: 15 predictions, all within 10 %."""
    statistics = measured(window)
    monkeypatch.setattr(search, "TOTAL_PARTS", 1 << 20)  # so that no plan is left out for looking bad
    twin = Twin(SPACE, shape_of(Deployment(num_workers=WORKERS)), start=statistics.candidate)
    twin.tell(statistics)
    predicted_ms = {
        str(each.candidate.partition_bytes >> 10): each.iteration_s * 1e3
        for each in twin.predictions()
        if each.candidate in SPACE and each.candidate.partition_bytes is not None
    }
    compared = {kib: predicted_ms[kib] for kib in RECORDED["grid_ms"]}
    assert len(compared) == 5
    assert compared == pytest.approx(RECORDED["grid_ms"], rel=0.1)
