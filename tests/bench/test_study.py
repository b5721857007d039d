"""What the study's recipes rest on: the memory of runs, curves, limits that are known exactly, and spans."""

import json
from itertools import combinations
from pathlib import Path
from statistics import mean

import pytest

pytest.importorskip("plotly")

from bench.study.autobyte_search import expected_best
from bench.study.byteps import BYTES_ONLY, optimum_s
from bench.study.how_useful import ARCHITECTURES, EVEN, _cluster
from bench.study.main import RECIPES, run, write_rows
from bench.study.overview import spans
from bench.study.recipe import Row
from bench.study.runs import Outcome, Runs
from bench.study.settings import FREE, MB, baseline, no_overlap, on_v100, scheduled
from bench.study.sweep import Point, crossing, why
from legato.core import Layer, Workload
from legato.core.policies import ByteScheduler, Fifo
from legato.sim import Cluster, Ownership, simulate

TWO = Workload("two", (Layer("first", 1 * MB, 1.0, 2.0), Layer("second", 1 * MB, 1.0, 2.0)))
# A worker alone with one server on its own machine: a megabyte takes a second up and a second down.
ONE_SECOND = Cluster(workers=1, servers=1, deployment=Ownership.SEPARATE, gbps=0.008)


def test_runs_are_remembered_across_a_torn_file(tmp_path: Path) -> None:
    path = tmp_path / "memory" / "runs.jsonl"
    first = Runs(path)
    plan = Fifo().plan(TWO.tensors)
    outcome = first.run(TWO, ONE_SECOND, plan)
    with path.open("a") as file:
        file.write('["half a li')
    again = Runs(path)
    assert again.run(TWO, ONE_SECOND, plan) == outcome
    assert (first.simulated, again.simulated, again.remembered) == (1, 0, 1)
    again.run(TWO, ONE_SECOND, ByteScheduler().plan(TWO.tensors))
    assert again.simulated == 1


def test_no_overlap_is_one_after_the_other() -> None:
    # Forward 2, backward 4, push 2, pull 2.
    assert Runs().run(TWO, ONE_SECOND, no_overlap(TWO)).iteration_s == pytest.approx(10.0)


def test_everything_hidden_gains_three_times_at_most() -> None:
    cluster = _cluster(ARCHITECTURES[0], EVEN, 1.0, FREE)
    runs = Runs()
    none_s = runs.run(EVEN, cluster, no_overlap(EVEN)).iteration_s
    best = runs.best(EVEN, cluster, scheduled(EVEN, cluster))
    assert best.compute_s == pytest.approx(best.communication_s)
    assert none_s == pytest.approx(3 * best.compute_s)
    assert 2.9 < none_s / best.iteration_s <= 3.0


@pytest.mark.parametrize("servers", [0, 1, 4, 8])
def test_servers_make_it_as_fast_as_the_formula_says(servers: int) -> None:
    deployment = Ownership.MIXED if servers else Ownership.JOINT
    cluster = Cluster(workers=8, servers=servers, deployment=deployment, gbps=100)
    outcome = simulate(BYTES_ONLY, cluster, Fifo().plan(BYTES_ONLY.tensors, partition_bytes=MB // 4))
    assert outcome.iteration_s == pytest.approx(optimum_s(8, servers, BYTES_ONLY.num_bytes, 100), rel=0.002)


def test_a_wider_last_layer() -> None:
    narrow, wide = on_v100("resnet50"), on_v100("resnet50", classes=10_000)
    assert wide.layers[:-1] == narrow.layers[:-1]
    assert wide.layers[-1].num_bytes == 10 * narrow.layers[-1].num_bytes


def point(gbps: float, gained: float) -> Point:
    """A gain in per cent over an iteration of one second."""
    return Point(gbps, Outcome(1 + gained / 100, 1.0, 0.5, 0.5), Outcome(1.0, 0.5, 0.5, 0.5))


CURVE = [point(100, 0), point(10, 20), point(1, 10)]


def test_where_a_curve_passes_a_level() -> None:
    assert crossing(CURVE, 10) == pytest.approx(10**1.5)
    assert crossing(CURVE, 5) == pytest.approx(10**1.75)
    assert crossing(CURVE, 21) is None


def test_why_names_the_place_on_the_curve_or_its_peak() -> None:
    assert why(CURVE, 10, 100).startswith("The curve passes +10 % at 31.6 Gbit/s, 32 % of the links' rate")
    beyond = why(CURVE, 50, 100)
    assert beyond.startswith("Order and partition gain at most +20 % at any bandwidth (at 10 Gbit/s, with 50 %")
    assert beyond.endswith("at the nominal 100 Gbit/s the gain is ±0 %.")


def test_the_expected_best_of_a_blind_search() -> None:
    values = [5.0, 1.0, 2.0, 9.0, 2.5]
    for trials in (1, 3, 5):
        assert expected_best(values, trials) == pytest.approx(
            mean(min(drawn) for drawn in combinations(values, trials))
        )


def test_spans_of_a_step() -> None:
    """Backward 2 + 2, then forward as soon as each tensor is back.

    second  bbbb ····push,pull····            ff        ms from the start of backward
    first       bbbb ····push,pull···· ff
    """
    result = simulate(TWO, ONE_SECOND, baseline(TWO, ONE_SECOND))
    assert list(spans(TWO, result.trace, result.trace[0].task.step)) == [
        ("first", "backward", 2000, 4000),
        ("first", "communication", 4000, 6000),
        ("first", "forward", 6000, 7000),
        ("second", "backward", 0, 2000),
        ("second", "communication", 2000, 4000),
        ("second", "forward", 7000, 8000),
    ]


def test_numbers_as_people_read_them() -> None:
    row = Row(case="c", ours=-0.04, paper=(5.4, 99.0), unit="%", why="because")
    assert (row.ours_text(), row.paper_text()) == ("±0 %", "+5.4 % to +99 %")
    row = Row(case="c", ours=2.956, paper=None, unit="×", why="because")
    assert (row.ours_text(), row.paper_text()) == ("2.96×", "–")


def test_recipes_find_something(tmp_path: Path) -> None:
    """The cheap ones, as they are; every row has its reason, and every chart its finding."""
    said: list[str] = []
    chosen = [RECIPES[name] for name in ("gantt", "autobyte-5", "autobyte-6", "byteps-servers", "growth")]
    results = run(chosen, Runs(), said.append)
    assert said[0] == "[1/5] gantt: What does a step look like?"
    for _, findings in results:
        assert findings.rows
        assert all(row.why.endswith(".") for row in findings.rows)
        assert all(chart.finding and chart.caption for chart in findings.charts)
    write_rows(results, tmp_path / "rows.jsonl")
    rows = [json.loads(line) for line in (tmp_path / "rows.jsonl").read_text().splitlines()]
    assert {row["recipe"] for row in rows} == {recipe.name for recipe in chosen}
    assert set(rows[0]) == {"recipe", "case", "ours", "paper", "unit", "why"}
