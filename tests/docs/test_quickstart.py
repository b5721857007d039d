"""docs/quickstart.md, followed to the letter: its script, and its commands from `legato run` on.

`python -m bench.newcomer` follows all of it, from a clone on.
"""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from bench.newcomer import tells_of_a_step
from legato.testing.ports import free_port
from tests.docs.blocks import QUICKSTART, blocks

TIMEOUT_S = 600
LEFT_OUT = ("make ", "python3 -m venv ", ". ", "pip ", "legato run ")
"""`make demo` and `make wheel` have tests of their own, tests/bench/test_demo.py and tests/wheel.py; the plain
`legato run` is the next command without its variable."""
SERVING = "LEGATO_DASHBOARD=8321 "


@pytest.mark.timeout(TIMEOUT_S)
def test_a_newcomer_can_follow_it(tmp_path: Path) -> None:
    [script] = blocks(QUICKSTART, "python")
    (tmp_path / "train.py").write_text(script.text)
    commands = [line for block in blocks(QUICKSTART, "bash") for line in block.text.splitlines()]
    [serving] = (line for line in commands if line.startswith(SERVING))
    printed = [_follow(line, tmp_path) for line in commands if not line.startswith((*LEFT_OUT, SERVING))]
    trained, report, profile, simulated = printed
    losses = [float(line.rsplit(" ", 1)[1]) for line in trained.splitlines() if line.startswith("step ")]
    assert len(losses) == 5
    assert losses[-1] < losses[0]
    assert "run.html" in report
    assert "rank 1" in (tmp_path / "run.html").read_text()
    assert "mine.json" in profile
    assert "wfbp" in simulated
    _watch(serving, tmp_path)


def _environ() -> dict[str, str]:
    scripts = Path(sys.executable).parent
    return {
        **os.environ,
        "PATH": f"{scripts}:{os.environ['PATH']}",
        "OMP_NUM_THREADS": "1",
        "LEGATO_HEARTBEAT_S": "30",
    }


def _watch(line: str, folder: Path) -> None:
    """Until the page tells of a step; then it is interrupted."""
    port = free_port()
    command = ["bash", "-c", f"exec env {line.replace('8321', str(port))}"]
    with subprocess.Popen(command, cwd=folder, env=_environ(), stdout=subprocess.DEVNULL) as job:
        try:
            while not tells_of_a_step(port):
                assert job.poll() is None
                time.sleep(0.1)  # it has nothing that could be waited on before it is there
        finally:
            job.terminate()
    assert job.returncode == 128 + signal.SIGTERM


def _follow(line: str, folder: Path) -> str:
    done = subprocess.run(
        ["bash", "-c", line], cwd=folder, env=_environ(), capture_output=True, text=True, timeout=TIMEOUT_S, check=False
    )
    assert done.returncode == 0, f"{line}\n{done.stdout}\n{done.stderr}"
    return done.stdout
