"""Workers that join while the others train: real processes, and what becomes of them when anybody dies meanwhile."""

from pathlib import Path

import pytest

from legato.testing.elastic_job import NEVER, ElasticJob, Process, elastic_job
from legato.testing.elastic_worker import (
    ClippedForLearners,
    EndingForLearners,
    Loop,
    MortalLearner,
    MortalTeacher,
    SentTwiceForLearners,
)

pytestmark = pytest.mark.timeout(300)


def bring_back(job: ElasticJob, *identities: int) -> list[Process]:
    """Kill workers, and start them again when the others have gone on without them."""
    size = len(job.processes)
    job.processes[0].wait_until(30, size=size)
    for identity in identities:
        job.processes[identity].kill()
    step = job.processes[0].step
    job.processes[0].wait_until(step + 1, size=size - len(identities))
    return [job.start(identity, identity) for identity in identities]


def finish(job: ElasticJob, size: int) -> None:
    """All who are there train together for a while, and have the same."""
    for process in job.processes.values():
        process.wait_until(1, size=size)
    job.end()
    job.finish(*job.processes)
    job.check_sums()


def test_the_others_train_while_a_worker_learns(tmp_path: Path) -> None:
    with elastic_job(tmp_path, 3, NEVER) as job:
        bring_back(job, 2)
        finish(job, 3)
        log = job.processes[0].log
        assert "epoch 2: rank 0 of 2; nobody was lost; new: learner 2" in log
        assert "epoch 3: rank 0 of 3; nobody was lost; new: rank 2" in log


def test_with_servers_a_worker_learns_through_one_of_them(tmp_path: Path) -> None:
    with elastic_job(tmp_path, 2, NEVER, num_servers=1, LEGATO_ROLE="worker") as job:
        bring_back(job, 1)
        finish(job, 2)
        assert "new: learner 1" in job.processes[0].log


def test_two_who_come_learn_one_after_the_other(tmp_path: Path) -> None:
    with elastic_job(tmp_path, 4, NEVER) as job:
        bring_back(job, 2, 3)
        finish(job, 4)
        log = job.processes[0].log
        assert "new: learner 2\n" in log
        assert "new: rank 2, learner 3\n" in log or ("new: rank 2\n" in log and "new: learner 3\n" in log)


def test_a_learner_that_dies_costs_an_epoch_and_comes_again(tmp_path: Path) -> None:
    with elastic_job(tmp_path, 3, NEVER, loop=MortalLearner) as job:
        [learner] = bring_back(job, 2)
        assert learner.finish() == -9
        step = job.processes[0].step
        job.processes[0].wait_until(step + 1, size=2)
        job.start(2, 2)
        finish(job, 3)
        assert "gone of the last one: learner 2" in job.processes[0].log


def test_a_learner_whose_teacher_dies_learns_from_the_next(tmp_path: Path) -> None:
    with elastic_job(tmp_path, 3, NEVER, loop=MortalTeacher) as job:
        [learner] = bring_back(job, 2)
        teacher = job.processes.pop(0)
        assert teacher.finish() == -9
        job.ended.append(teacher)
        finish(job, 2)
        assert "for this learner, which starts over" in learner.log
        assert "new: learner 1" in job.processes[1].log


@pytest.mark.parametrize("loop", [ClippedForLearners, SentTwiceForLearners], ids=lambda each: each.__name__)
def test_where_a_learner_cannot_follow_it_gets_everything_at_once(tmp_path: Path, loop: type[Loop]) -> None:
    with elastic_job(tmp_path, 3, NEVER, loop=loop) as job:
        bring_back(job, 2)
        for process in job.processes.values():
            process.wait_until(1, size=3)
        job.end()
        job.finish(0, 1, 2)
        averages = job.averages
        job.check_sums({*averages, *((one + another) / 2 for one in averages for another in averages)})
        assert "a learner cannot follow what this script does" in job.processes[1].log


def test_a_job_may_end_while_a_worker_learns(tmp_path: Path) -> None:
    with elastic_job(tmp_path, 3, NEVER, loop=EndingForLearners, LEGATO_JOIN_TIMEOUT_S="2") as job:
        [learner] = bring_back(job, 2)
        job.finish(0, 1)
        assert learner.finish() == 3
        assert "nobody of the running job has taken this one in" in learner.said[-1]["words"]
