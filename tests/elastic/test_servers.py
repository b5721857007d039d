"""Elastic jobs with servers: real processes, killed and brought back in the middle of training."""

import signal
from pathlib import Path

import pytest

from legato.testing.elastic_job import NEVER, elastic_job

STEPS = 300
GIVEN_UP = 2
"""The exit code of a server that cannot go on."""
pytestmark = pytest.mark.timeout(300)


@pytest.mark.parametrize("role", ["joint", "worker"], ids=["workers sum, too", "servers sum alone"])
def test_servers_are_lost_one_after_another_until_workers_sum_themselves(tmp_path: Path, role: str) -> None:
    with elastic_job(tmp_path, 3, NEVER, num_servers=2, LEGATO_ROLE=role) as job:
        job.processes[0].wait_until(30, servers=2)
        for num_left, server in ((1, job.servers[0]), (0, job.servers[1])):
            server.kill()
            for process in job.processes.values():
                process.wait_until(process.step + 3, size=3, servers=num_left)
        job.end()
        job.finish(0, 1, 2)
        job.check_sums()
        assert "gone of the last one: server 3\n" in job.processes[1].log


@pytest.mark.parametrize("victim", [0, 2], ids=["the most senior", "the last"])
def test_a_server_and_a_worker_are_lost_together(tmp_path: Path, victim: int) -> None:
    with elastic_job(tmp_path, 3, STEPS, num_servers=2) as job:
        survivors = [identity for identity in range(3) if identity != victim]
        job.processes[victim].wait_until(30)
        job.servers[0].signal(signal.SIGKILL)
        job.processes[victim].signal(signal.SIGKILL)
        job.finish(*survivors)
        job.check_sums()
        for identity in survivors:
            last = job.processes[identity].said[-1]
            assert (last["step"], last["size"], last["servers"]) == (STEPS, 2, 1)
        assert job.servers[1].finish() == 0


def test_servers_live_on_without_rank_0_and_its_conductor_and_end_with_the_last_worker(tmp_path: Path) -> None:
    with elastic_job(tmp_path, 3, NEVER, num_servers=2, LEGATO_ROLE="worker") as job:
        for victim, num_left in ((0, 2), (1, 1)):
            job.processes[victim].wait_until(30)
            job.processes[victim].kill()
            job.processes[2].wait_until(0, size=num_left, servers=2)
        job.processes[2].end_after(job.processes[2].step + 30)
        job.finish(2)
        job.check_sums()
        assert [server.finish() for server in job.servers] == [0, 0]
        assert all("every worker has left" in server.log for server in job.servers)


def test_a_server_returns_and_serves_from_the_next_epoch_on(tmp_path: Path) -> None:
    with elastic_job(tmp_path, 3, NEVER, num_servers=1, LEGATO_ROLE="worker") as job:
        for _ in range(2):
            job.processes[0].wait_until(job.processes[0].step + 3, servers=1)
            job.servers[-1].kill()
            for process in job.processes.values():
                process.wait_until(process.step + 3, servers=0)
            job.start_server()
            for process in job.processes.values():
                process.wait_until(process.step + 3, size=3, servers=1)
        job.end()
        job.finish(0, 1, 2)
        job.check_sums()
        assert job.servers[-1].finish() == 0


def test_a_worker_returns_to_a_job_with_a_server(tmp_path: Path) -> None:
    with elastic_job(tmp_path, 3, NEVER, num_servers=1) as job:
        job.processes[1].wait_until(30)
        job.processes[1].kill()
        job.processes[0].wait_until(0, size=2, servers=1)
        job.start(1, 1).wait_until(1, size=3, servers=1)
        job.end()
        job.finish(0, 1, 2)
        job.check_sums()
        assert job.servers[0].finish() == 0


def test_a_server_that_was_stopped_serves_again(tmp_path: Path) -> None:
    with elastic_job(tmp_path, 2, NEVER, num_servers=1) as job:
        job.processes[0].wait_until(30)
        job.servers[0].signal(signal.SIGSTOP)
        job.processes[0].wait_until(0, servers=0)
        job.servers[0].signal(signal.SIGCONT)
        for process in job.processes.values():
            process.wait_until(process.step + 3, servers=1)
        job.end()
        job.finish(0, 1)
        job.check_sums()
        assert job.servers[0].finish() == 0
        assert "this server was left behind: " in job.servers[0].log


def test_a_server_ends_where_no_worker_is_left(tmp_path: Path) -> None:
    with elastic_job(tmp_path, 2, NEVER, num_servers=1) as job:
        job.processes[0].wait_until(30)
        for process in job.processes.values():
            process.signal(signal.SIGKILL)
        assert job.servers[0].finish() == GIVEN_UP
        assert "no worker of the job can be reached any more: ranks 0, 1 are gone" in job.servers[0].log


def test_a_server_that_is_started_when_nobody_is_left_ends_in_time(tmp_path: Path) -> None:
    with elastic_job(tmp_path, 2, NEVER, num_servers=1) as job:
        job.processes[0].wait_until(30)
        for process in job.processes.values():
            process.kill()
        assert job.start_server(LEGATO_JOIN_TIMEOUT_S="2").finish() == GIVEN_UP
        assert "nobody of the running job has taken this one in" in job.servers[-1].log
