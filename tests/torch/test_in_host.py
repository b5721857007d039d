"""Sums in the host over a process group, shares between hosts: 2 hosts of 2 ranks, on one machine.

Gradients are small whole numbers, whatever the weights are, so weights equal DDP's to the last bit. Where there is an
accelerator, all ranks have it.
"""

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from datetime import timedelta
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn

import legato.torch as lg
from legato.errors import InputError, MismatchError
from legato.torch.scheduling.hooks import Schedule
from legato.torch.sync.in_host import InHostSynchronizer
from legato.transports.rendezvous import hosts
from tests.crew import TIMEOUT_S
from tests.programs import Programs
from tests.torch.cases import HalfSgd
from tests.torch.crew import Crew
from tests.torch.streams import ExactLayer
from tests.torch.test_interruption import workers

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.cuda)]
STEPS = 6
FUSION = {"LEGATO_FUSION_BYTES": "4096"}
"""Several buckets of a small model."""
OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "sgd": lambda params: torch.optim.SGD(params, lr=0.125, momentum=0.5, weight_decay=0.25),
    "adamw": lambda params: torch.optim.AdamW(params, lr=0.01),
    "own": lambda params: HalfSgd(params, lr=0.125),
}


@pytest.fixture(scope="module")
def crew() -> Iterator[Crew]:
    """Processes of this file's own, whose hosts are not where they are."""
    crew = Crew(4)
    yield crew
    crew.close()


