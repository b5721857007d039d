"""`legato run`: ranks by torchrun's agent, servers, hosts; the first failure is said once, and nothing is left."""

import contextlib
import signal
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from legato.cli import main
from legato.errors import InputError
from legato.launch.byteps import machine_of
from legato.launch.failure import UNREACHED, Failure, ended, first
from legato.launch.hosts import Host, parse_hosts
from legato.testing.ports import free_port
from legato.torch.torchrun import run_by
from tests.cli.folder import Folder
from tests.programs import Programs

HOROVOD = """
import sys
import torch
import horovod.torch as hvd

hvd.init()
total = hvd.allreduce(torch.ones(3), op=hvd.Sum)
print(f"{hvd.rank()} of {hvd.size()}: {total.tolist()} {sys.argv[1:]}\\n", end="", flush=True)
hvd.shutdown()
"""
SCRIPT = """
import os, signal, sys
import numpy as np
from legato.job import join

def fail(how):
    if how == "raise":
        raise ValueError("it went wrong")
    if how == "exit":
        sys.exit(7)
    os.kill(os.getpid(), signal.SIGKILL)

with join() as job:
    total = job.group.push_pull("x", np.full(3, job.rank + 1.0, np.float32))
    print(f"{job.rank} of {job.size}, {job.settings.num_servers} servers: {total.tolist()}\\n", end="", flush=True)
    job.group.barrier()  # both have said so, whatever happens next
    if sys.argv[1:] and job.rank == 1:
        fail(sys.argv[1])
    if sys.argv[1:]:
        job.group.push_pull("x", np.ones(3, np.float32))  # rank 1 will never join in
"""
"""Needs no torch in ranks, as scripts of other frameworks do not."""


@pytest.fixture
def folder(tmp_path: Path, programs: Programs) -> Folder:
    return Folder(tmp_path, SCRIPT, programs)


@contextlib.contextmanager
def busy_port() -> Iterator[int]:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        yield listener.getsockname()[1]


HERE = socket.gethostname()


# ---- what works ----


def test_a_script_written_for_horovod_runs_on_two_ranks(folder: Folder) -> None:
    folder.script.write_text(HOROVOD)
    command = ("--as", "horovod", "--standalone", "--nproc-per-node", "2", "train.py", "--as", "it", "--is")
    code, output, errors = folder.run(*command)
    assert code == 0, errors
    assert output == [f"{rank} of 2: [2.0, 2.0, 2.0] ['--as', 'it', '--is']" for rank in range(2)]


def test_bpslaunchs_environment(folder: Folder) -> None:
    """The same command on every machine; DMLC_ROLE says what it does there."""
    environ = {
        "DMLC_NUM_WORKER": "1",
        "DMLC_NUM_SERVER": "1",
        "DMLC_PS_ROOT_URI": "127.0.0.1",
        "DMLC_PS_ROOT_PORT": str(free_port()),
        "BYTEPS_LOCAL_SIZE": "2",
    }
    command = ("python", "train.py")
    with folder.start(*command, **environ, DMLC_ROLE="server") as server:
        with folder.start(*command, **environ, DMLC_ROLE="worker") as worker:
            output, errors = worker.communicate(timeout=100)
        assert worker.returncode == 0, errors
        assert sorted(output.splitlines()) == [f"{rank} of 2, 1 servers: [3.0, 3.0, 3.0]" for rank in range(2)]
        server.communicate(timeout=20)
        assert server.returncode == 0
    assert folder.left() == []


def test_several_hosts_from_one(folder: Folder) -> None:
    """Hosts by a remote shell, which is a stand-in here: it forgets the host and runs the command on this one."""
    shell = folder.path / "shell"
    shell.write_text('#!/bin/sh\nshift\nexec sh -c "$*"\n')
    shell.chmod(0o700)
    hosts = ("--remote-shell", str(shell), "-H", "localhost:1,127.0.0.2:3", "-np", "2")
    port = ("--master-port", str(free_port()))
    code, output, errors = folder.run(*hosts, *port, "--servers", "1", "python", "train.py", "raise")
    assert output == [f"{rank} of 2, 1 servers: [3.0, 3.0, 3.0]" for rank in range(2)]
    assert (code, errors[-1]) == (1, f"legato: rank 1 on {HERE} failed: ValueError: it went wrong")
    assert sum(line.startswith("Traceback") for line in errors) == 1


