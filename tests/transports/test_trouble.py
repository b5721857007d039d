"""Trouble: members that die, stop or fail, and what is left behind."""

import contextlib
import ctypes
import multiprocessing
import os
import resource
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from dataclasses import replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from legato.core.shards import Deployment
from legato.errors import ClosedError, JobError, LegatoError, PeerLostError
from legato.testing.native_job import job_configs, run_job
from legato.testing.ports import free_port
from legato.testing.ranks import start_ranks
from legato.transports.declaration import Declaration, Operation
from legato.transports.native.group import NativeGroup
from legato.transports.native.player import EngineConfig
from legato.transports.native.session import NativeConfig, Server
from legato.transports.rendezvous.conductor import Conductor
from tests.leftovers import expect_nothing_beyond, open_files_and_threads
from tests.transports.places import place_ranks
from tests.transports.worker import config

JOINT = Deployment(num_workers=3)
SEPARATE = Deployment(num_workers=3, num_servers=1, workers_serve=False)


@contextlib.contextmanager
def worker_process(rank: int, deployment: Deployment, port: int, *more: str) -> Iterator[subprocess.Popen[str]]:
    arguments = [rank, deployment.num_workers, deployment.num_servers, port, *more]
    with subprocess.Popen(
        [sys.executable, "-m", "tests.transports.worker", *map(str, arguments)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parents[2],
    ) as process:
        try:
            read_until("started", process)  # before the others' patience begins: on a busy machine that takes seconds
            yield process
        finally:
            process.kill()


def read_until(line: str, process: subprocess.Popen[str]) -> None:
    assert process.stdout is not None
    said = [""]
    while said[-1] != f"{line}\n":
        said.append(process.stdout.readline())
        assert said[-1], f"it ended after {said[-3:]}"


def add_until_it_fails(group: NativeGroup) -> tuple[JobError, float]:
    """The error that ends the steps, and when it came."""
    for step in range(1_000_000):
        value = np.ones(100_000, np.float32)
        try:
            group.push_pull("ones", value, step=step)
        except JobError as error:
            return error, time.monotonic()
        assert (value == group.size).all(), "a sum with a missing contribution"
    raise AssertionError("it never failed")


def errors_of_the_others(deployment: Deployment, sent: signal.Signals) -> list[JobError]:
    """What ranks 0 and 1 hear within ten heartbeats after rank 2, in the middle of training, gets a signal."""
    port = free_port()

    def work(member: int) -> tuple[JobError, float]:
        rank = member if member < 2 else None
        if rank is None:
            with Server(config(None, deployment, port)) as server, pytest.raises(JobError):
                server.wait(30.0)
            return JobError("a server"), 0.0
        with NativeGroup(config(rank, deployment, port)) as group:
            return add_until_it_fails(group)

    with worker_process(2, deployment, port) as process:
        futures: list[Future[tuple[JobError, float]]] = start_ranks(deployment.num_members - 1, work)
        read_until("20", process)
        sent_s = time.monotonic()
        process.send_signal(sent)
        outcomes = [future.result(20.0) for future in futures]
        process.send_signal(signal.SIGCONT)
    assert all(heard_s - sent_s < 10.0 for _, heard_s in outcomes[:2])
    return [error for error, _ in outcomes[:2]]


@pytest.mark.parametrize("deployment", [JOINT, SEPARATE], ids=["joint", "separate"])
@pytest.mark.parametrize("sent", [signal.SIGKILL, signal.SIGSTOP])
@pytest.mark.parametrize("together", [True, False], ids=["on one host", "on a host of its own"])
def test_a_worker_that_dies_or_stops_is_named_on_every_rank(
    deployment: Deployment, sent: signal.Signals, together: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not together:
        place_ranks(monkeypatch, lambda _: 0)  # but for the process, which knows better
    for error in errors_of_the_others(deployment, sent):
        assert isinstance(error, PeerLostError)
        assert error.rank == 2, error
        assert "rank 2" in str(error)


@pytest.mark.parametrize("rank", [0, 2])
@pytest.mark.parametrize("together", [True, False], ids=["on one host", "on a host of its own"])
def test_a_child_does_not_hide_its_parents_death(rank: int, together: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """The child lives on. The others hear it from the connection that ends, not from a silence that grows too long."""
    if not together:
        place_ranks(monkeypatch, lambda _: 0)
    port = free_port()
    others = [other for other in range(3) if other != rank]

    def work(place: int) -> JobError:
        try:
            with NativeGroup(config(others[place], JOINT, port)) as group:
                return add_until_it_fails(group)[0]
        except PeerLostError as error:  # gone before this rank has heard that all are connected
            return error

    with worker_process(rank, JOINT, port, "--with-child") as process:
        futures = start_ranks(2, work)
        assert process.stdout is not None
        said = iter(process.stdout.readline, "")  # its own steps, and when its child has had its turn, what that says
        assert any("child: the group belongs to the process that joined the job" in line for line in said)
        process.kill()
        for future in futures:
            error = future.result(20.0)
            assert isinstance(error, PeerLostError)
            assert error.rank == rank
            assert "silent" not in str(error)


def test_a_dataloader_forks_its_workers_while_ranks_train() -> None:
    """Its processes come and go with every epoch, each of which ends only when they have."""
    data = pytest.importorskip("torch.utils.data")
    begun = open_files_and_threads()

    def body(group: NativeGroup) -> float:
        total = 0.0
        for _ in range(2):
            for batch in data.DataLoader(range(8), batch_size=4, num_workers=2, multiprocessing_context="fork"):
                value = batch.numpy().astype(np.float32)
                total += float(group.push_pull("batch", value).sum())
        return total

    assert run_job(job_configs(Deployment(num_workers=2)), body) == [4 * 28.0] * 2
    expect_nothing_beyond(begun)


BIG = Declaration(name="big", shape=(1 << 25,), dtype="float16", operation=Operation.ALL_REDUCE)
"""Two parts, one on each rank, whose sums need more memory than the allocator has set aside."""


def coarse(rank: int, port: int) -> NativeConfig:
    """The engine's own heartbeat: to write so much memory may take seconds on a busy machine."""
    known = config(rank, Deployment(num_workers=2), port)
    return replace(known, partition_bytes=BIG.num_bytes // 2, engine=EngineConfig())


def run_short_of_memory(port: int, outcome: Connection) -> None:
    """A rank that has no memory left for the sums that others ask of it."""
    with NativeGroup(coarse(1, port)) as group:
        group.declare([BIG])
        pages = int(Path("/proc/self/statm").read_text().split()[0])
        _, hard = resource.getrlimit(resource.RLIMIT_AS)
        resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + (16 << 20), hard))
        group.barrier()
        try:
            group.barrier()
        except JobError as error:
            outcome.send((type(error), str(error), error.rank))


def test_a_rank_that_runs_out_of_memory_is_named_on_every_rank() -> None:
    port = free_port()
    context = multiprocessing.get_context("spawn")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=run_short_of_memory, args=(port, sender))
    process.start()
    try:
        with NativeGroup(coarse(0, port)) as group:
            group.declare([BIG])
            group.barrier()
            with pytest.raises(JobError, match="member 1: std::bad_alloc") as caught:
                group.push_pull("big", np.ones(BIG.shape, np.float16))
            assert caught.value.rank == 1
        assert receiver.poll(20.0)
        kind, text, rank = receiver.recv()
        assert (kind, rank) == (JobError, 1)
        assert "member 1: std::bad_alloc" in text
        process.join(20.0)
        assert process.exitcode == 0
    finally:
        process.kill()
        process.join()


MEMINFO = "MemTotal: {total} kB\nMemFree: 20000 kB\nMemAvailable: 20000 kB\n"


def sum_where_little_is_available(port: int, meminfo: Path, outcome: Connection) -> None:
    """A rank whose kernel says so."""
    libc = ctypes.CDLL(None, use_errno=True)
    new_mounts, private, bind = 0x20000, 0x44000, 0x1000
    if (
        libc.unshare(new_mounts)
        or libc.mount(None, b"/", None, private, None)
        or libc.mount(bytes(meminfo), b"/proc/meminfo", None, bind, None)
    ):
        outcome.send(None)
        return
    with NativeGroup(coarse(1, port)) as group:
        group.declare([BIG])
        try:
            outcome.send(float(group.push_pull("big", np.ones(BIG.shape, np.float16)).max()))
        except JobError as error:
            outcome.send(str(error))


@pytest.mark.parametrize("total", [64 << 20, 256 << 10], ids=["64 GiB", "256 MiB"])
def test_sums_that_do_not_fill_the_memory_are_not_refused_for_want_of_it(total: int, tmp_path: Path) -> None:
    """64 MB of sums are nothing of 64 GiB, whoever has the rest, and a quarter of 256 MiB."""
    if os.geteuid():
        pytest.skip("only root may give a process another /proc/meminfo")
    (tmp_path / "meminfo").write_text(MEMINFO.format(total=total))
    port = free_port()
    context = multiprocessing.get_context("spawn")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=sum_where_little_is_available, args=(port, tmp_path / "meminfo", sender))
    process.start()
    try:
        with NativeGroup(coarse(0, port)) as group:
            group.declare([BIG])
            if total < 64 << 20:
                with pytest.raises(JobError, match="member 1: its machine has no memory left for more sums"):
                    group.push_pull("big", np.ones(BIG.shape, np.float16))
            else:
                assert group.push_pull("big", np.ones(BIG.shape, np.float16)).max() == 2
        assert receiver.poll(20.0)
        said = receiver.recv()
        assert said == 2 if isinstance(said, float) else "no memory left" in said
        process.join(20.0)
    finally:
        process.kill()
        process.join()


