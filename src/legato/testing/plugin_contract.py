"""What every plugin for a framework must do. A test file subclasses `PluginContract` and says how a plugin is made:

class TestMine(PluginContract):
    def plugin(self, job: Job, tensors: Sequence[TensorSpec], **options: Unpack[ExchangeOptions]) -> Plugin:
        return MyPlugin(open_exchange(job, tensors, **options))
"""

import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, TypeVar, Unpack

import numpy as np
from numpy.typing import NDArray

from legato.errors import ClosedError, DeadlineError, MismatchError
from legato.exchange import ExchangeOptions, Plugin, TensorSpec
from legato.job import Job
from legato.settings import read_settings
from legato.testing.ports import free_port
from legato.testing.ranks import error_of, run_ranks

T = TypeVar("T")

SHAPES = ((2, 3), (65, 64), (300, 500), (2, 1))
TENSORS = tuple(TensorSpec(f"layer.{place}", shape, "float32") for place, shape in enumerate(SHAPES))
PATIENCE_S = 20.0


class PluginContract:
    """The suite. Ranks are threads; values are small integers, whose averages are exact."""

    def plugin(self, job: Job, tensors: Sequence[TensorSpec], **options: Unpack[ExchangeOptions]) -> Plugin:
        """This rank's, for float32 tensors of two dimensions; the first dimension is 2 or more."""
        raise NotImplementedError

    def run(self, body: Callable[[Job], T], *, size: int = 2, timeout_s: float = 30.0) -> list[T]:
        """`body` on every rank, each in the same job."""
        port = free_port()

        def on_rank(rank: int) -> T:
            environ = {
                "RANK": str(rank),
                "WORLD_SIZE": str(size),
                "LOCAL_RANK": str(rank),
                "LOCAL_WORLD_SIZE": str(size),
                "MASTER_ADDR": "127.0.0.1",
                "MASTER_PORT": str(port),
                "LEGATO_TIMEOUT_S": str(timeout_s),
                "LEGATO_HEARTBEAT_S": str(timeout_s / 3),  # with each, servers tell whom they miss
            }
            with Job(read_settings(environ)) as job:
                return body(job)

        return run_ranks(size, on_rank, timeout_s=60.0)

    def test_averages_step_after_step(self) -> None:
        def body(job: Job) -> None:
            plugin = self.plugin(job, TENSORS)
            for step in range(4):
                for place in reversed(range(len(TENSORS))):
                    plugin.notify_ready(place, _gradient(job.rank, step, place))
                for place in range(len(TENSORS)):
                    _check_average(plugin.wait_finish(place), job.size, step, place)

        for size in (2, 3):
            self.run(body, size=size)

    def test_ranks_may_be_ready_in_different_orders(self) -> None:
        def body(job: Job) -> None:
            plugin = self.plugin(job, TENSORS)
            places = list(range(len(TENSORS)))
            for step in range(3):
                for place in places if job.rank else reversed(places):
                    plugin.notify_ready(place, _gradient(job.rank, step, place))
                for place in places:
                    _check_average(plugin.wait_finish(place), job.size, step, place)

        self.run(body)

    def test_a_tensor_is_cut_into_parts(self) -> None:
        def body(job: Job) -> None:
            plugin = self.plugin(job, TENSORS, policy="bytescheduler", partition_bytes=4096, credit_bytes=8192)
            assert set(plugin.plan.partition_bytes) == {4096}
            for place in range(len(TENSORS)):
                plugin.notify_ready(place, _gradient(job.rank, 0, place))
            for place in range(len(TENSORS)):
                _check_average(plugin.wait_finish(place), job.size, 0, place)

        self.run(body)

    def test_the_first_tensor_is_the_most_urgent(self) -> None:
        def body(job: Job) -> None:
            plan = self.plugin(job, TENSORS, policy="p3").plan
            urgent = sorted(range(len(plan.buckets)), key=lambda bucket: plan.ranks[-1][bucket])
            assert [place for bucket in urgent for place in plan.buckets[bucket]] == list(range(len(TENSORS)))

        self.run(body)

    def test_to_be_ready_waits_for_nobody_and_nothing_finishes_before_all_are(self) -> None:
        looked = threading.Event()

        def body(job: Job) -> None:
            plugin = self.plugin(job, TENSORS)
            if job.rank == 1:
                assert looked.wait(PATIENCE_S), "rank 0 waits where it should return"
            for place in range(len(TENSORS)):
                plugin.notify_ready(place, _gradient(job.rank, 0, place))
            if job.rank == 0:
                assert not any(map(plugin.is_finished, range(len(TENSORS))))
                looked.set()
            for place in range(len(TENSORS)):
                _await(lambda place=place: plugin.is_finished(place))  # type: ignore[misc]
                _check_average(plugin.wait_finish(place), job.size, 0, place)

        self.run(body)

    def test_a_tensor_waits_for_its_own_average_alone(self) -> None:
        used = threading.Barrier(2)

        def body(job: Job) -> None:
            plugin = self.plugin(job, TENSORS, policy="p3")  # a bucket for each tensor
            last = len(TENSORS) - 1
            for place in reversed(range(1 if job.rank else 0, last + 1)):
                plugin.notify_ready(place, _gradient(job.rank, 0, place))
            _check_average(plugin.wait_finish(last), job.size, 0, last)
            if job.rank == 0:
                assert not plugin.is_finished(0)
            used.wait(PATIENCE_S)  # both have used the last tensor, though nobody has the first one's average
            if job.rank == 1:
                plugin.notify_ready(0, _gradient(1, 0, 0))
            for place in range(last):
                _check_average(plugin.wait_finish(place), job.size, 0, place)

        self.run(body)

    def test_shapes_that_differ_are_an_error_on_every_rank(self) -> None:
        def body(job: Job) -> str:
            other = TensorSpec("layer.1", (65, 64 + job.rank), "float32")
            return error_of(lambda: self.plugin(job, [TENSORS[0], other]), MismatchError)

        for line in self.run(body):
            assert "(65, 64)" in line, line
            assert "(65, 65)" in line, line

    def test_a_rank_that_has_left_is_an_error_that_names_it(self) -> None:
        def body(job: Job) -> str | None:
            plugin = self.plugin(job, TENSORS)
            if job.rank == 1:
                return None
            plugin.notify_ready(0, _gradient(0, 0, 0))
            return error_of(lambda: plugin.wait_finish(0), ClosedError)

        line, _ = self.run(body)
        assert line is not None
        assert "rank 1" in line, line

    def test_a_rank_that_is_never_ready_is_an_error_that_names_it(self) -> None:
        heard = threading.Event()

        def body(job: Job) -> str | None:
            plugin = self.plugin(job, TENSORS)
            if job.rank == 1:
                assert heard.wait(PATIENCE_S), "rank 0 waits for ever"
                return None
            plugin.notify_ready(0, _gradient(0, 0, 0))
            try:
                return error_of(lambda: plugin.wait_finish(0), DeadlineError)
            finally:
                heard.set()

        line, _ = self.run(body, timeout_s=3.0)
        assert line is not None
        assert "layer.0" in line, line
        assert "ranks 1 have not sent it" in line, line


def _gradient(rank: int, step: int, place: int) -> NDArray[np.float32]:
    """Even integers that differ between ranks, steps and places; averages over 2 or 3 ranks are exact."""
    shape = SHAPES[place]
    values = np.arange(np.prod(shape)).reshape(shape) % 7
    return (6 * (values + rank + 3 * step + place)).astype(np.float32)


def _check_average(average: NDArray[Any], size: int, step: int, place: int) -> None:
    expected = np.mean([_gradient(rank, step, place) for rank in range(size)], axis=0)
    np.testing.assert_allclose(average, expected, rtol=1e-6, err_msg=f"step {step}, {TENSORS[place].name}")


def _await(condition: Callable[[], bool]) -> None:
    until_s = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < until_s, "nobody says that it has finished"
        time.sleep(1e-3)
