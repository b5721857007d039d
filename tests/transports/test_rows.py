"""Sparse rows: the sum of what each rank touched, by whichever way is shorter."""

from typing import Any

import numpy as np
import pytest

from legato.core.shards import Deployment
from legato.errors import InputError, LegatoError, MismatchError
from legato.testing.native_job import job_configs, run_job
from legato.transports.native.group import NativeGroup
from legato.transports.native.rows import Rows, _capacity

JOINT = Deployment(num_workers=3)
DEPLOYMENTS = {
    "alone": Deployment(num_workers=1),
    "joint": JOINT,
    "separate": Deployment(num_workers=3, num_servers=2, workers_serve=False),
}


def touched(rank: int, step: int, num_rows: int, count: int) -> Rows:
    """Rows with repetitions, of whole numbers."""
    random = np.random.default_rng(1000 * step + rank)
    return Rows(random.integers(0, num_rows, count), random.integers(-9, 9, (count, 4)).astype(np.float32))


def dense(rows: Rows | None, num_rows: int) -> Any:
    assert rows is not None
    table = np.zeros((num_rows, 4), np.float32)
    np.add.at(table, rows.indices, rows.values)
    return table


@pytest.mark.parametrize("deployment", DEPLOYMENTS.values(), ids=DEPLOYMENTS)
@pytest.mark.parametrize("count", [0, 1, 40, 400], ids=["none", "one", "few", "most: travels whole"])
def test_the_sum_is_exact(deployment: Deployment, count: int) -> None:
    size, num_rows = deployment.num_workers, 500

    def body(group: NativeGroup) -> list[Rows | None]:
        return [
            group.push_pull_rows("table", touched(group.rank, step, num_rows, count), shape=(num_rows, 4))
            for step in range(3)
        ]

    for results in run_job(job_configs(deployment), body):
        for step, result in enumerate(results):
            assert result is not None
            given = [touched(rank, step, num_rows, count) for rank in range(size)]
            np.testing.assert_array_equal(result.indices, np.unique(np.concatenate([rows.indices for rows in given])))
            np.testing.assert_array_equal(dense(result, num_rows), sum(dense(rows, num_rows) for rows in given))


def test_ranks_without_rows() -> None:
    def body(group: NativeGroup) -> tuple[Rows | None, Rows | None]:
        rows = touched(0, 0, 100, 5) if group.rank == 1 else None
        return group.push_pull_rows("a", rows, shape=(100, 4)), group.push_pull_rows("b", None, shape=(100, 4))

    for some, none in run_job(job_configs(JOINT), body):
        np.testing.assert_array_equal(dense(some, 100), dense(touched(0, 0, 100, 5), 100))
        assert none is None


def test_names_do_not_pile_up() -> None:
    """Numbers of rows that differ in every step come to a few sizes."""

    def body(group: NativeGroup) -> int:
        for step in range(20):
            group.push_pull_rows("table", touched(group.rank, step, 10_000, 100 + step), shape=(10_000, 4))
        return len(group.session.player._definitions)

    assert all(count < 60 for count in run_job(job_configs(JOINT), body))
    assert len({_capacity(count) for count in range(1, 1_000_000, 7)}) < 100
    assert all(count <= _capacity(count) <= 1.25 * count + 1 for count in range(1, 5000))


@pytest.mark.parametrize("index", [100, -1])
def test_an_index_out_of_range_is_said_on_every_rank(index: int) -> None:
    def body(group: NativeGroup) -> str:
        rows = Rows(np.array([index if group.rank == 1 else 3]), np.ones((1, 4), np.float32))
        with pytest.raises(InputError) as error:
            group.push_pull_rows("table", rows, shape=(100, 4))
        return str(error.value)

    expected = f"tensor 'table': rank 1 has row index {index}; accepted is 0 to 99"
    assert run_job(job_configs(JOINT), body) == [expected] * 3


def test_different_tables() -> None:
    def body(group: NativeGroup) -> LegatoError:
        with pytest.raises(MismatchError) as error:
            group.push_pull_rows("table", touched(0, 0, 10, 1), shape=(10 + group.rank, 4))
        return error.value

    for error in run_job(job_configs(JOINT), body):
        assert "rank 0 has a table of 10 × 4, rank 1 of 11 × 4" in str(error)


def test_wrong_dtype() -> None:
    def body(group: NativeGroup) -> None:
        with pytest.raises(InputError, match="rows are int32; accepted are float32, float64"):
            group.push_pull_rows("table", None, shape=(10, 4), dtype="int32")

    run_job(job_configs(Deployment(num_workers=1)), body)