# ---- what fails ----


@pytest.mark.parametrize(
    ("how", "code", "said"),
    [
        ("raise", 1, "ValueError: it went wrong"),
        ("exit", 7, "exit code 7"),
        ("kill", 128 + signal.SIGKILL, "killed by signal SIGKILL"),
    ],
)
def test_a_rank_that_fails_is_named_once_and_the_rest_end(how: str, code: int, said: str, folder: Folder) -> None:
    found, output, errors = folder.run("--nproc-per-node", "2", "--servers", "1", "train.py", how)
    assert output == [f"{rank} of 2, 1 servers: [3.0, 3.0, 3.0]" for rank in range(2)]
    errors = [line for line in errors if " joined (waiting at " not in line]  # said where it takes seconds to start
    assert (found, errors[-1]) == (code, f"legato: rank 1 on {HERE} failed: {said}")
    if how != "raise":
        assert len(errors) == 1
        return
    assert errors[0] == "Traceback (most recent call last):"
    assert errors[1].strip().startswith('File "train.py", line')
    assert errors[-2] == "ValueError: it went wrong"
    assert sum(line.startswith("Traceback") for line in errors) == 1


def test_a_host_that_is_not_there(folder: Folder) -> None:
    port = str(free_port())
    code, output, errors = folder.run("-H", f"{HERE}:1,nowhere.invalid:1", "--master-port", port, "train.py")
    assert (code, output, len(errors)) == (UNREACHED, [], 1)
    assert errors[0].startswith("legato: host nowhere.invalid failed: it cannot be reached (ssh: ")


def test_a_host_that_does_not_come(folder: Folder) -> None:
    port = free_port()
    key = {"LEGATO_KEY": "the secret they share", "LEGATO_JOIN_TIMEOUT_S": "2"}
    code, output, errors = folder.run("--nnodes", "2", "--master-port", str(port), "train.py", **key)
    assert (code, output, len(errors)) == (UNREACHED, [], 1)
    assert f"2 hosts did not come together at 127.0.0.1:{port} within 2 s" in errors[0]


def test_a_port_that_is_taken(folder: Folder) -> None:
    with busy_port() as port:
        code, output, errors = folder.run("--nproc-per-node", "2", "--master-port", str(port), "train.py")
    assert (code, output) == (2, [])
    assert errors == [f"legato: port {port} of this host is in use; give another with --master-port"]


def test_a_conductors_port_that_is_taken(folder: Folder) -> None:
    with busy_port() as port:
        conductor = f"127.0.0.1:{port}"
        code, output, errors = folder.run("--nproc-per-node", "2", "train.py", LEGATO_CONDUCTOR=conductor)
    assert (code, output, len(errors)) == (1, [], 1)
    assert errors[0].startswith(f"legato: rank 0 on {HERE} failed: InputError: cannot listen at {conductor} (Address")


def test_a_key_that_is_not_the_jobs(folder: Folder) -> None:
    command = ("--nnodes", "2", "--master-port", str(free_port()), "train.py")
    environ = {"LEGATO_JOIN_TIMEOUT_S": "6"}
    with folder.start("--node-rank", "1", *command, **environ, LEGATO_KEY="not the secret they share") as stranger:
        with folder.start(*command, **environ, LEGATO_KEY="the secret they share") as first_host:
            _, errors = first_host.communicate(timeout=100)
        _, refused = stranger.communicate(timeout=100)
    assert refused == (
        f"legato: rank 1 on {HERE} failed: SecurityError: refused: the keys differ: LEGATO_KEY or LEGATO_KEY_FILE must "
        "hold the same secret on every member\n"
    )
    assert errors.splitlines()[-1] == (
        f"legato: rank 0 on {HERE} failed: DeadlineError: 1/2 workers joined, missing 1 within 6 s"
    )
    assert (stranger.returncode, first_host.returncode) == (1, 1)
    assert folder.left() == []


def test_a_signal_ends_all(folder: Folder) -> None:
    folder.script.write_text("import signal\nprint('here\\n', end='', flush=True)\nsignal.pause()\n")
    with folder.start("--nproc-per-node", "2", "--servers", "1", "train.py") as process:
        assert [process.stdout.readline() for _ in range(2)] == ["here\n"] * 2
        process.terminate()
        process.communicate(timeout=60)
    assert process.returncode == 128 + signal.SIGTERM
    assert folder.left() == []


