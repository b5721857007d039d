"""`legato run --min --max`: ranks that fail start again, and the job ends when too few are left."""

import os
import signal
import socket
from pathlib import Path

import pytest

from legato.cli import main
from legato.launch.failure import TOO_FEW
from tests.cli.folder import Folder
from tests.programs import Programs

HERE = socket.gethostname()
BEGIN = """
import os, signal, subprocess, sys
from pathlib import Path

rank = int(os.environ["RANK"])
turn = len(list(Path(".").glob(f"turn-{rank}-*")))
Path(f"turn-{rank}-{turn}").touch()
print(f"rank {rank} turn {turn}\\n", end="")
"""
"""Every script counts how often each of its ranks has started, and says so in one piece. None joins a job."""
MEET = "Path('pipe').write_text('here') if rank == 1 else Path('pipe').read_text()\n"
"""As ranks of a job do: none is done before both have come so far."""
FAIL = {
    "raise": "raise ValueError('it went wrong')",
    "exit": "sys.exit(7)",
    "kill": "subprocess.Popen(['sleep', '1000']); os.kill(os.getpid(), signal.SIGKILL)",
}
SAID = {"raise": "ValueError: it went wrong", "exit": "exit code 7", "kill": "killed by signal SIGKILL"}


@pytest.fixture
def folder(tmp_path: Path, programs: Programs) -> Folder:
    os.mkfifo(tmp_path / "pipe")
    return Folder(tmp_path, "", programs)


@pytest.mark.parametrize("how", ["raise", "kill"])
def test_a_rank_that_fails_once_comes_back_alone(how: str, folder: Folder) -> None:
    """Nothing that it had started is left, and it finds the environment that it had."""
    folder.script.write_text(
        f"{BEGIN}\n"
        "names = ('WORLD_SIZE', 'LOCAL_RANK', 'LOCAL_WORLD_SIZE', 'MASTER_ADDR', 'LEGATO_ELASTIC')\n"
        "print(' '.join(os.environ[name] for name in names) + f' {sys.argv[1:]}\\n', end='')\n"
        "for name in ('MASTER_PORT', 'LEGATO_CONDUCTOR', 'LEGATO_KEY', 'LEGATO_MEMBERS_FILE'):\n"
        "    with open(name, 'a') as file:\n"
        "        file.write(os.environ[name] + '\\n')\n"
        "members = Path(os.environ['LEGATO_MEMBERS_FILE'])\n"
        "assert members.parent.stat().st_mode & 0o777 == 0o700 and not members.exists()\n"
        f"if rank == 1 and turn == 0:\n    {FAIL[how]}\n"
        f"{MEET}"
    )
    code, output, errors = folder.run("--min", "1", "--max", "2", "train.py", "--epochs", "2")
    assert code == 0, errors
    assert output == [
        "2 0 2 127.0.0.1 1 ['--epochs', '2']",
        *["2 1 2 127.0.0.1 1 ['--epochs', '2']"] * 2,
        "rank 0 turn 0",
        "rank 1 turn 0",
        "rank 1 turn 1",
    ]
    assert errors[-1] == f"legato: rank 1 on {HERE} failed: {SAID[how]}; it starts again in 0.5 s"
    assert sum(line.startswith("Traceback") for line in errors) == (how == "raise")
    for name in ("MASTER_PORT", "LEGATO_CONDUCTOR", "LEGATO_KEY", "LEGATO_MEMBERS_FILE"):
        values = (folder.path / name).read_text().splitlines()
        assert len(values) == 3
        assert len(set(values)) == 1


def test_a_rank_that_always_fails_is_given_up_and_the_job_with_it(folder: Folder) -> None:
    folder.script.write_text(f"{BEGIN}\nif rank == 1:\n    {FAIL['exit']}\nPath('pipe').read_text()\n")
    code, output, errors = folder.run("--min", "2", "--max", "2", "--restarts", "1", "train.py")
    assert code == TOO_FEW
    assert output == ["rank 0 turn 0", "rank 1 turn 0", "rank 1 turn 1"]
    assert errors == [
        f"legato: rank 1 on {HERE} failed: exit code 7; it starts again in 0.5 s",
        f"legato: rank 1 on {HERE} failed: exit code 7; it is not started again",
        "legato: the job failed: 1 of 2 ranks left; it needs 2 (--min), and restarts are limited to 1 in all "
        "(--restarts)",
    ]


def test_the_job_goes_on_without_a_rank_that_is_given_up(folder: Folder) -> None:
    """Rank 0 reads the end of the pipe when the last one who could write has gone."""
    folder.script.write_text(
        f"{BEGIN}\nif rank:\n    with open('pipe', 'w'):\n        {FAIL['exit']}\nPath('pipe').read_text()\n"
    )
    code, output, errors = folder.run("--min", "1", "--max", "2", "--restarts", "0", "train.py")
    assert (code, output) == (0, ["rank 0 turn 0", "rank 1 turn 0"])
    assert errors == [f"legato: rank 1 on {HERE} failed: exit code 7; it is not started again"]


