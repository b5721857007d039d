"""What a killed worker costs: python -m bench.recovery --kills 5

Four workers, one of which is killed every 20 s and comes back. Over legato, the others go on and it joins them; under
torchrun with DDP, all are started again and go on from the last checkpoint, which one of them writes every 50 steps.
For each kill: how long no step was taken, and how many steps had to be taken again.
"""

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from itertools import pairwise
from pathlib import Path
from random import Random

from bench.soak import FAULTS, Soak
from legato.testing.elastic_job import NEVER, elastic_job

WORKERS = 4
EVERY_S = 20.0
TORCH_SCRIPT = """
import os, sys
from pathlib import Path
import torch, torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
torch.set_num_threads(1)
dist.init_process_group("gloo")
model = nn.Sequential(*(nn.Linear(192, 192, bias=False) for _ in range(6)))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
path, step = Path(sys.argv[1]), 0
if path.exists():
    saved = torch.load(path, weights_only=True)
    step = saved["step"]
    model.load_state_dict(saved["model"])
wrapped = DistributedDataParallel(model)
while True:
    optimizer.zero_grad()
    wrapped(torch.ones(4, 192)).sum().backward()
    optimizer.step()
    step += 1
    if dist.get_rank() == 0:
        if step % 50 == 0:
            torch.save({"step": step, "model": model.state_dict()}, f"{path}.new")
            os.replace(f"{path}.new", path)
        print(step, flush=True)
    elif step == 1 or not hasattr(sys, "said"):
        sys.said = True
        print(f"pid {dist.get_rank()} {os.getpid()}", flush=True)
"""


def with_legato(kills: int, seed: int) -> dict[str, object]:
    with (
        tempfile.TemporaryDirectory() as directory,
        elastic_job(Path(directory), WORKERS, NEVER, LEGATO_HEARTBEAT_S="2") as job,
    ):
        soak = Soak(job, Random(seed))
        for process in job.processes.values():
            process.wait_until(30)
        for _ in range(kills):
            next_s = time.monotonic() + EVERY_S
            soak.strike(FAULTS[0])
            job.check_sums()
            time.sleep(max(next_s - time.monotonic(), 0.0))
        return {"system": "legato", "stood_s": soak.stood_s["kill -9"], "return_s": soak.stood_s["return"], "again": 0}


def with_torchrun(kills: int) -> dict[str, object]:
    """By torch's agent, which ends all workers when one ends, and starts all again."""
    with tempfile.TemporaryDirectory() as directory:
        script = Path(directory) / "train.py"
        script.write_text(TORCH_SCRIPT)
        command = [sys.executable, "-m", "torch.distributed.run", f"--nproc-per-node={WORKERS}"]
        command += [f"--max-restarts={kills}", "--monitor-interval=0.1", "--standalone"]
        command += [str(script), str(Path(directory) / "checkpoint")]
        env = {**os.environ, "OMP_NUM_THREADS": "1"}
        run = subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        steps: list[tuple[float, int]] = []
        victims: dict[int, int] = {}

        def read() -> None:
            assert run.stdout is not None
            for line in run.stdout:
                words = line.split()
                if words[0] == "pid":
                    victims[int(words[1])] = int(words[2])
                else:
                    steps.append((time.monotonic(), int(words[0])))

        reader = threading.Thread(target=read, daemon=True)
        reader.start()
        stood_s, again = [], 0
        try:
            for _ in range(kills):
                num_steps = len(steps)
                while len(steps) < num_steps + 100:
                    time.sleep(0.1)
                time.sleep(EVERY_S / 2)
                before, at_s = len(steps), time.monotonic()
                os.kill(victims[2], signal.SIGKILL)
                while len(steps) < before + 100:
                    time.sleep(0.05)
                told = [(at_s, steps[before - 1][1]), *steps[before:]]
                stood_s.append(max(later[0] - earlier[0] for earlier, later in pairwise(told)))
                again += sum(max(earlier[1] - later[1] + 1, 0) for earlier, later in pairwise(told))
        finally:
            run.send_signal(signal.SIGTERM)
            run.wait(30)
    return {"system": "torchrun, DDP", "stood_s": stood_s, "again": again}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=5)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    for row in (with_legato(options.kills, options.seed), with_torchrun(options.kills)):
        stood = row["stood_s"]
        assert isinstance(stood, list)
        line = json.dumps({**row, "median_s": round(statistics.median(stood), 3)})
        print(line, flush=True)
        if options.out is not None:
            with options.out.open("a") as file:
                file.write(line + "\n")


if __name__ == "__main__":
    main()
