"""Ranks that wait for each other: who waits for whom is said early, who lives is not given up, all blame the same."""

import signal
import threading
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from legato.core import Tensor
from legato.core.policies.by_arrival import Fifo
from legato.core.shards import Deployment
from legato.errors import ClosedError, CorruptionError, DeadlineError, InputError, JobError
from legato.testing.native_job import job_configs, run_job
from legato.testing.ports import free_port
from legato.testing.ranks import start_ranks
from legato.transports.declaration import Declaration
from legato.transports.native.group import NativeGroup
from legato.transports.native.player import EngineConfig
from legato.transports.native.session import NativeConfig
from legato.transports.rendezvous import tensor_registry
from legato.transports.rendezvous.member import MemberConfig
from legato.transports.rendezvous.messages import Stalled, Waiting
from legato.transports.rendezvous.stalls import Stalls
from tests.engine.mesh import eventually
from tests.transports.test_trouble import JOINT, add_until_it_fails, read_until, worker_process
from tests.transports.worker import config

# ---- what the conductor makes of reports ----


def stalls(*reports: tuple[int, Waiting]) -> Stalls:
    made = Stalls("rank {}".format)
    for rank, report in reports:
        made.waiting(rank, report, 100.0)
    return made


FOR_A = Waiting("a", 5, (1,), 10.0)
FOR_B = Waiting("b", 0, (0, 2, 3), 10.4)


def test_a_stall_is_one_sentence_for_those_who_wait_alike_and_names_whom_they_wait_for() -> None:
    made = stalls((3, FOR_A), (0, FOR_A), (2, FOR_A))
    assert made.expire(100.5) == [], "others may be about to report"
    assert made.expire(101.0) == [
        Stalled(
            "no progress for 10 s: rank 0, rank 2, rank 3 wait for tensor 'a' of step 5, which rank 1 has not sent; "
            "rank 1 is alive, its log has its stacks",
            (1,),
        )
    ]


def test_the_one_that_most_wait_for_is_to_blame_also_when_it_waits_for_the_others() -> None:
    verdict = stalls((1, FOR_B), (0, FOR_A), (2, FOR_A), (3, FOR_A)).verdict(60.0)
    assert verdict is not None
    assert (verdict.rank, verdict.tensor, verdict.step) == (1, "a", 5)
    assert "rank 1 waits for tensor 'b' of step 0, which rank 0, rank 2, rank 3 have not sent" in str(verdict)


def test_among_equals_the_one_that_waits_for_nobody_is_to_blame() -> None:
    verdict = stalls((0, Waiting("a", 5, (1, 2), 10.0)), (1, Waiting("a", 5, (2,), 10.0))).verdict(60.0)
    assert verdict is not None
    assert verdict.rank == 2
    assert stalls((0, Waiting("a", 5, (1, 2), 10.0)), (1, Waiting("b", 5, (0,), 10.0))).verdict(60.0).rank == 2  # type: ignore[union-attr]
    assert stalls((0, Waiting("a", 5, (), 10.0))).verdict(60.0) is None


def test_a_stall_is_reported_again_less_and_less_often_until_it_is_over() -> None:
    made = stalls((0, FOR_A))
    times: list[float] = []
    while len(times) < 3:
        due_s = made.deadline_s()
        assert due_s is not None
        times.append(due_s)
        assert len(made.expire(due_s)) == 1
    assert times == [101.0, 161.0, 281.0]
    made.resumed(0)
    assert made.deadline_s() is None
    made.waiting(0, FOR_A, 500.0)
    assert made.deadline_s() == 501.0


# ---- real jobs ----


def impatient(num_workers: int, **member: float) -> list[NativeConfig]:
    configs = job_configs(Deployment(num_workers=num_workers), **{"stall_s": 0.2, **member})
    return [replace(each, engine=EngineConfig(heartbeat_s=1.0)) for each in configs]


def save_a_checkpoint(is_done: Callable[[], bool]) -> None:
    eventually(is_done, "others wait for this rank, and say so")


def test_a_rank_that_pauses_is_named_with_its_stack_and_the_job_goes_on(caplog: pytest.LogCaptureFixture) -> None:
    """It pauses for longer than several heartbeats, and is alive all the time."""

    def body(group: NativeGroup) -> list[float]:
        group.push_pull("w", np.ones(1), step=0)
        if group.rank == 1:
            save_a_checkpoint(lambda: "what this rank is doing" in caplog.text)
        return list(group.push_pull("w", np.ones(1), step=1))

    assert run_job(impatient(3), body) == [[3.0]] * 3
    assert "wait for tensor 'w' of step 1, which rank 1 has not sent; rank 1 is alive, its log has its" in caplog.text
    assert "in save_a_checkpoint" in caplog.text
    assert {record.levelname for record in caplog.records} == {"WARNING"}


def test_a_rank_that_has_not_declared_a_tensor_is_named_too(caplog: pytest.LogCaptureFixture) -> None:
    def body(group: NativeGroup) -> None:
        if group.rank == 1:
            save_a_checkpoint(lambda: "no progress" in caplog.text)
        group.declare([Declaration(name="w", shape=(1,), dtype="float32")])

    run_job(impatient(2), body)
    assert "rank 0 waits for tensor 'w', which rank 1 has not sent" in caplog.text