MEMORY = Path("/sys/fs/cgroup/memory")
VAST = Declaration(name="vast", shape=(1 << 29,), dtype="float16", operation=Operation.ALL_REDUCE)
"""1 GB, of which half is summed on each rank, in 1 GB of float32."""
LIMIT_BYTES = 600 << 20


@contextlib.contextmanager
def limited_memory(limit_bytes: int) -> Iterator[Path]:
    """A group of processes that the kernel ends when they take more."""
    folder = MEMORY / f"legato-{os.getpid()}"
    try:
        folder.mkdir()
    except OSError:
        pytest.skip("this user may not limit memory by a cgroup of version 1")
    try:
        (folder / "memory.limit_in_bytes").write_text(str(limit_bytes))
        yield folder
    finally:
        folder.rmdir()


def sum_beyond_the_limit(port: int, folder: Path, outcome: Connection) -> None:
    (folder / "cgroup.procs").write_text(str(os.getpid()))
    with NativeGroup(config(1, Deployment(num_workers=2), port)) as group:
        group.declare([VAST])
        try:
            group.barrier()
            group.barrier()
        except JobError as error:
            outcome.send((type(error), str(error), error.rank))


def test_sums_that_memory_cannot_hold_are_refused_before_the_kernel_ends_anybody() -> None:
    """Pages are taken when contributions come, so no allocation fails: a rank looks before it takes more of them."""
    port = free_port()
    context = multiprocessing.get_context("spawn")
    receiver, sender = context.Pipe(duplex=False)
    with limited_memory(LIMIT_BYTES) as folder:
        process = context.Process(target=sum_beyond_the_limit, args=(port, folder, sender))
        process.start()
        try:
            with NativeGroup(config(0, Deployment(num_workers=2), port)) as group:
                group.declare([VAST])
                group.barrier()
                with pytest.raises(JobError, match="member 1: its machine has no memory left for more sums") as caught:
                    group.push_pull("vast", np.zeros(VAST.shape, np.float16))
                assert caught.value.rank == 1
            assert receiver.poll(20.0)
            kind, text, rank = receiver.recv()
            assert (kind, rank) == (JobError, 1)
            assert "give that member more memory" in text
            process.join(20.0)
            assert process.exitcode == 0, "the kernel has ended it"
        finally:
            process.kill()
            process.join()


