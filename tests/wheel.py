"""A wheel as users get it: installed into a fresh environment, without a compiler, where two workers train.

    python -m tests.wheel dist/legato-0.1.0-….whl

Frameworks come from this environment, by a line in a .pth file, so that nothing is downloaded; legato does not: the
editable install is made by a .pth file of its own, and those are read in an environment's own folder only.
"""

import json
import os
import subprocess
import sys
import sysconfig
import tempfile
import venv
from pathlib import Path

SCRIPT = """
import sys
from pathlib import Path

import torch

import legato
import legato.torch as lg

assert Path(legato.__file__).is_relative_to(sys.prefix), legato.__file__
lg.init()
torch.manual_seed(lg.rank())
model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
model, optimizer = lg.schedule(model, optimizer)
inputs = torch.randn(64, 8)
targets = inputs[:, :1]
losses = []
for _ in range(30):
    loss = torch.nn.functional.mse_loss(model(inputs), targets)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
lg.unschedule(model)
weights = torch.cat([each.detach().flatten() for each in model.parameters()])
assert torch.equal(lg.allreduce(weights, op=lg.Sum), 2 * weights), "the ranks hold different weights"
assert losses[-1] < losses[0] / 2, losses
lg.shutdown()
"""
TIMEOUT_S = 300.0


def try_wheel(wheel: Path, folder: Path) -> None:
    """Install it and train; an error says what failed."""
    fresh = folder / "fresh"
    venv.create(fresh)
    [site] = fresh.glob("lib/python3*/site-packages")
    (site / "frameworks.pth").write_text(sysconfig.get_path("purelib") + "\n")
    # Only what is in it can be found: no compiler, and no other command of legato's.
    environ = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    environ |= {"PATH": str(fresh / "bin"), "CC": "/bin/false", "CXX": "/bin/false"}
    pip: list[object] = [
        sys.executable,
        "-m",
        "pip",
        "--quiet",
        "--disable-pip-version-check",
        "--python",
        fresh / "bin/python",
    ]
    _run([*pip, "install", "--no-index", wheel], environ, folder)
    (folder / "train.py").write_text(SCRIPT)
    command: list[object] = [fresh / "bin/legato", "run", "--nproc-per-node", "2", "--servers", "1", "train.py"]
    _run(command, {**environ, "LEGATO_TIMELINE": "timeline.json"}, folder)
    events = json.loads((folder / "timeline.json").read_text())["traceEvents"]
    assert {event["pid"] for event in events if "ts" in event} >= {0, 1}, "the timeline lacks a rank"


def _run(command: list[object], environ: dict[str, str], folder: Path) -> None:
    subprocess.run(list(map(str, command)), env=environ, cwd=folder, check=True, timeout=TIMEOUT_S)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as name:
        try_wheel(Path(sys.argv[1]).resolve(), Path(name))
    print(f"{sys.argv[1]}: installed into a fresh environment, and two workers have trained there")
