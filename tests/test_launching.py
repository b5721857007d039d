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
from tests.programs import Programs

PAGE = (ROOT / "docs/clusters.md").read_text()
SCRIPTS = [block.text for block in blocks(["docs/clusters.md"], "bash") if "#SBATCH" in block.text]
TIMEOUT_S = 100

SCRIPT = """
import numpy as np
from legato.job import join

with join() as job:
    total = job.group.push_pull("x", np.full(1, job.rank + 1.0, np.float32))[0]
    settings = job.settings
    print(f"{job.rank} of {job.size} by {settings.launcher}: {settings.num_servers} servers, sum {total}\\n", end="")
"""
"""As little as shows that ranks have met: what is tried is how they are started."""

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


def environment(folder: Path, **environ: str) -> dict[str, str]:
    """What a recipe is started with, beside its script."""
    (folder / "train.py").write_text(SCRIPT)
    return {**os.environ, "LEGATO_HEARTBEAT_S": "30", **environ}


def places(output: str) -> list[str]:
    """What ranks say of themselves, who have all added up the same."""
    lines = [line.rsplit(", sum ", 1) for line in sorted(output.splitlines())]
    assert {total for _, total in lines} == {"3.0"}
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
    finished = subprocess.run(
        ["bash", "-c", script.replace(":29400", f":{port}")],
        cwd=tmp_path,
        env=environment(tmp_path, **environ),
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert finished.returncode == 0, finished.stderr
    assert places(finished.stdout) == [f"{rank} of 2 by Slurm: {num_servers} servers" for rank in range(2)]


@pytest.mark.skipif(find_spec("yaml") is None, reason="needs pyyaml")
def test_kubeflow(tmp_path: Path, programs: Programs) -> None:
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
    torchrun = ("-m", "torch.distributed.run", *rest)
    code, output, errors = programs.run(*torchrun, cwd=tmp_path, env=environment(tmp_path, **environ))
    assert code == 0, errors
    assert places(output) == [f"{rank} of 2 by torchrun: 0 servers" for rank in range(2)]
