"""The examples as a user starts them: the loss goes down, and is DDP's to the last digit printed."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from legato.testing.ports import free_port

ROOT = Path(__file__).parent.parent.parent
TIMEOUT_S = 100

SMALL = {
    "digits": ["--steps", "20", "--batch", "16", "--lr", "0.1"],
    "gpt": ["--steps", "10", "--batch", "4", "--length", "32", "--width", "32", "--depth", "2", "--clip", "1"],
    "images": ["--steps", "4", "--batch", "2", "--size", "32"],
}


def run(*command: str) -> str:
    finished = subprocess.run(
        [sys.executable, *command], cwd=ROOT, capture_output=True, text=True, timeout=TIMEOUT_S, check=False
    )
    assert finished.returncode == 0, finished.stderr
    return finished.stdout


def torchrun(*command: str) -> str:
    return run("-m", "torch.distributed.run", "--nproc-per-node", "2", "--master-port", str(free_port()), *command)


def losses(output: str) -> list[float]:
    return [float(loss) for loss in re.findall(r"loss (\d+\.\d+)", output)]


@pytest.mark.parametrize("name", SMALL)
def test_trains_as_ddp_does(name: str) -> None:
    script = [f"examples/{name}.py", *SMALL[name]]
    scheduled = torchrun(*script)
    assert losses(scheduled)[-1] < losses(scheduled)[0]
    assert re.search(r"legato, 2 workers: .* ms a step", scheduled)
    assert losses(scheduled) == losses(torchrun(*script, "--ddp"))


def test_trains_alone() -> None:
    output = run("examples/digits.py", "--steps", "20")
    assert losses(output)[-1] < losses(output)[0]
    assert "legato, 1 worker: " in output