def test_a_server_that_is_lost(folder: Folder) -> None:
    """The ranks may not notice, or not in this step."""
    folder.script.write_text(
        "import os, signal\n"
        "from pathlib import Path\n"
        "for each in Path('/proc').glob('[0-9]*'):\n"
        "    if (each / 'cmdline').exists() and b'legato.cli\\0server' in (each / 'cmdline').read_bytes():\n"
        "        if os.environ['OF_TEST'].encode() in (each / 'environ').read_bytes():\n"
        "            os.kill(int(each.name), signal.SIGKILL)\n"
        "signal.pause()\n"
    )
    code, _, errors = folder.run("--servers", "1", "train.py")
    assert (code, errors) == (137, [f"legato: server 0 on {HERE} failed: killed by signal SIGKILL"])


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "there is nothing to run; give a script"),
        (["-np", "2", "--nproc-per-node", "2", "a.py"], "-np and --nproc-per-node are both given"),
        (["-H", "a:x", "a.py"], "--hosts is 'a:x'; accepted are names with their numbers of ranks"),
        (["-H", "localhost,b", "a.py"], "--hosts begins with localhost, where b cannot reach it; give its name"),
        (["a.py"], "LEGATO_THREAD is not a variable of legato; did you mean LEGATO_THREADS?"),
    ],
)
def test_a_mistake_gets_one_line(
    arguments: list[str], said: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("LEGATO_THREAD", "1")
    assert main(["run", *arguments]) == 2
    error = capsys.readouterr().err
    assert said in error
    assert error.count("\n") == 1


# ---- the pieces ----


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (["--nproc-per-node", "2", "a.py", "-m", "b"], ["--nproc-per-node", "2", "-m", "it", "x", "a.py", "-m", "b"]),
        (["--nnodes=2", "-m", "package.a", "1"], ["--nnodes=2", "-m", "it", "x", "-m", "package.a", "1"]),
        (["a.py"], ["-m", "it", "x", "a.py"]),
    ],
)
def test_only_the_script_changes_its_place(given: list[str], expected: list[str]) -> None:
    assert run_by(["it", "x"], given) == expected


def test_what_is_not_python_is_refused() -> None:
    with pytest.raises(InputError, match="--no-python: it runs Python scripts"):
        run_by(["it"], ["--no-python", "./binary"])


def test_ranks_fill_hosts_in_turn() -> None:
    assert parse_hosts("a:2,b", None) == [Host("a", 2), Host("b", 1)]
    assert parse_hosts("a:2,b:2,c:2", 3) == [Host("a", 2), Host("b", 1)]
    with pytest.raises(InputError, match="-np is 4, but --hosts a:2,b has room for 3"):
        parse_hosts("a:2,b", 4)


def test_what_others_follow_from_comes_first() -> None:
    noticed = Failure(who="rank 0", exit_code=1, what="PeerLostError", is_consequence=True, time_ns=1)
    raised = Failure(who="rank 1", exit_code=1, what="ValueError", time_ns=3)
    later = Failure(who="rank 2", exit_code=1, what="ValueError", time_ns=4)
    killed, closed = ended("rank 3", -signal.SIGSEGV), ended("rank 4", -signal.SIGTERM)
    assert first([noticed, later, raised]) is raised
    assert first([noticed, raised, killed, closed]) is killed
    assert first([closed, noticed]) is noticed
    assert first([]) is None
    assert (killed.what, killed.exit_code) == ("killed by signal SIGSEGV", 139)
    assert Failure.from_json(raised.json()) == raised


def test_a_machine_of_byteps() -> None:
    environ = {"DMLC_ROLE": "worker", "DMLC_NUM_WORKER": "2", "DMLC_WORKER_ID": "1", "DMLC_PS_ROOT_URI": "a"}
    machine = machine_of({**environ, "DMLC_PS_ROOT_PORT": "4000", "NVIDIA_VISIBLE_DEVICES": "0,1,2"})
    assert machine is not None
    assert (machine.number, machine.num_machines, machine.num_ranks) == (1, 2, 3)
    assert (machine.address, machine.port) == ("a", 3000)
    assert machine_of({}) is None
    with pytest.raises(InputError, match="DMLC_PS_ROOT_URI is not set"):
        machine_of({**environ, "DMLC_PS_ROOT_URI": ""})
