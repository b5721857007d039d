"""Scripts that clip, scale their loss, accumulate, or change the learning rate: survivors of a worker that ends in the
middle of a step are bit-equal, and one that returns begins with what the others have."""

from pathlib import Path

import pytest

from legato.testing.elastic_job import NEVER, ElasticJob, elastic_job
from legato.testing.elastic_worker import (
    MAX_NORM,
    RATES,
    Accumulated,
    BySize,
    Clipped,
    ClippedByLegato,
    Death,
    InTurns,
    Loop,
    Scaled,
    ScaledAlone,
    ScaledByTorch,
    SentTwice,
)

STEPS = 90
DEADLY_STEP = 30
VICTIM = 1
pytestmark = pytest.mark.timeout(300)


def changes_of(job: ElasticJob, loop: type[Loop]) -> set[float]:
    """What a step may change a weight by."""
    averages = job.averages
    if issubclass(loop, Clipped):
        return {1.0}
    if loop is SentTwice:
        return {(one + another) / 2 for one in averages for another in averages}
    if loop is InTurns:
        return {average * rate for average in averages for rate in RATES}
    if loop is BySize:
        return {average * size for average in averages for size in (2, 3)}
    return averages


def rounding_of(loop: type[Loop]) -> float:
    """torch adds squares up in float32, on a processor one after the other."""
    return 0.03 if issubclass(loop, Clipped) else 1e-3


def check_words(job: ElasticJob, loop: type[Loop]) -> None:
    """Norms are those of averages; scales have come down from where gradients overflow."""
    lines = [line for process in job.processes.values() for line in process.said if "values" in line]
    if issubclass(loop, Clipped):
        norms = {line["norm"] / MAX_NORM for line in lines if "norm" in line}
        assert len(norms) > 1, "with the victim and without it"
        assert all(min(abs(norm / average - 1) for average in job.averages) < rounding_of(loop) for norm in norms)
    if issubclass(loop, Scaled):
        assert len({line["scale"] for line in lines if "scale" in line}) > 1


@pytest.mark.parametrize(
    ("loop", "point"),
    [
        *((loop, point) for loop in (Clipped, ClippedByLegato) for point in ("backward", "look", "clip")),
        *((Scaled, point) for point in ("backward", "unscale", "step")),
        (ScaledByTorch, "unscale"),
        *((Accumulated, point) for point in ("pass 0", "pass 2")),
        *((SentTwice, point) for point in ("pass 0", "pass 1")),
        (InTurns, "backward"),
    ],
    ids=lambda each: each if isinstance(each, str) else each.__name__,
)
def test_survivors_are_equal_wherever_in_a_step_a_worker_ends(tmp_path: Path, loop: type[Loop], point: str) -> None:
    with elastic_job(tmp_path, 3, STEPS, loop=loop, death=Death(VICTIM, DEADLY_STEP, point)) as job:
        job.finish(0, 2)
        assert job.processes[VICTIM].finish() == -9
        job.check_sums(changes_of(job, loop), rounding_of(loop))
        check_words(job, loop)
        for identity in (0, 2):
            last = job.processes[identity].said[-1]
            assert (last["step"], last["size"]) == (STEPS, 2)


@pytest.mark.parametrize("loop", [Scaled, ScaledByTorch, InTurns, BySize, Accumulated], ids=lambda each: each.__name__)
def test_who_returns_begins_with_the_scale_and_the_learning_rate_of_the_others(
    tmp_path: Path, loop: type[Loop]
) -> None:
    with elastic_job(tmp_path, 3, NEVER, loop=loop) as job:
        for _ in range(2):
            size = len(job.processes)
            job.processes[VICTIM].wait_until(1, size=size)
            job.processes[VICTIM].kill()
            step = job.processes[0].step
            job.processes[0].wait_until(step + 1, size=size - 1)
            job.start(VICTIM, VICTIM).wait_until(1, size=size)
        job.end()
        job.finish(0, 1, 2)
        job.check_sums(changes_of(job, loop), rounding_of(loop))


def test_a_scaler_that_newcomers_would_not_have_is_refused(tmp_path: Path) -> None:
    with elastic_job(tmp_path, 2, NEVER, loop=ScaledAlone) as job:
        for process in job.processes.values():
            assert process.finish() == 3
            assert process.said[-1]["error"] == "InputError"
            assert "call schedule(model, optimizer, state=[scaler])" in process.said[-1]["words"]
