"""The doctor's forecasts against what was measured: the rows that are in the repository, and their table."""

import pytest

pytest.importorskip("torch")
pytest.importorskip("optuna")

from bench.doctor import GBPS, MODELS, PAGE, SYSTEMS, TARGET, read, written_anew


def test_every_cell_is_there() -> None:
    assert {(row.model, row.gbps, row.system) for row in read()} == {
        (model, gbps, system) for model in MODELS for gbps in GBPS for system in SYSTEMS
    }


def test_forecasts_are_within_a_tenth() -> None:
    assert max(abs(row.error) for row in read()) <= TARGET


def test_the_page_has_these_rows() -> None:
    assert written_anew(PAGE.read_text(), read()) == PAGE.read_text(), "run python -m bench.doctor --page"
