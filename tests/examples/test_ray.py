"""Ray Train: workers that Ray has started train to the losses of its own DDP, with servers that Ray has placed too."""

import os
import shutil
import subprocess
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.crew import losses_of

ROOT = Path(__file__).parent.parent.parent
TIMEOUT_S = 400
"""Ray starts a dozen processes, and each worker loads torch: minutes, where others compute too."""

pytestmark = [pytest.mark.skipif(find_spec("ray") is None, reason="needs ray[train]"), pytest.mark.timeout(TIMEOUT_S)]

DRIVER = """
import runpy, sys
import ray
from ray.train import RunConfig, ScalingConfig
from ray.train.torch import TorchTrainer
from legato.integrations.ray import LegatoConfig

folder = sys.argv[1]
ray.init(num_cpus=3, include_dashboard=False, _temp_dir=f"{folder}/ray")
train = runpy.run_path("examples/ray_digits.py", run_name="example")["train"]


def both(options):
    # LegatoConfig keeps Ray's process group, so its own DDP trains on the same workers.
    return [train({**options, "ddp": ddp}) for ddp in (False, True)]


trainer = TorchTrainer(
    both,
    train_loop_config={"epochs": 2, "batch": 32, "lr": 0.05},
    torch_config=LegatoConfig(),
    scaling_config=ScalingConfig(num_workers=2),
    run_config=RunConfig(storage_path=folder),
)
for name, losses in zip(("legato", "ddp"), trainer.fit().return_value):
    print(f"{name}: loss {losses[0]:.4f}, loss {losses[1]:.4f}")
sys.argv = ["ray_digits.py", "--epochs", "2", "--servers", "1"]
runpy.run_path("examples/ray_digits.py", run_name="__main__")
"""


def test_example_trains_as_rays_ddp() -> None:
    folder = tempfile.mkdtemp(dir="/tmp")  # Ray's sockets are in it, whose paths must be short
    environ = {
        **os.environ,
        "HOME": folder,  # where Ray leaves the token of its cluster
        "OMP_NUM_THREADS": "1",
        "RAY_USAGE_STATS_ENABLED": "0",
        "LEGATO_HEARTBEAT_S": "30",
    }
    try:
        finished = subprocess.run(
            [sys.executable, "-c", DRIVER, folder],
            cwd=ROOT,
            env=environ,
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S - 10,
            check=False,
        )
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    assert finished.returncode == 0, finished.stderr[-10_000:]
    losses = losses_of(finished.stdout)
    scheduled, over_ddp, with_a_server = losses[0:2], losses[2:4], losses[4:]
    assert scheduled[1] < scheduled[0]
    assert scheduled == over_ddp == with_a_server
