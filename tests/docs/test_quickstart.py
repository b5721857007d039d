"""docs/quickstart.md, followed to the letter: its script, and its commands from `legato run` on."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.blocks import QUICKSTART, blocks

TIMEOUT_S = 250
LEFT_OUT = ("make ", "pip ", "legato run ")
"""`make demo` and `make wheel` have tests of their own, tests/bench/test_demo.py and tests/wheel.py; the plain
`legato run` is the next command without its variable."""


@pytest.mark.timeout(TIMEOUT_S)
def test_a_newcomer_can_follow_it(tmp_path: Path) -> None:
    [script] = blocks(QUICKSTART, "python")
    (tmp_path / "train.py").write_text(script.text)
    commands = [line for block in blocks(QUICKSTART, "bash") for line in block.text.splitlines()]
    printed = [_follow(line, tmp_path) for line in commands if not line.startswith(LEFT_OUT)]
    trained, report, profile, simulated = printed
    losses = [float(line.rsplit(" ", 1)[1]) for line in trained.splitlines() if line.startswith("step ")]
    assert len(losses) == 5
    assert losses[-1] < losses[0]
    assert "run.html" in report
    assert "rank 1" in (tmp_path / "run.html").read_text()
    assert "mine.json" in profile
    assert "wfbp" in simulated


def _follow(line: str, folder: Path) -> str:
    scripts = Path(sys.executable).parent
    environ = {
        **os.environ,
        "PATH": f"{scripts}:{os.environ['PATH']}",
        "OMP_NUM_THREADS": "1",
        "LEGATO_HEARTBEAT_S": "30",
    }
    done = subprocess.run(
        ["bash", "-c", line], cwd=folder, env=environ, capture_output=True, text=True, timeout=TIMEOUT_S, check=False
    )
    assert done.returncode == 0, f"{line}\n{done.stdout}\n{done.stderr}"
    return done.stdout
