"""`legato run` starts scripts of JAX as it starts those of torch."""

import subprocess
import sys
from pathlib import Path

SCRIPT = """
import jax.numpy as np
import legato.jax as lg

lg.init()
total = float(np.sum(lg.push_pull({"x": np.full(2, lg.rank() + 1.0)})["x"]))
print(f"{lg.rank()} of {lg.size()}: {total}\\n", end="", flush=True)
lg.shutdown()
"""


def test_a_script_runs_on_two_ranks(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    finished = subprocess.run(
        [sys.executable, "-m", "legato.cli", "run", "--nproc-per-node", "2", "train.py"],
        check=False,
        capture_output=True,
        text=True,
        cwd=tmp_path,
        timeout=100,
    )
    assert finished.returncode == 0, finished.stderr
    assert sorted(finished.stdout.splitlines()) == [f"{rank} of 2: 3.0" for rank in range(2)]
