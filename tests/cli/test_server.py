"""`legato server` as a process: it serves, says who came and went, and ends as it should."""

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from legato.cli import main
from legato.core.shards import Deployment
from legato.testing.native_job import job_configs
from legato.testing.ports import free_port
from legato.testing.ranks import start_ranks
from legato.transports.native.group import NativeGroup
from legato.transports.native.session import NativeConfig
from legato.transports.rendezvous.conductor import Conductor
from legato.transports.rendezvous.join import JoinConfig

SEPARATE = Deployment(num_workers=2, num_servers=1, workers_serve=False)


@contextlib.contextmanager
def server_process(*arguments: str, **environ: str) -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen(
        [sys.executable, "-c", "import sys, legato.cli; sys.exit(legato.cli.main())", "server", *arguments],
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, **environ},
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def workers(configs: list[NativeConfig]) -> list[NativeGroup]:
    return [future.result(20.0) for future in start_ranks(2, lambda rank: NativeGroup(configs[rank]))]


def add_and_leave(groups: list[NativeGroup]) -> None:
    def work(rank: int) -> None:
        with groups[rank] as group:
            assert (group.push_pull("t", np.full(100_000, rank, np.float32)) == 1.0).all()

    for future in start_ranks(2, work):
        future.result(20.0)


def test_it_serves_until_the_workers_have_left(tmp_path: Path) -> None:
    key_file = tmp_path / "key"
    key_file.touch(mode=0o600)
    key_file.write_text("the secret they share\n")
    configs = job_configs(SEPARATE, join=JoinConfig(key=b"the secret they share"))
    port = configs[0].member.conductor_port
    listen = free_port()
    options = ["--conductor", f"127.0.0.1:{port}", "--workers", "2", "--port", str(listen), "--threads", "2"]
    with server_process(*options, "--key-file", str(key_file)) as process:
        add_and_leave(workers(configs))
        _, errors = process.communicate(timeout=20.0)
    assert process.returncode == 0
    assert "member 2 of a job of 3: 0 at 127.0.0.1:" in errors
    assert f"2 at 127.0.0.1:{listen}" in errors
    assert "serving 2 workers as member 2" in errors
    assert "rank 0 left" in errors
    assert "rank 1 left" in errors
    assert "every worker has left" in errors


def test_it_reads_the_launchers_variables() -> None:
    configs = job_configs(SEPARATE)
    environ = {
        "DMLC_ROLE": "server",
        "DMLC_NUM_WORKER": "2",
        "DMLC_NUM_SERVER": "1",
        "DMLC_PS_ROOT_URI": "127.0.0.1",
        "DMLC_PS_ROOT_PORT": str(configs[0].member.conductor_port),
    }
    with server_process(**environ) as process:
        add_and_leave(workers(configs))
        assert process.wait(20.0) == 0


@pytest.mark.parametrize(("sent", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_signal_ends_it_while_it_serves(sent: signal.Signals, code: int) -> None:
    configs = job_configs(SEPARATE)
    port = configs[0].member.conductor_port
    with server_process("--conductor", f"127.0.0.1:{port}", "--workers", "2") as process:
        groups = workers(configs)
        process.send_signal(sent)
        _, errors = process.communicate(timeout=20.0)
        for group in groups:
            group.close(now=True)
    assert process.returncode == code
    assert "Traceback" not in errors
    assert [*Path("/dev/shm").glob("*legato*")] == []


@pytest.mark.parametrize("has_conductor", [True, False])
@pytest.mark.parametrize(("sent", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_signal_ends_it_while_it_waits_for_the_others(sent: signal.Signals, code: int, has_conductor: bool) -> None:
    config = job_configs(SEPARATE, join_timeout_s=60.0)[0]
    port = config.member.conductor_port
    with contextlib.ExitStack() as stack:
        if has_conductor:
            conductor = Conductor(config.member, config.common())
            stack.callback(conductor.close)
        process = stack.enter_context(server_process("--conductor", f"127.0.0.1:{port}", "--workers", "2"))
        assert process.stderr is not None
        assert f"looking for the conductor at 127.0.0.1:{port}" in process.stderr.readline()
        if has_conductor:
            assert "waiting for the other members" in process.stderr.readline()
        process.send_signal(sent)
        _, errors = process.communicate(timeout=20.0)
    assert process.returncode == code
    assert errors == ""


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--conductor", "h:p", "--workers", "1"], "conductor is 'h:p'; accepted is host:port, host or :port"),
        (["--conductor", "127.0.0.1:1"], "WORLD_SIZE is not set; accepted is the number of workers"),
        (["--workers", "0"], "Invalid value for '--workers'"),
        (["--workers", "1", "--key-file", "/nowhere/key"], "--key-file is '/nowhere/key', which cannot be read"),
    ],
)
def test_a_mistake_gets_one_line(arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["server", *arguments]) == 2
    error = capsys.readouterr().err
    assert said in error
    assert error.count("\n") == 1


def test_beyond_loopback_it_needs_a_key(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["server", "--workers", "1", "--conductor", "192.0.2.2:4000"]) == 2
    assert "there is no key: set LEGATO_KEY or LEGATO_KEY_FILE" in capsys.readouterr().err
