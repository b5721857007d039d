"""A process that forks, as a DataLoader's workers are made: its engines go on, and the child has nothing of them."""

import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.parametrize("kind", ["unix", "shared"])
@pytest.mark.parametrize("how", ["fork", "multiprocessing"])
def test_a_child_leaves_the_engines_to_its_parent(how: str, kind: str) -> None:
    command = [sys.executable, "-m", "tests.engine.forking", how, kind]
    done = subprocess.run(
        command, cwd=Path(__file__).parents[2], timeout=60, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
