"""Jobs that outlive their workers: real processes, killed and brought back in the middle of training."""

import signal
from pathlib import Path

import pytest

from legato.testing.elastic_job import NEVER, elastic_job
from legato.testing.elastic_worker import Straggling

STEPS = 300
pytestmark = pytest.mark.timeout(300)


@pytest.mark.parametrize("victim", [0, 1, 2], ids=["the most senior", "the second", "the last"])
def test_survivors_finish_the_step_and_go_on(tmp_path: Path, victim: int) -> None:
    with elastic_job(tmp_path, 3, STEPS) as job:
        survivors = [identity for identity in range(3) if identity != victim]
        job.processes[victim].wait_until(30)
        job.processes[victim].kill()
        job.finish(*survivors)
        job.check_sums()
        for identity in survivors:
            last = job.processes[identity].said[-1]
            assert (last["step"], last["size"]) == (STEPS, 2)


def test_one_after_another_until_one_is_left(tmp_path: Path) -> None:
    with elastic_job(tmp_path, 3, STEPS) as job:
        job.processes[0].wait_until(30)
        job.processes[0].kill()
        job.processes[2].wait_until(0, size=2)
        job.processes[2].kill()
        job.finish(1)
        job.check_sums()
        assert job.processes[1].said[-1]["size"] == 1


def test_a_worker_returns_and_has_what_the_others_have(tmp_path: Path) -> None:
    with elastic_job(tmp_path, 3, NEVER) as job:
        job.processes[1].wait_until(30)
        job.processes[1].kill()
        job.processes[0].wait_until(0, size=2)
        returned = job.start(1, 1)
        returned.wait_until(1, size=3)
        job.processes[0].wait_until(0, size=3)
        job.end()
        job.finish(0, 1, 2)
        job.check_sums()
        assert returned.said[0]["step"] > 0


def test_a_link_that_breaks_costs_an_epoch_and_nobody(tmp_path: Path) -> None:
    with elastic_job(tmp_path, 3, STEPS, LEGATO_SHARED_MEMORY="0") as job:
        job.processes[1].wait_until(30)
        job.processes[1].signal(signal.SIGUSR1)
        job.finish(0, 1, 2)
        job.check_sums()
        assert {process.said[-1]["size"] for process in job.processes.values()} == {3}
        assert "nobody was lost" in job.processes[0].log


def test_who_was_stopped_is_told_that_the_others_gave_it_up(tmp_path: Path) -> None:
    with elastic_job(tmp_path, 3, NEVER) as job:
        stopped = job.processes[2]
        stopped.wait_until(30)
        stopped.signal(signal.SIGSTOP)
        job.processes[0].wait_until(0, size=2)
        stopped.signal(signal.SIGCONT)
        assert stopped.finish() == 3
        assert "gave this rank up" in stopped.said[-1]["words"] or "without this rank" in stopped.said[-1]["words"]
        del job.processes[2]
        job.ended.append(stopped)
        job.end()
        job.finish(0, 1)
        job.check_sums()


def test_who_was_stopped_until_the_others_had_ended_does_not_go_on_alone(tmp_path: Path) -> None:
    with elastic_job(tmp_path, 3, STEPS) as job:
        stopped = job.processes[2]
        stopped.wait_until(30)
        stopped.signal(signal.SIGSTOP)
        job.finish(0, 1)
        stopped.signal(signal.SIGCONT)
        assert stopped.finish() == 3
        assert "the others gave this rank up: they went on without it and have ended" in stopped.said[-1]["words"]
        job.check_sums()


def test_a_straggler_is_evicted_and_told_why(tmp_path: Path) -> None:
    with elastic_job(tmp_path, 3, STEPS // 3, loop=Straggling, LEGATO_STRAGGLERS="evict") as job:
        assert job.processes[2].finish() == 3
        assert job.processes[2].said[-1]["error"] == "EvictedError"
        assert "rank 2 is evicted, because the others wait for it: it spends " in job.processes[2].said[-1]["words"]
        job.finish(0, 1)
        job.check_sums()
        assert [job.processes[identity].said[-1]["size"] for identity in (0, 1)] == [2, 2]


def test_nobody_is_evicted_whom_the_job_needs(tmp_path: Path) -> None:
    with elastic_job(tmp_path, 3, STEPS // 6, minimum=3, loop=Straggling, LEGATO_STRAGGLERS="evict") as job:
        job.finish(0, 1, 2)
        job.check_sums()
        assert "rank 2 is the slowest: it spends " in job.processes[0].log


def test_a_test_that_fails_shows_everybodys_last_words(tmp_path: Path) -> None:
    def fail() -> None:
        with elastic_job(tmp_path, 2, NEVER) as job:
            for process in job.processes.values():
                process.wait_until(3)
            job.processes[0].kill()
            raise AssertionError

    with pytest.raises(AssertionError) as failed:
        fail()
    [words] = failed.value.__notes__
    assert "worker 0, exit status -9: [{'step': " in words
    assert "worker 1, exit status None: [{'step': " in words


def test_fewer_than_asked_for_is_the_end(tmp_path: Path) -> None:
    with elastic_job(tmp_path, 3, NEVER, minimum=3) as job:
        job.processes[1].wait_until(30)
        job.processes[1].kill()
        for identity in (0, 2):
            assert job.processes[identity].finish() == 3
            assert "2 workers are left and LEGATO_ELASTIC asks for 3" in job.processes[identity].said[-1]["words"]