class Net(nn.Module):
    """Sizes that two ranks cannot share evenly, several dtypes, a layer that few ranks use and one that nobody does."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(ExactLayer(*sizes) for sizes in ((7, 9), (301, 17), (64, 64), (33, 33), (5, 3)))
        self.in_bf16 = ExactLayer(11, 7).to(torch.bfloat16)
        self.in_double = ExactLayer(3, 3).to(torch.float64)
        self.scale = nn.Parameter(torch.ones(()))
        self.turn = nn.Parameter(torch.ones(3, dtype=torch.complex64))
        self.seldom = ExactLayer(40, 40)
        self.large = ExactLayer(64, 256)
        self.never = ExactLayer(6, 6)

    def forward(self, seed: int, seldom: bool) -> torch.Tensor:
        used = [*self.layers, self.in_bf16, self.large, self.in_double, *([self.seldom] if seldom else [])]
        total = torch.stack([layer(seed + place).float() for place, layer in enumerate(used)]).sum() + 3 * self.scale
        return total + (self.turn * (seed % 7 + 2j)).real.sum()


Loop = Callable[[nn.Module, nn.Module, torch.optim.Optimizer, Any], None]


def seed_of(step: int) -> int:
    return 1000 * step + 100 * dist.get_rank()


def plainly(model: nn.Module, plain: nn.Module, optimizer: torch.optim.Optimizer, quiet: Any) -> None:
    """Some ranks leave a layer out in some steps; in some of them all do."""
    del plain, quiet
    for step in range(STEPS):
        optimizer.zero_grad()
        model(seed_of(step), step % 3 == 1 and dist.get_rank() in (0, 3)).backward()
        optimizer.step()


def accumulating(model: nn.Module, plain: nn.Module, optimizer: torch.optim.Optimizer, quiet: Any) -> None:
    del plain
    for step in range(STEPS):
        optimizer.zero_grad()
        for part in range(3):
            with quiet() if part == 0 else nullcontext():  # and twice without a step in between
                model(seed_of(step) + 10 * part, part == 2 and dist.get_rank() == 1).backward()
        optimizer.step()


def looking(model: nn.Module, plain: nn.Module, optimizer: torch.optim.Optimizer, quiet: Any) -> None:
    """One rank looks at gradients before the others need them, the last used first."""
    del quiet
    for step in range(STEPS):
        optimizer.zero_grad()
        model(seed_of(step), dist.get_rank() == 2).backward()
        if dist.get_rank() == step % 4:
            for parameter in reversed(list(plain.parameters())):
                if parameter.grad is not None:
                    assert parameter.grad.isfinite().all()
        optimizer.step()


def clipping(model: nn.Module, plain: nn.Module, optimizer: torch.optim.Optimizer, quiet: Any) -> None:
    del quiet
    clip = nn.utils.clip_grad_norm_ if model is not plain else lg.clip_grad_norm_
    parameters = [each for each in plain.parameters() if each.dtype is torch.float32]
    for step in range(STEPS):
        optimizer.zero_grad()
        model(seed_of(step), dist.get_rank() == 1).backward()
        clip(parameters, 1e9)
        optimizer.step()


def peeking(model: nn.Module, plain: nn.Module, optimizer: torch.optim.Optimizer, quiet: Any) -> None:
    """A hook looks at an average in the middle of backward, on all ranks: what comes later has a round of its own."""

    def peek(parameter: torch.Tensor) -> None:
        assert parameter.grad is not None
        assert parameter.grad.isfinite().all()

    if model is plain:
        plain.get_parameter("layers.3.weight").register_post_accumulate_grad_hook(peek)
    plainly(model, plain, optimizer, quiet)


LOOPS: dict[str, Loop] = {
    "plain": plainly,
    "accumulating": accumulating,
    "looking": looking,
    "clipping": clipping,
    "peeking": peeking,
}


@contextmanager
def in_hosts(num_ranks: int = 2) -> Iterator[None]:
    """A job whose ranks believe that so many of them share a host."""
    rank = int(os.environ["RANK"])
    true, hosts.identity = hosts.identity, lambda: f"host {rank // num_ranks}"
    # Soon enough for the test to hear why, where one rank fails and the others wait for it.
    dist.init_process_group("gloo", timeout=timedelta(seconds=TIMEOUT_S / 2))
    try:
        lg.init()
        yield
    finally:
        hosts.identity = true


def trained(loop: str, optimizer: str, device: str, wrap: Callable[..., tuple[nn.Module, Any]]) -> list[torch.Tensor]:
    torch.manual_seed(7)
    plain = Net().to(device)
    made = OPTIMIZERS[optimizer](plain.parameters())
    model, quiet = wrap(plain, made)
    LOOPS[loop](model, plain, made, quiet)
    return [parameter.detach().cpu() for parameter in plain.parameters()]


def by_ddp(plain: nn.Module, optimizer: torch.optim.Optimizer) -> tuple[nn.Module, Any]:
    del optimizer
    wrapped = nn.parallel.DistributedDataParallel(plain, find_unused_parameters=True)
    return wrapped, wrapped.no_sync


def _differ(loop: str, optimizer: str, device: str, compression: str | None) -> tuple[int, int, int]:
    """How many parameters differ from DDP's, and how many have not changed at all; how many buckets there were."""
    with in_hosts():
        expected = trained(loop, optimizer, device, by_ddp)
        buckets = 0

        def by_legato(plain: nn.Module, made: torch.optim.Optimizer) -> tuple[nn.Module, Any]:
            nonlocal buckets
            lg.schedule(plain, made, compression=compression)
            synchronizer = Schedule.of(plain).synchronizer
            assert isinstance(synchronizer, InHostSynchronizer)
            buckets = len(synchronizer._buckets.members)
            return plain, lambda: lg.no_sync(plain)

        found = trained(loop, optimizer, device, by_legato)
        torch.manual_seed(7)
        begun = list(Net().parameters())
        differing = sum(not torch.equal(one, other) for one, other in zip(found, expected, strict=True))
        return differing, sum(map(torch.equal, found, begun)), buckets


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(
    ("loop", "optimizer", "compression"),
    [
        ("plain", "sgd", None),
        ("plain", "own", "bf16"),
        ("accumulating", "adamw", None),
        ("looking", "sgd", None),
        ("clipping", "adamw", None),
        ("peeking", "sgd", None),
    ],
)
def test_weights_equal_ddps_to_the_last_bit(
    crew: Crew, loop: str, optimizer: str, device: str, compression: str | None
) -> None:
    outcomes = crew.run(_differ, loop, optimizer, device, compression, size=4, LEGATO_IN_HOST="1", **FUSION)
    for differing, unchanged, buckets in outcomes:
        assert differing == 0
        assert unchanged == 2, "what nobody uses is not stepped"
        assert buckets > 6


