"""Replayed models on real hosts, a few steps each: every benchmark that trains one runs to its end."""

import math

import pytest

pytest.importorskip("pyroute2")
pytest.importorskip("torch")

from bench import live
from bench.live import DEFAULT, HIGH, STARTS, Run
from bench.sections import codecs, steps
from bench.sections.steps import Setting
from bench.testbed import crew
from bench.testbed.namespace import is_permitted
from bench.testbed.testbed import Testbed

pytestmark = [
    pytest.mark.skipif(not is_permitted(), reason="this user may not make network namespaces"),
    pytest.mark.usefixtures("forked_hosts"),
]

SETTING = Setting(
    num_hosts=2, gbps=1, num_bytes=1_000_000, num_steps=2, num_rounds=1, partition_bytes=65536, at_most=math.inf
)


def test_steps_by_priority_and_first_come_first_served() -> None:
    with Testbed(hosts=2, gbps=1) as testbed:
        figures = list(steps.measure_model(testbed, SETTING, "alexnet"))
    assert [figure.case.rpartition(", ")[2] for figure in figures] == ["priority", "fifo"]
    assert all(figure.value > 0 for figure in figures)


def test_codecs_send_less() -> None:
    with Testbed(hosts=2, gbps=1) as testbed:
        workload = steps.balanced("alexnet", SETTING, 1.2e8)
        ranks = crew.run(testbed, range(2), codecs.train, testbed.address(0), workload, SETTING)
    sent = {figure.case.rpartition(", ")[2]: figure.details for figure in codecs.figures(SETTING, workload, ranks)}
    assert list(sent) == list(codecs.SCHEMES)
    assert sent["fp16"]["bytes over plain"] == pytest.approx(0.5, abs=0.05)


def test_plans_and_bandwidth_change_while_training_runs() -> None:
    runs = [
        Run(name="two plans", gbps=(HIGH,) * 5, plans=(STARTS[0],) * 3 + (STARTS[1],) * 2),
        Run(name="two bandwidths", gbps=(HIGH,) * 3 + (HIGH / 2,) * 2, plans=(DEFAULT,) * 5, tuner="twin"),
    ]
    with Testbed(hosts=live.NUM_HOSTS, gbps=HIGH) as testbed:
        outcomes = live.run_all(testbed, runs)
    assert [len(outcome.steps_s) for outcome in outcomes] == [5, 5]