def test_a_rank_that_does_not_propose_a_plan_is_named_too(caplog: pytest.LogCaptureFixture) -> None:
    tensors = [Tensor(name="w", num_bytes=4, priority=0)]

    def body(group: NativeGroup) -> None:
        group.declare([Declaration(name="w", shape=(1,), dtype="float32", place=0)])
        if group.rank == 0:
            save_a_checkpoint(lambda: "no progress" in caplog.text)
        group.set_plan(Fifo().plan(tensors), 0, everyone=True)

    run_job(impatient(2), body)
    assert "rank 1 waits for the plan from step 0, which rank 0 has not sent" in caplog.text


def test_who_is_done_before_the_others_says_whom_it_waits_for(caplog: pytest.LogCaptureFixture) -> None:
    def body(group: NativeGroup) -> None:
        if group.rank == 1:
            save_a_checkpoint(lambda: "this rank is done and waits until ranks 1 are, for 20 s at most" in caplog.text)

    run_job(impatient(2), body)


def test_by_default_a_pause_of_75_seconds_ends_nothing() -> None:
    given = MemberConfig(rank=0, deployment=Deployment(num_workers=2), conductor_port=1)
    assert given.stall_s < 75 < given.timeout_s / 10


def test_who_skips_a_collective_is_blamed_by_every_rank_in_the_same_words() -> None:
    def body(group: NativeGroup) -> JobError:
        group.push_pull("a", np.ones(1), step=0)
        group.push_pull("b", np.ones(1), step=0)
        with pytest.raises(JobError) as caught:
            group.push_pull("b" if group.rank == 1 else "a", np.ones(1), step=1)
        return caught.value

    first, *others = run_job(impatient(4, timeout_s=4.0), body)
    assert isinstance(first, DeadlineError)
    assert (first.rank, first.tensor, first.step) == (1, "a", 1)
    assert {str(error) for error in others} == {str(first)}


def test_a_wait_with_a_timeout_of_its_own_ends_alone() -> None:
    def body(group: NativeGroup, waited: threading.Barrier) -> float:
        group.push_pull("w", np.ones(1), step=0)
        if group.rank == 0:
            handle = group.push_pull_async("w", np.ones(1), step=1)
            with pytest.raises(DeadlineError, match=r"not done within 0\.1 s"):
                handle.wait(0.1)
            waited.wait(20.0)
            return float(handle.wait()[0])
        waited.wait(20.0)
        return float(group.push_pull("w", np.ones(1), step=1)[0])

    assert run_job(impatient(2), partial(body, waited=threading.Barrier(2))) == [2.0, 2.0]


def test_who_goes_because_of_another_says_so() -> None:
    """Rank 1 leaves early and rank 0 goes for that reason, with the conductor; rank 2, which computes, hears which."""
    first_is_gone = threading.Event()

    def work(rank: int) -> JobError | None:
        try:
            with NativeGroup(configs[rank]) as group:
                group.push_pull("w", np.ones(1), step=0)
                if rank == 1:
                    return None
                if rank == 2:
                    assert first_is_gone.wait(20.0)
                group.push_pull("w", np.ones(1), step=1)
        except JobError as error:
            first_is_gone.set()
            return error
        return None

    configs = impatient(3)
    first, leaver, last = (future.result(30.0) for future in start_ranks(3, work))
    assert leaver is None
    for error in (first, last):
        assert isinstance(error, ClosedError)
        assert error.rank == 1
        assert "rank 1 left the job before this step" in str(error)


def test_what_ends_a_job_is_not_that_whom_it_names_then_goes() -> None:
    """Rank 1 blames its link to rank 0, which goes when it hears so; rank 2 sees it go before it hears why."""

    def body(group: NativeGroup) -> JobError:
        if group.rank == 1:
            group.session.end(CorruptionError("bytes changed on the link between member 1 and member 0", rank=0))
        assert group.session.member.wait_until_all_left(20.0)
        failure: Any = SimpleNamespace(kind="peer_lost", rank=0, tensor=-1, step=-1, message="member 0 has left")
        return group.session.explain(failure)

    for error in run_job(impatient(3), body):
        assert isinstance(error, CorruptionError)
        assert error.rank == 0


@pytest.mark.parametrize("together", [True, False], ids=["shared memory", "sockets"])
def test_who_was_given_up_is_told_so(together: bool) -> None:
    """A worker is stopped until the others have lost it and gone; then it goes on."""
    port = free_port()

    def work(rank: int) -> JobError:
        made = config(rank, JOINT, port)
        with NativeGroup(replace(made, member=replace(made.member, shared_memory=together))) as group:
            error, _ = add_until_it_fails(group)
            raise error

    with worker_process(2, JOINT, port) as process:
        futures = start_ranks(2, work)
        read_until("20", process)
        process.send_signal(signal.SIGSTOP)
        errors = [future.exception(20.0) for future in futures]
        process.send_signal(signal.SIGCONT)
        assert process.stdout is not None
        last = process.stdout.read().splitlines()[-1]
    assert all(isinstance(error, JobError) and error.rank == 2 for error in errors), errors
    assert last.startswith("PeerLostError: the others gave this rank up: member 2 has been silent towards member")
    assert "or the link between them is broken" in last


# ---- limits ----


def test_a_job_does_not_take_any_number_of_names(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tensor_registry, "MAX_NAMES", 3)

    def body(group: NativeGroup) -> str:
        for number in range(3):
            group.push_pull(f"t{number}", np.ones(1))
        with pytest.raises(InputError) as caught:
            group.push_pull("one more", np.ones(1))
        return str(caught.value)

    assert set(run_job(impatient(2), body)) == {"tensor 'one more': the job has 3 names already; use names again"}