def _again() -> tuple[str, list[float]]:
    """Why a second schedule is refused; and what one has trained that took the place of the first."""
    with in_hosts():
        models = [nn.Linear(5, 3) for _ in range(2)]
        optimizers = [torch.optim.SGD(model.parameters(), lr=1.0) for model in models]
        lg.schedule(models[0], optimizers[0])
        with pytest.raises(InputError, match="LEGATO_IN_HOST=1") as refused:
            lg.schedule(models[1], optimizers[1])
        lg.unschedule(models[0])
        lg.schedule(models[1], optimizers[1])
        nn.init.zeros_(models[1].bias)
        for _ in range(3):
            optimizers[1].zero_grad()
            models[1](torch.full((1, 5), float(lg.rank()))).sum().backward()
            optimizers[1].step()
        lg.flush(models[1])
        return str(refused.value), models[1].bias.tolist()


def test_a_job_has_one_schedule_with_sums_in_the_host(crew: Crew) -> None:
    for why, bias in crew.run(_again, size=4, LEGATO_IN_HOST="1"):
        assert "give all parameters to one optimizer" in why
        assert bias == [-3.0] * 3


def _with_a_nan(device: str) -> list[float]:
    """The weight after each step, one of which has a gradient that is not finite on one rank."""
    with in_hosts():
        model = nn.Linear(1, 1, bias=False).to(device)
        nn.init.zeros_(model.weight)
        optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
        lg.schedule(model, optimizer)
        seen = []
        for step in range(4):
            optimizer.zero_grad()
            value = float("nan") if step == 2 and lg.rank() == 3 else 1.0
            model(torch.full((1, 1), value, device=device)).sum().backward()
            optimizer.step()
            lg.flush(model)
            seen.append(model.weight.item())
        return seen


@pytest.mark.parametrize("device", DEVICES)
def test_a_step_that_is_not_finite_is_skipped(crew: Crew, device: str) -> None:
    outcomes = crew.run(_with_a_nan, device, size=4, LEGATO_IN_HOST="1", LEGATO_NONFINITE="skip")
    assert outcomes == [[-1.0, -2.0, -2.0, -3.0]] * 4


def _bytes_of(num_steps: int, device: str) -> tuple[int, int, int]:
    """What this rank has sent in so many steps, how much of its shares through memory, and the size of gradients."""
    with in_hosts():
        model = nn.Sequential(*(nn.Linear(257, 511) for _ in range(4))).to(device)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
        lg.schedule(model, optimizer)
        synchronizer = Schedule.of(model).synchronizer
        assert isinstance(synchronizer, InHostSynchronizer)
        engines = [group.session.engine for group in (lg.init().group, synchronizer._inner._group)]

        def count() -> int:
            return sum(each.statistics()[way] for each in engines for way in ("bytes_sent", "bytes_shared"))

        before = 0
        for step in range(num_steps + 2):
            if step == 2:  # plans have been agreed on
                lg.flush(model)
                dist.barrier()
                before = count()
            optimizer.zero_grad()
            sum(layer(torch.ones(2, 257, device=device)).sum() for layer in model).backward()
            optimizer.step()
        lg.flush(model)
        dist.barrier()
        whole = sum(each.nbytes for each in model.parameters())
        return count() - before, engines[1].statistics()["bytes_shared"], whole


@pytest.mark.parametrize("device", DEVICES)
def test_each_rank_sends_a_share(crew: Crew, device: str) -> None:
    for sent, shared, whole in crew.run(_bytes_of, 4, device, size=4, LEGATO_IN_HOST="1", **FUSION):
        assert 4 * whole / 2 < sent < 1.05 * 4 * whole / 2
        assert shared == 0, "shares cross the network"


