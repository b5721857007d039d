"""All tests that need an accelerator, with one command; what it printed last is kept.

    make test-cuda      or, where legato is importable already:  python -m tests.cuda

It fails where there is no accelerator, and where a test was skipped.
"""

import platform
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).parent.parent
KEPT = ROOT / "bench" / "results" / "cuda-tests.txt"


def main(arguments: list[str]) -> int:
    if not torch.cuda.is_available():
        print("no accelerator: torch.cuda.is_available() is false", file=sys.stderr)
        return 2
    counts = _Counts()
    begin_s = time.monotonic()
    status = pytest.main(["-m", "cuda", "-q", "--durations=10", *arguments, str(ROOT / "tests" / "torch")], [counts])
    lines = [
        f"commit    {_commit()}",
        f"device    {torch.cuda.get_device_name()}, driver {_driver()}",
        f"software  PyTorch {torch.__version__}, CUDA {torch.version.cuda}, Python {platform.python_version()}",
        f"date      {time.strftime('%Y-%m-%d', time.gmtime())}",
        f"result    {counts}, {time.monotonic() - begin_s:.0f} s",
        *(f"failed    {name}" for name in counts.failed),
        *(f"skipped   {name}" for name in counts.skipped),
    ]
    KEPT.write_text("\n".join(lines) + "\n")
    print(KEPT.read_text())
    return int(status) or int(bool(counts.skipped))


class _Counts:
    """A plugin that counts what became of the tests."""

    def __init__(self) -> None:
        self.passed: list[str] = []
        self.failed: list[str] = []
        self.skipped: list[str] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self.failed.append(report.nodeid)
        elif report.skipped:
            self.skipped.append(report.nodeid)
        elif report.when == "call":
            self.passed.append(report.nodeid)

    def __str__(self) -> str:
        return f"{len(self.passed)} passed, {len(self.failed)} failed, {len(self.skipped)} skipped"


def _commit() -> str:
    command = ["git", "describe", "--always", "--dirty"]
    asked = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    return asked.stdout.strip() or "unknown (not a git checkout)"


def _driver() -> str:
    command = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()[0]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
