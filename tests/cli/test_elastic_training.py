"""Training under `legato run --min --max`: a rank is killed, the rest go on, it comes back; all weights are equal."""

import json
from pathlib import Path

import pytest

from tests.cli.folder import Folder
from tests.programs import Programs

BEGIN = """
import json, os, signal, time
from pathlib import Path
import torch

turn = len(list(Path(".").glob(f"turn-{os.environ['RANK']}-*")))
Path(f"turn-{os.environ['RANK']}-{turn}").touch()
NUM_STEPS = 6

def work():
    # A step's; who comes back needs the processors to load what it needs, meanwhile.
    time.sleep(0.01)

def die(rank):
    # This rank, as the launcher counts, the first time.
    if turn == 0 and os.environ["RANK"] == str(rank):
        os.kill(os.getpid(), signal.SIGKILL)

def tell(sizes, model):
    words = {"sizes": sizes, "weights": [each.tolist() for each in model.state_dict().values()]}
    print(json.dumps(words) + "\\n", end="", flush=True)

torch.manual_seed(turn)
model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
"""

SCHEDULE = (
    BEGIN
    + """
import legato.torch as lg

lg.init()
sizes, last = [], []

def changed(size, rank, joined, lost):
    sizes.append(size)
    if joined:
        last.append(lg.num_steps(model) + NUM_STEPS)

lg.on_membership(changed)
lg.schedule(model, optimizer)
sizes.append(lg.size())
if turn:
    last.append(lg.num_steps(model) + NUM_STEPS)
num_steps = 0
while not last or lg.num_steps(model) < last[0]:
    optimizer.zero_grad()
    work()
    model(torch.rand(5, 4)).square().mean().backward()
    optimizer.step()
    num_steps += 1
    if num_steps == NUM_STEPS:
        die(2)
lg.flush(model)
tell(sizes, model)
lg.shutdown()
"""
)

SERVED = (
    BEGIN
    + """
import legato.torch as lg
from legato.torch.api import current

def kill_server():
    mine = f"OF_TEST={os.environ['OF_TEST']}".encode()
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if mine in (process / "environ").read_bytes() and b"\\0server\\0" in (process / "cmdline").read_bytes():
                os.kill(int(process.name), signal.SIGKILL)
        except OSError:
            pass

lg.init()
servers, last = [], []

def changed(size, rank, joined, lost):
    servers.append(current().membership.num_servers)
    if servers[-1]:
        last.append(lg.num_steps(model) + NUM_STEPS)

lg.on_membership(changed)
lg.schedule(model, optimizer)
servers.append(current().membership.num_servers)
num_steps = 0
while not last or lg.num_steps(model) < last[0]:
    optimizer.zero_grad()
    work()
    model(torch.rand(5, 4)).square().mean().backward()
    optimizer.step()
    num_steps += 1
    if num_steps == NUM_STEPS and lg.rank() == 1:
        kill_server()
lg.flush(model)
tell([lg.size(), *servers], model)
lg.shutdown()
"""
)

HOROVOD = (
    BEGIN
    + """
import horovod.torch as hvd

hvd.init()
optimizer = hvd.DistributedOptimizer(optimizer, model.named_parameters())
state = hvd.elastic.TorchState(model, optimizer, sizes=[], step=0)
resets = []
state.register_reset_callbacks([lambda: resets.append(hvd.size())])

@hvd.elastic.run
def train(state):
    state.sizes = [*state.sizes, hvd.size()]
    state.step = 0
    while state.step < NUM_STEPS or len(state.sizes) < 3:
        optimizer.zero_grad()
        work()
        model(torch.rand(5, 4)).square().mean().backward()
        optimizer.step()
        state.step += 1
        if state.step == NUM_STEPS - 1:
            die(0)
        state.commit()

train(state)
tell(state.sizes, model)
assert turn or resets == [1, 2], resets
hvd.shutdown()
"""
)


@pytest.mark.parametrize(
    ("script", "sizes", "written_for"),
    [
        pytest.param(SCHEDULE, [3, 2, 3], (), id="schedule"),
        pytest.param(HOROVOD, [2, 1, 2], ("--as", "horovod"), id="horovod, rank 0"),
        pytest.param(HOROVOD, [2, 1, 2], ("--as", "horovod", "--servers", "1"), id="horovod, rank 0, with a server"),
    ],
)
def test_a_rank_is_killed_and_comes_back(
    script: str, sizes: list[int], written_for: tuple[str, ...], tmp_path: Path, programs: Programs
) -> None:
    folder = Folder(tmp_path, script, programs)
    limits = ("--min", str(min(sizes)), "--max", str(max(sizes)))
    code, output, errors = folder.run(*written_for, *limits, "train.py", LEGATO_HEARTBEAT_S="20")
    assert code == 0, errors
    told = [json.loads(line) for line in output]
    assert len(told) == max(sizes)
    assert all(each["weights"] == told[0]["weights"] for each in told)
    assert sizes in [each["sizes"] for each in told]
    assert sum("killed by signal SIGKILL; it starts again in 0.5 s" in line for line in errors) == 1


@pytest.mark.parametrize("role", ["joint", "worker"])
def test_a_server_is_killed_and_comes_back(role: str, tmp_path: Path, programs: Programs) -> None:
    folder = Folder(tmp_path, SERVED, programs)
    limits = ("--min", "1", "--max", "2", "--servers", "1")
    code, output, errors = folder.run(*limits, "train.py", LEGATO_HEARTBEAT_S="20", LEGATO_ROLE=role)
    assert code == 0, errors
    told = [json.loads(line) for line in output]
    assert [each["sizes"] for each in told] == [[2, 1, 0, 1]] * 2
    assert all(each["weights"] == told[0]["weights"] for each in told)
    [line] = [line for line in errors if line.startswith("legato:")]
    assert line.endswith("failed: killed by signal SIGKILL; it starts again in 0.5 s")
    assert line.startswith("legato: server 2 on ")