def test_the_conductors_death_is_heard_by_all() -> None:
    port = free_port()
    with worker_process(0, JOINT, port) as conducting:

        def work(place: int) -> JobError:
            with NativeGroup(config(place + 1, JOINT, port)) as group:
                return add_until_it_fails(group)[0]

        futures = start_ranks(2, work)
        read_until("20", conducting)
        conducting.kill()
        for future in futures:
            error = future.result(10.0)
            assert isinstance(error, PeerLostError)
            assert error.rank == 0


def test_a_servers_death_is_heard_by_all() -> None:
    configs = job_configs(Deployment(num_workers=2, num_servers=1, workers_serve=False))
    begun = threading.Barrier(3, timeout=20.0)

    def work(member: int) -> JobError | None:
        if member == 2:
            server = Server(configs[2])
            begun.wait()
            server.close()
            return None
        with NativeGroup(configs[member]) as group:
            begun.wait()
            return add_until_it_fails(group)[0]

    for future in start_ranks(3, work)[:2]:
        error = future.result(20.0)
        assert isinstance(error, PeerLostError | ClosedError)
        assert error.rank == 2
        assert "server 2" in str(error)


def test_an_exception_on_one_rank_ends_the_others_wait() -> None:
    configs = job_configs(Deployment(num_workers=2))

    def work(rank: int) -> None:
        with NativeGroup(configs[rank]) as group:
            group.push_pull("t", np.ones(10), step=0)
            if rank == 1:
                raise RuntimeError("a defect of the training script")
            group.push_pull("t", np.ones(10), step=1)

    first, second = start_ranks(2, work)
    assert isinstance(second.exception(10.0), RuntimeError)
    assert isinstance(first.exception(10.0), PeerLostError | ClosedError)


