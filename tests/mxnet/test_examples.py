"""The examples as a user starts them: the loss goes down."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.mxnet.cluster import need_kvstore

pytest.importorskip("mxnet", reason="needs mxnet, which has an environment of its own: make test-mxnet")

ROOT = Path(__file__).parent.parent.parent


@pytest.mark.parametrize(
    "command", ["byteps_digits.py", "byteps_digits.py --compressor onebit", "digits.py", "digits.py --server-optimizer"]
)
def test_digits(command: str) -> None:
    script, *words = command.split()
    if script == "digits.py":
        need_kvstore()
    finished = subprocess.run(
        [sys.executable, f"examples/mxnet/{script}", "--steps", "61", *words],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert finished.returncode == 0, finished.stderr
    losses = [float(loss) for loss in re.findall(r"loss (\d+\.\d+)", finished.stdout)]
    assert len(losses) == 4
    assert losses[-1] < losses[0] / 1.5
    assert "accuracy on images not trained on: " in finished.stdout
