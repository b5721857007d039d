"""Compressed tensors in a job: agreed on like all else, right in every deployment and through changes of the plan."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from legato.core.policies import ByteScheduler
from legato.core.shards import Deployment
from legato.core.task import Tensor
from legato.errors import InputError, LegatoError, MismatchError
from legato.testing.native_job import job_configs, run_job
from legato.transports.declaration import Declaration
from legato.transports.native.group import NativeGroup
from tests.transports.places import place_ranks

JOINT = Deployment(num_workers=3)
DEPLOYMENTS = {
    "alone": Deployment(num_workers=1),
    "joint": JOINT,
    "separate": Deployment(num_workers=3, num_servers=2, workers_serve=False),
}
NUM_ITEMS = 200_000


def gradient(rank: int, step: int = 0) -> Any:
    return np.random.default_rng(100 * step + rank).standard_normal(NUM_ITEMS, np.float32)


@pytest.mark.parametrize("deployment", DEPLOYMENTS.values(), ids=DEPLOYMENTS)
@pytest.mark.parametrize(
    ("scheme", "tolerance"),
    [("fp16", 4e-3), ("bf16+ef", 4e-2), ("int8", 0.05), ("topk:0.999", 0.02), ("dithering:127", 0.08)],
)
def test_the_average_is_close_and_the_same_everywhere(deployment: Deployment, scheme: str, tolerance: float) -> None:
    size = deployment.num_workers

    def body(group: NativeGroup) -> Any:
        return [
            group.push_pull("w", gradient(group.rank, step), reduction="average", step=step, compression=scheme).copy()
            for step in range(2)
        ]

    results = run_job(job_configs(deployment), body)
    for step in range(2):
        expected = np.mean([gradient(rank, step) for rank in range(size)], axis=0)
        np.testing.assert_allclose(results[0][step], expected, atol=tolerance)
        for each in results[1:]:
            np.testing.assert_array_equal(each[step], results[0][step])


def test_encoded_parts_need_no_relay(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two hosts of two workers: what is encoded goes straight to its server, and is the same as on one host."""

    def body(group: NativeGroup) -> Any:
        return group.push_pull("w", gradient(group.rank), reduction="average", compression="topk:0.1+ef").copy()

    configs = job_configs(Deployment(num_workers=4))
    expected, *_ = run_job(configs, body)
    place_ranks(monkeypatch, lambda rank: rank // 2)
    for result in run_job(job_configs(Deployment(num_workers=4)), body):
        np.testing.assert_array_equal(result, expected)


def test_int8_sums() -> None:
    def body(group: NativeGroup) -> Any:
        values = np.arange(-127, 128, dtype=np.float32) * np.float32(group.rank == 1)
        return group.push_pull("w", values, compression="int8")

    expected = np.rint(np.arange(-127, 128) / np.float32(3)) * 3
    for result in run_job(job_configs(JOINT), body):
        np.testing.assert_allclose(result, expected, rtol=1e-6)


def test_error_feedback_makes_up_for_what_was_lost() -> None:
    """Over many steps of the same gradient, the sum of what arrives is the sum of what was given."""

    def body(group: NativeGroup) -> Any:
        total = np.zeros(NUM_ITEMS, np.float32)
        for step in range(60):
            total += group.push_pull("w", gradient(group.rank), step=step, compression="topk:0.1+ef")
        return total / 60

    expected = np.sum([gradient(rank) for rank in range(3)], axis=0)
    for mean in run_job(job_configs(JOINT), body):
        assert np.abs(mean - expected).max() < 0.6
        assert np.abs(mean - expected).mean() < 0.25


def test_a_plan_may_change() -> None:
    known = [Tensor(name="w", num_bytes=4 * NUM_ITEMS, priority=0)]
    plan = ByteScheduler().plan(known, partition_bytes=30_000, credit_bytes=100_000)

    def body(group: NativeGroup) -> Any:
        group.declare([Declaration(name="w", shape=(NUM_ITEMS,), dtype="float32", compression="onebit+ef")])
        results = [group.push_pull("w", gradient(group.rank, step), step=step) for step in range(3)]
        group.set_plan(plan, 3, everyone=True)
        return results + [group.push_pull("w", gradient(group.rank, step), step=step) for step in range(3, 6)]

    first, *others = run_job(job_configs(JOINT), body)
    for other in others:
        np.testing.assert_array_equal(other, first)


def _error(call: Callable[[], object]) -> LegatoError:
    with pytest.raises(LegatoError) as error:
        call()
    return error.value


def test_different_codecs_on_different_ranks() -> None:
    def body(group: NativeGroup) -> LegatoError:
        scheme = "topk:0.01" if group.rank == 1 else "topk:0.02"
        return _error(lambda: group.push_pull("w", gradient(group.rank), compression=scheme))

    for error in run_job(job_configs(JOINT), body):
        assert isinstance(error, MismatchError)
        assert "compressed by topk:0.01" in str(error)
        assert "compressed by topk:0.02" in str(error)


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"dtype": "int32", "compression": "fp16"}, "tensor 'w' is int32, but compression fp16 is for float32"),
        ({"compression": "zip"}, "codec 'zip' is unknown"),
        ({"compression": "topk:11"}, "k is 11, but the tensor has 10 items"),
        ({"compression": "fp16", "reduction": "max"}, "goes with sum and average, not max"),
        ({"compression": "fp16", "operation": "broadcast", "root": 0}, "is for sums, not for broadcast"),
    ],
)
def test_declarations_that_cannot_be(fields: dict[str, Any], why: str) -> None:
    with pytest.raises(InputError) as error:
        Declaration(**{"name": "w", "shape": (10,), "dtype": "float32", **fields})
    assert why in str(error.value)


def test_bytes_on_the_wire() -> None:
    def body(group: NativeGroup) -> int:
        before = group.session.engine.statistics()["bytes_sent"]
        group.push_pull("w", gradient(group.rank), compression="onebit+ef")
        group.barrier()
        return group.session.engine.statistics()["bytes_sent"] - before

    plain = 4 * NUM_ITEMS * 4 / 3
    assert all(sent < plain / 20 for sent in run_job(job_configs(JOINT), body))