def stall(conductor: Conductor, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have it look at nothing more until it is to close, or for a moment; returns when it does not look."""
    stalled, closing = threading.Event(), threading.Event()
    keep_time, close = conductor._keep_time, conductor.close

    def keep_time_late() -> None:
        if not stalled.is_set():
            stalled.set()
            closing.wait(0.3)
        keep_time()

    def close_it() -> None:
        closing.set()
        close()

    monkeypatch.setattr(conductor, "_keep_time", keep_time_late)
    monkeypatch.setattr(conductor, "close", close_it)
    conductor._wake()
    assert stalled.wait(20.0)


@pytest.mark.parametrize("first", [0, 1])
def test_a_rank_that_has_lost_another_says_so_before_it_leaves(first: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Or the others, who have not noticed yet, would hear that it is the one that is gone.

    Rank 2 leaves by its engine alone, of which the conductor hears nothing. One rank finds out, and goes; if it is
    rank 0, so does the conductor, who must have passed it on before.
    """
    configs = job_configs(Deployment(num_workers=3))
    first_is_gone, done = threading.Event(), threading.Event()
    large = np.ones(1 << 20, np.float32)  # parts of it on every rank

    def work(rank: int) -> LegatoError | None:
        with NativeGroup(configs[rank]) as group:
            group.declare([Declaration(name="t", shape=large.shape, dtype="float32")])
            if rank == 2:
                group.session.player.close()
                assert done.wait(20.0)
            elif rank == first:
                with pytest.raises(PeerLostError, match="rank 2"):
                    group.push_pull("t", large.copy())
                if group.session._conductor is not None:
                    stall(group.session._conductor, monkeypatch)
                group.close()
                first_is_gone.set()
            else:
                assert first_is_gone.wait(20.0)
                assert group.session.member.wait_until_all_left(20.0)
                done.set()
                return group.session.member.error
            return None

    heard = [future.result(30.0) for future in start_ranks(3, work)][1 - first]
    assert isinstance(heard, PeerLostError)
    assert heard.rank == 2, heard


def leave_after(num_steps: Sequence[int], tensor: Declaration) -> list[JobError | None]:
    """What ends each rank, if not its last step, when ranks take so many steps of a sum and leave."""
    configs = job_configs(Deployment(num_workers=len(num_steps)))

    def work(rank: int) -> JobError | None:
        with NativeGroup(configs[rank]) as group:
            group.declare([tensor])
            try:
                for step in range(num_steps[rank]):
                    group.push_pull(tensor.name, np.ones(3, np.float32), step=step)
            except JobError as error:
                return error
            return None

    return [future.result(15.0) for future in start_ranks(len(num_steps), work)]


def sum_of_steps(**changes: Any) -> Declaration:
    return Declaration(name="t", shape=(3,), dtype="float32", **changes)


def test_who_leaves_before_the_others_is_named_at_once() -> None:
    """The timeout of a wait is longer than `leave_after` has patience."""
    first, leaver, third = leave_after([5, 3, 4], sum_of_steps())
    assert leaver is None
    for error in (first, third):
        assert isinstance(error, ClosedError)
        assert (error.rank, error.tensor, error.step) == (1, "t", 3)
        assert str(error).startswith("tensor 't', step 3: rank 1 left the job before this step; see its log")


def test_who_leaves_together_with_the_others_disturbs_nobody() -> None:
    assert leave_after([3, 3, 3], sum_of_steps()) == [None] * 3


def test_a_step_with_backups_goes_on_without_so_many_that_have_left() -> None:
    tensor = sum_of_steps(operation=Operation.ALL_REDUCE, backups=1)
    assert leave_after([5, 3, 5], tensor) == [None] * 3
    error, *_ = leave_after([5, 3, 3], tensor)
    assert isinstance(error, ClosedError)
    assert "step 3: rank 1, rank 2 left the job" in str(error)


def test_a_rank_may_be_ahead_of_one_that_has_left_by_its_staleness() -> None:
    error, leaver = leave_after([9, 3], sum_of_steps(operation=Operation.ACCUMULATE, staleness=2))
    assert leaver is None
    assert isinstance(error, ClosedError)
    assert (error.rank, error.step) == (1, 5)


def test_pending_operations_end_when_the_group_is_closed() -> None:
    configs = job_configs(Deployment(num_workers=2))
    asked = threading.Barrier(2, timeout=20.0)

    def work(rank: int) -> None:
        with NativeGroup(configs[rank]) as group:
            undeclared = group.push_pull_async(f"only on {rank}", np.ones(3))
            asked.wait()
            group.close(now=True)
            with pytest.raises(JobError):
                undeclared.wait(5.0)

    for future in start_ranks(2, work):
        future.result(10.0)


def test_nothing_is_left_behind() -> None:
    """File descriptors, threads and processes are the same before and after many jobs, also after failed ones."""

    def one_job(deployment: Deployment) -> None:
        run_job(job_configs(deployment), lambda group: group.push_pull("t", np.ones(1000)))

    def one_failure() -> None:
        configs = job_configs(Deployment(num_workers=2), join_timeout_s=0.1)
        with pytest.raises(JobError):
            NativeGroup(configs[0])

    one_job(JOINT)
    one_failure()
    before = open_files_and_threads()
    for _ in range(3):
        one_job(JOINT)
        one_job(Deployment(num_workers=2, num_servers=1))
        one_failure()
    expect_nothing_beyond(before)
    assert not [thread.name for thread in threading.enumerate() if thread.name.startswith("legato")]
