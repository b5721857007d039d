"""`legato run`: torchrun, and scripts of predecessors under it."""

import subprocess
import sys
from pathlib import Path

import pytest

from legato.errors import InputError
from legato.torch.torchrun import run_by

SCRIPT = """
import sys
import torch
import horovod.torch as hvd

hvd.init()
total = hvd.allreduce(torch.ones(3), op=hvd.Sum)
print(f"{hvd.rank()} of {hvd.size()}: {total.tolist()} {sys.argv[1:]}\\n", end="", flush=True)
hvd.shutdown()
"""


def test_a_script_written_for_horovod_runs_on_two_ranks(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    command = ["run", "--as", "horovod", "--standalone", "--nproc-per-node", "2", str(script), "--as", "it", "--is"]
    finished = subprocess.run(
        [sys.executable, "-c", "import sys, legato.cli; sys.exit(legato.cli.main())", *command],
        check=False,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert finished.returncode == 0, finished.stderr
    assert sorted(finished.stdout.splitlines()) == [
        f"{rank} of 2: [2.0, 2.0, 2.0] ['--as', 'it', '--is']" for rank in range(2)
    ]


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (["--nproc-per-node", "2", "a.py", "-m", "b"], ["--nproc-per-node", "2", "-m", "it", "a.py", "-m", "b"]),
        (["--nnodes=2", "-m", "package.a", "1"], ["--nnodes=2", "-m", "it", "-m", "package.a", "1"]),
        (["a.py"], ["-m", "it", "a.py"]),
    ],
)
def test_only_the_script_changes_its_place(given: list[str], expected: list[str]) -> None:
    assert run_by("it", given) == expected


def test_what_is_not_python_is_refused() -> None:
    with pytest.raises(InputError, match="--no-python: it runs Python scripts"):
        run_by("it", ["--no-python", "./binary"])
