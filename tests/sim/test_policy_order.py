"""The published order of the all-reduce policies comes out of the simulator (docs/simulator.md has the figures)."""

import pytest

from bench.simulator import SETTINGS, Setting, ratios

BEST_FIRST = ("rsag", "priority, bucketed", "DeAR")


@pytest.mark.parametrize("setting", SETTINGS, ids=lambda setting: f"{setting.model}-{setting.workers}")
def test_order_of_the_policies(setting: Setting) -> None:
    found = ratios(setting)
    values = [found[name] for name in BEST_FIRST]
    assert values == sorted(values)
    rest = (found["DDP's buckets"], found["priority, per tensor"])
    assert max(values) < min(rest)
    few_large_tensors = setting.model == "bert-base"
    assert (rest[0] > rest[1]) is few_large_tensors, "one operation per tensor pays only where tensors are large"
