"""The same plan, the same arrivals, a link that is closed and then opened: all executors start the same parts."""

from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from legato.core import Part, Plan, Tensor
from tests.core.plans import plans, tensors_of
from tests.executors import EXECUTORS, Executor, run_in_engine

PlansFor = Callable[[tuple[Tensor, ...]], st.SearchStrategy[Plan]]


def starts(data: st.DataObject, executors: Sequence[Executor], strategy: PlansFor = plans) -> list[list[Part]]:
    """What each executor starts, for tensors, a plan and arrivals that are drawn."""
    tensors = tensors_of(*data.draw(st.lists(st.integers(1, 10), min_size=1, max_size=6)))
    plan = data.draw(strategy(tensors))
    arrivals = data.draw(st.permutations(range(len(tensors))))
    started = [executor(plan, tensors, arrivals) for executor in executors]
    num_parts = len(plan.stages) * sum(map(len, plan.parts(tensors)))
    assert all(len(set(parts)) == len(parts) == num_parts for parts in started), "every part starts once"
    return started


@pytest.mark.parametrize("credit", EXECUTORS)
@settings(deadline=None)
@given(st.data())
def test_executors_start_the_same_parts_in_the_same_order(credit: str, data: st.DataObject) -> None:
    first, *others = starts(data, [*EXECUTORS[credit].values()])
    assert all(other == first for other in others)


@settings(deadline=None)
@given(st.data())
def test_with_one_stage_it_does_not_even_matter_when_credit_comes_back(data: st.DataObject) -> None:
    executors = [executor for those in EXECUTORS.values() for executor in those.values()]
    first, *others = starts(data, executors, lambda tensors: plans(tensors).filter(lambda plan: len(plan.stages) == 1))
    assert all(other == first for other in others)


@settings(deadline=None, max_examples=60)
@given(st.data())
def test_the_engine_starts_the_first_stage_as_the_others_do(data: st.DataObject) -> None:
    tensors = tensors_of(*data.draw(st.lists(st.integers(1, 10), min_size=1, max_size=6)))
    plan = replace(data.draw(plans(tensors)), flat=False)
    arrivals = data.draw(st.permutations(range(len(tensors))))
    for executor in EXECUTORS["credit comes back when a part is sent"].values():
        expected = [part for part in executor(plan, tensors, arrivals) if part.stage is plan.stages[0]]
        assert run_in_engine(plan, tensors, arrivals) == expected
