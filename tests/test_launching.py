"""The recipes of docs/clusters.md, as they stand there: under an srun that only starts processes, and torchrun."""

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from legato.settings import read_settings
from legato.testing.ports import free_port
from tests.docs.blocks import ROOT, blocks

PAGE = (ROOT / "docs/clusters.md").read_text()
SCRIPTS = [block.text for block in blocks(["docs/clusters.md"], "bash") if "#SBATCH" in block.text]
TIMEOUT_S = 100

TRAIN = """
import torch
import legato.torch as lg

job = lg.init()
model = torch.nn.Linear(2, 1)
model, optimizer = lg.schedule(model, torch.optim.SGD(model.parameters(), lr=0.5))
for _ in range(3):
    optimizer.zero_grad()
    model(torch.full((1, 2), float(lg.rank()))).sum().backward()
    optimizer.step()
bias = model.state_dict()["bias"].item()
settings = job.settings
print(f"{lg.rank()} of {lg.size()} by {settings.launcher}: {settings.num_servers} servers, bias {bias}\\n", end="")
"""

SRUN = """#!/bin/bash
# What srun does as far as a job sees it: processes that know their place in the step. Options end at the command.
while [[ $1 == --* ]]; do
    [[ $1 == --ntasks=* ]] && SLURM_NTASKS=${1#--ntasks=}
    shift
done
export SLURM_NTASKS SLURM_STEP_NODELIST=localhost SLURM_STEP_TASKS_PER_NODE=$SLURM_NTASKS
for ((task = 0; task < SLURM_NTASKS; task++)); do
    SLURM_PROCID=$task SLURM_LOCALID=$task "$@" &
    tasks+=($!)
done
for task in "${tasks[@]}"; do wait "$task" || exit 1; done
"""

PROGRAMS = {
    "srun": SRUN,
    "scontrol": "#!/bin/bash\necho localhost\n",
    "legato": f"#!/bin/bash\nexec {sys.executable} -c 'import sys, legato.cli; sys.exit(legato.cli.main())' \"$@\"\n",
    "python": f'#!/bin/bash\nexec {sys.executable} "$@"\n',
}


def run(command: list[str], folder: Path, **environ: str) -> list[str]:
    (folder / "train.py").write_text(TRAIN)
    finished = subprocess.run(
        command,
        cwd=folder,
        env={**os.environ, "OMP_NUM_THREADS": "1", "LEGATO_HEARTBEAT_S": "30", **environ},
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert finished.returncode == 0, finished.stderr
    lines = [line.rsplit(", bias ", 1) for line in sorted(finished.stdout.splitlines())]
    assert len({bias for _, bias in lines}) == 1  # they have trained together
    return [place for place, _ in lines]


@pytest.mark.parametrize(
    ("script", "num_servers"), list(zip(SCRIPTS, (0, 2), strict=True)), ids=["workers", "with servers"]
)
def test_slurm(tmp_path: Path, script: str, num_servers: int) -> None:
    programs = tmp_path / "bin"
    programs.mkdir()
    for name, text in PROGRAMS.items():
        (programs / name).write_text(text)
        (programs / name).chmod(0o755)
    port = free_port()
    environ = {
        "PATH": f"{programs}:{os.environ['PATH']}",
        "SLURM_NTASKS": "2",
        "SLURM_JOB_NODELIST": "localhost",
        "SLURM_JOB_ID": str(os.getpid()),
    }
    printed = run(["bash", "-c", script.replace(":29400", f":{port}")], tmp_path, **environ)
    assert printed == [f"{rank} of 2 by Slurm: {num_servers} servers" for rank in range(2)]


@pytest.mark.skipif(find_spec("yaml") is None, reason="needs pyyaml")
def test_kubeflow(tmp_path: Path) -> None:
    import yaml

    [block] = blocks(["docs/clusters.md"], "yaml")
    job: dict[str, Any] = yaml.safe_load(block.text)
    assert (job["apiVersion"], job["kind"]) == ("trainer.kubeflow.org/v1alpha1", "TrainJob")
    trainer = job["spec"]["trainer"]
    [variable] = trainer["env"]
    secret = variable["valueFrom"]["secretKeyRef"]
    assert f"create secret generic {secret['name']} --from-literal={secret['key']}=" in PAGE
    assert read_settings({variable["name"]: "sixteen bytes or more"}).key == b"sixteen bytes or more"
    program, *rest = trainer["command"]
    assert program == "torchrun"
    environ = {
        "PET_NNODES": "1",
        "PET_NPROC_PER_NODE": "2",
        "PET_NODE_RANK": "0",
        "PET_MASTER_ADDR": "127.0.0.1",
        "PET_MASTER_PORT": str(free_port()),
        variable["name"]: "sixteen bytes or more",
    }
    printed = run([sys.executable, "-m", "torch.distributed.run", *rest], tmp_path, **environ)
    assert printed == [f"{rank} of 2 by torchrun: 0 servers" for rank in range(2)]