PROGRAM = """
import os, sys
import torch
import torch.distributed as dist
from torch import nn
import legato.torch as lg
from legato.transports.rendezvous import hosts

hosts.identity = lambda: f"host {int(os.environ['RANK']) // 2}"
dist.init_process_group("gloo")
lg.init()
device = sys.argv[1]
model = nn.Sequential(nn.Linear(64, 64), nn.Linear(64, 64)).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
lg.schedule(model, optimizer)
step = 0
while True:
    optimizer.zero_grad()
    model(torch.ones(4, 64, device=device)).sum().backward()
    optimizer.step()
    step += 1
    if step == 3:
        print("training", flush=True)
    if step == 5 and sys.argv[2] == "exit" and lg.rank() == 3:
        sys.exit(0)
"""


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("victim", [1, 3])
def test_everybody_ends_and_names_the_rank_that_was_killed(
    programs: Programs, monkeypatch: pytest.MonkeyPatch, victim: int, device: str
) -> None:
    for name, value in {"LEGATO_IN_HOST": "1", **FUSION}.items():
        monkeypatch.setenv(name, value)
    with workers(programs, ["-c", PROGRAM, device, "go on"], ["training\n"] * 4) as started:
        started[victim].send_signal(signal.SIGKILL)
        for rank, worker in enumerate(started):
            _, errors = worker.communicate(timeout=TIMEOUT_S)
            assert worker.returncode == (-signal.SIGKILL if rank == victim else 1), errors
            if rank != victim:
                assert f"rank {victim}" in errors.splitlines()[-1]


def test_a_rank_that_exits_early_is_named(programs: Programs, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"LEGATO_IN_HOST": "1", **FUSION}.items():
        monkeypatch.setenv(name, value)
    with workers(programs, ["-c", PROGRAM, "cpu", "exit"], ["training\n"] * 4) as started:
        for worker in started[:3]:
            _, errors = worker.communicate(timeout=TIMEOUT_S)
            assert worker.returncode == 1, errors
            assert "rank 3" in errors.splitlines()[-1]


def _schedule(options: dict[str, Any], num_ranks: int, sparse: bool) -> str:
    """Why a model cannot be scheduled, as every rank hears it."""
    with in_hosts(num_ranks):
        model = nn.Sequential(nn.Embedding(8, 4, sparse=sparse), nn.Linear(4, 4))
        with pytest.raises(InputError, match="LEGATO_IN_HOST=1") as refused:
            lg.schedule(model, torch.optim.SGD(model.parameters(), lr=0.1), **options)
        return str(refused.value)


@pytest.mark.parametrize(
    ("options", "num_ranks", "sparse", "why"),
    [
        ({"transport": "c10d"}, 2, False, "transport='c10d'; accepted are native and auto"),
        ({"compression": "onebit"}, 2, False, "compression is none, fp16 or bf16"),
        ({"backups": 1}, 2, False, "backups=1"),
        ({"staleness": 2}, 2, False, "staleness=2"),
        ({}, 2, True, "use sparse=False"),
        ({}, 4, False, "hosts of 4 ranks (1 in all); accepted are 2 or more hosts of equally many, 2 or more"),
        ({}, 3, False, "hosts of 1 or 3 ranks (2 in all)"),
    ],
    ids=str,
)
def test_what_it_does_not_go_with_is_refused(
    crew: Crew, options: dict[str, Any], num_ranks: int, sparse: bool, why: str
) -> None:
    for said in crew.run(_schedule, options, num_ranks, sparse, size=4, LEGATO_IN_HOST="1"):
        assert why in said


def _disagree() -> None:
    os.environ["LEGATO_IN_HOST"] = "1" if os.environ["RANK"] == "2" else "0"
    with in_hosts():
        model = nn.Linear(4, 4)
        lg.schedule(model, torch.optim.SGD(model.parameters(), lr=0.1))


def test_ranks_must_agree(crew: Crew) -> None:
    for outcome in crew.outcomes(_disagree, size=4, LEGATO_IN_HOST=""):
        assert isinstance(outcome, MismatchError)
        assert ", rank 2 says synchronous, LEGATO_IN_HOST=1" in str(outcome)


def _by_default() -> bool:
    with in_hosts():
        model = nn.Linear(4, 4)
        lg.schedule(model, torch.optim.SGD(model.parameters(), lr=0.1))
        return isinstance(Schedule.of(model).synchronizer, InHostSynchronizer)


def test_gradients_on_processors_take_the_engines_way_by_default(crew: Crew) -> None:
    assert crew.run(_by_default, size=4) == [False] * 4
