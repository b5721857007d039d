"""Running totals through a group: declared once, then pushed to and pulled from."""

import numpy as np
import pytest

from legato._native import LAST_STEP
from legato.core.shards import Deployment
from legato.errors import DeadlineError, InputError, MismatchError
from legato.testing.native_job import job_configs, run_job
from legato.transports.declaration import Declaration, Operation
from legato.transports.native.group import NativeGroup

DEPLOYMENTS = {
    "joint": Deployment(num_workers=2),
    "separate": Deployment(num_workers=2, num_servers=2, workers_serve=False),
}


def total(staleness: int | None = 0) -> Declaration:
    return Declaration(
        name="total", shape=(100_000,), dtype="float32", operation=Operation.ACCUMULATE, staleness=staleness
    )


@pytest.mark.parametrize("deployment", DEPLOYMENTS.values(), ids=DEPLOYMENTS)
def test_every_step_counts_in_every_later_one(deployment: Deployment) -> None:
    def body(group: NativeGroup) -> list[float]:
        group.declare([total()])
        answers = []
        for step in range(4):
            value = np.full(100_000, group.rank + step, np.float32)
            group.push_pull("total", value, step=step)
            assert (value == value[0]).all()
            answers.append(float(value[0]))
        group.push_pull("total", value, step=LAST_STEP)
        return answers

    assert run_job(job_configs(deployment), body) == [[1.0, 4.0, 9.0, 16.0]] * 2


def test_whoever_is_too_far_ahead_hears_for_whom_it_waits() -> None:
    def body(group: NativeGroup) -> str:
        group.declare([total(staleness=1)])
        message = ""
        if group.rank == 0:
            value = np.ones(100_000, np.float32)
            group.push_pull("total", value, step=0)
            handle = group.push_pull_async("total", value, step=1)
            with pytest.raises(DeadlineError, match=r"tensor 'total', step 1: .* ranks 1 have not sent it") as error:
                handle.wait(3.0)
            message = str(error.value)
        group.barrier()
        return message

    configs = job_configs(Deployment(num_workers=2))
    assert run_job(configs, body)[0]


def test_ranks_that_differ_are_named() -> None:
    def body(group: NativeGroup) -> str:
        with pytest.raises(MismatchError) as error:
            group.declare([total(staleness=group.rank)])
        return str(error.value)

    for message in run_job(job_configs(Deployment(num_workers=2)), body):
        for rank in range(2):
            assert f"rank {rank} says accumulate of float32 (100000,) with staleness {rank}" in message


def test_what_cannot_be_a_total() -> None:
    with pytest.raises(InputError, match="staleness is -1; accepted is 0 to"):
        total(-1)
    with pytest.raises(InputError, match="a running total has a staleness, and nothing else has"):
        total(None)
    with pytest.raises(InputError, match="a running total has a staleness, and nothing else has"):
        Declaration(name="sum", shape=(1,), dtype="float32", staleness=1)
    with pytest.raises(InputError, match="compression fp16 is for sums, not for accumulate"):
        Declaration(
            name="t", shape=(1,), dtype="float32", operation=Operation.ACCUMULATE, staleness=1, compression="fp16"
        )
