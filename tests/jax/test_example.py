"""The example as a user starts it: the loss goes down, whether averages are awaited in the step or in the next one."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from legato.testing.ports import free_port

ROOT = Path(__file__).parent.parent.parent


def run(*arguments: str) -> list[float]:
    finished = subprocess.run(
        [
            *(sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2"),
            *(
                "--master-port",
                str(free_port()),
                "examples/jax/digits.py",
                "--steps",
                "30",
                "--batch",
                "16",
                *arguments,
            ),
        ],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert finished.returncode == 0, finished.stderr
    assert "legato, 2 workers: " in finished.stdout
    return [float(loss) for loss in re.findall(r"loss (\d+\.\d+)", finished.stdout)]


def test_digits() -> None:
    losses = run()
    assert losses[-1] < losses[0] / 2
    assert losses == pytest.approx(run("--in-step"), abs=1e-3)