def test_where_all_are_lost_at_once_the_job_begins_anew(folder: Folder) -> None:
    """Nobody is left of those who are in the members file: it is gone, too."""
    folder.script.write_text(
        f"{BEGIN}\n"
        "members = Path(os.environ['LEGATO_MEMBERS_FILE'])\n"
        "if turn == 0 and rank == 1:\n"
        "    Path('pipe').write_text(str(os.getpid()))\n"
        "    signal.pause()\n"
        "if turn == 0:\n"
        "    other = int(Path('pipe').read_text())\n"
        "    members.write_text('127.0.0.1:1')\n"
        "    os.kill(other, signal.SIGKILL)\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
        "assert not members.exists()\n"
        f"{MEET}"
    )
    code, output, errors = folder.run("--min", "2", "--max", "2", "train.py")
    assert (code, len(errors)) == (0, 2), errors
    assert output == [f"rank {rank} turn {turn}" for rank in range(2) for turn in range(2)]


def test_a_rank_that_waits_for_members_who_are_gone_begins_anew_with_the_others(folder: Folder) -> None:
    """Rank 1 comes back to rank 0, and waits for it; then rank 0 is lost, too."""
    folder.script.write_text(
        f"{BEGIN}\n"
        "members = Path(os.environ['LEGATO_MEMBERS_FILE'])\n"
        "if rank == 0 and turn == 0:\n"
        "    members.write_text('127.0.0.1:1')\n"
        "    os.kill(int(Path('pipe').read_text()), signal.SIGKILL)\n"
        "    Path('pipe').read_text()\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
        "elif turn < 2 and rank == 1:\n"
        "    Path('pipe').write_text(str(os.getpid()))\n"
        "    signal.pause()\n"
        "assert not members.exists()\n"
        f"{MEET}"
    )
    code, output, errors = folder.run("--min", "1", "--max", "2", "train.py")
    assert code == 0, errors
    assert output == [f"rank {rank} turn {turn}" for rank in range(2) for turn in range(2 + rank)]
    assert [line.split(" on ")[0] for line in errors] == ["legato: rank 1", "legato: rank 0"]


@pytest.mark.parametrize("servers", ["0", "1"])
def test_fewer_than_min_end_and_the_job_begins_anew(folder: Folder, servers: str) -> None:
    """A real job: what is left of it says why it cannot go on, and the next one is complete, with its servers."""
    folder.script.write_text(
        f"{BEGIN}\n"
        "import numpy as np\n"
        "from legato.errors import PeerLostError\n"
        "from legato.job import join\n"
        "with join() as job:\n"
        "    total = job.group.push_pull('x', np.ones(1, np.float32))\n"
        "    print(f'{job.rank} of {job.size}: {total.item()}\\n', end='')\n"
        "    if turn == 0 and rank == 0:\n"
        "        job.group.barrier()\n"
        "        os.kill(os.getpid(), signal.SIGKILL)\n"
        "    if turn == 0:\n"
        "        try:\n"
        "            job.group.barrier()\n"
        "            job.group.push_pull('x', np.ones(1, np.float32))\n"
        "        except PeerLostError:\n"
        "            job.regroup()\n"
    )
    code, output, errors = folder.run("--min", "2", "--max", "2", "--servers", servers, "train.py")
    assert code == 0, errors
    assert output[:4] == ["0 of 2: 2.0", "0 of 2: 2.0", "1 of 2: 2.0", "1 of 2: 2.0"]
    assert sum("killed by signal SIGKILL; it starts again in" in line for line in errors) == 1
    assert any("1 workers are left and LEGATO_ELASTIC asks for 2" in line for line in errors)


def test_a_signal_ends_all(folder: Folder) -> None:
    folder.script.write_text(f"{BEGIN}\nsignal.pause()\n")
    with folder.start("--min", "1", "--max", "2", "train.py") as process:
        assert {process.stdout.readline() for _ in range(2)} == {"rank 0 turn 0\n", "rank 1 turn 0\n"}
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=60)
    assert (process.returncode, errors) == (128 + signal.SIGINT, "")
    assert folder.left() == []


def test_a_second_signal_ends_those_who_do_not_end(folder: Folder) -> None:
    folder.script.write_text(
        f"{BEGIN}\nsignal.signal(signal.SIGTERM, lambda *_: print('told', flush=True))\nprint('ready', flush=True)\n"
        "while True:\n    signal.pause()\n"
    )
    with folder.start("--min", "1", "--max", "1", "train.py") as process:
        assert [process.stdout.readline() for _ in range(2)] == ["rank 0 turn 0\n", "ready\n"]
        process.terminate()
        assert process.stdout.readline() == "told\n"
        process.terminate()
        process.communicate(timeout=20)
    assert process.returncode == 128 + signal.SIGTERM
    assert folder.left() == []


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--min", "2", "a.py"], "--min and --max come together"),
        (["--min", "3", "--max", "2", "a.py"], "--min is 3 and --max 2; accepted are numbers of ranks from 1 on"),
        (["--min", "0", "--max", "2", "a.py"], "--min is 0 and --max 2; accepted are numbers of ranks from 1 on"),
        (["--restarts", "2", "a.py"], "--restarts is for elastic jobs: give --min and --max"),
        (["--min", "1", "--max", "2", "-np", "2", "a.py"], "--min and --max are for ranks of this host alone"),
        (["--min", "1", "--max", "2", "-H", "a:1,b:1", "a.py"], "--min and --max are for ranks of this host alone"),
        (["--min", "1", "--max", "2", "--standalone", "a.py"], "--standalone: options of torchrun have no effect"),
    ],
)
def test_a_mistake_gets_one_line(arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", *arguments]) == 2
    error = capsys.readouterr().err
    assert said in error
    assert error.count("\n") == 1
