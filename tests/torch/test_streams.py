"""The order of streams, proven by making each of them late: for the machine that has an accelerator."""

import contextlib
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn

import legato.torch as lg
from legato.torch.c10d import C10dSynchronizer
from legato.torch.compression import compressor_of
from legato.torch.hooks import Schedule
from legato.torch.process_group import ProcessGroup
from legato.torch.static_plan import StaticConfig
from tests.torch.cases import HalfSgd
from tests.torch.crew import Crew
from tests.torch.streams import C10D_SITES, NATIVE_SITES, Exact, delayed

pytestmark = pytest.mark.cuda

STEPS = 20
OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "sgd": lambda params: torch.optim.SGD(params, lr=0.125, momentum=0.5),
    "adamw": lambda params: torch.optim.AdamW(params, lr=0.01),
    "fused adamw": lambda params: torch.optim.AdamW(params, lr=0.01, fused=True),
    "own": lambda params: HalfSgd(params, lr=0.125),
}


class _Branches(nn.Module):
    """Two halves on two streams, as a user may run them."""

    def __init__(self) -> None:
        super().__init__()
        self.halves = nn.ModuleList(Exact() for _ in range(2))
        self.side = torch.cuda.Stream()

    def forward(self, seed: int, skip: bool) -> torch.Tensor:
        main = torch.cuda.current_stream()
        self.side.wait_stream(main)
        with torch.cuda.stream(self.side):
            other = self.halves[1](seed + 7, skip)
        here = self.halves[0](seed, skip)
        main.wait_stream(self.side)
        other.record_stream(main)
        return here + other


@dataclass(frozen=True)
class Way:
    """How a model is trained."""

    optimizer: str = "sgd"
    autocast: bool = False
    clip: bool = False
    accumulate: bool = False
    skip: bool = False
    """Some ranks leave a layer out in some steps."""
    branches: bool = False
    """Halves of the model run on streams of their own."""
    watch: bool = False
    """Somebody looks at the gradients on a stream of their own, and nobody waits for that."""


def _train(way: Way, wrap: Callable[[nn.Module, torch.optim.Optimizer], tuple[nn.Module, Any]]) -> torch.Tensor:
    """The weights after some steps; `wrap` gives the model to call and its no_sync."""
    torch.manual_seed(7)
    plain = (_Branches() if way.branches else Exact()).cuda()
    optimizer = OPTIMIZERS[way.optimizer](plain.parameters())
    model, quiet = wrap(plain, optimizer)
    rank = dist.get_rank() if dist.is_initialized() else 0
    watcher, seen = torch.cuda.Stream(), [torch.zeros(())]
    for step in range(STEPS):
        optimizer.zero_grad()
        for last in (False, True) if way.accumulate else (True,):
            with contextlib.nullcontext() if last else quiet(), torch.autocast("cuda", torch.bfloat16, way.autocast):
                skip = way.skip and (step + rank) % 3 == 0
                model(1000 * step + 100 * rank + 50 * last, skip).backward()
        if way.watch:
            watcher.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(watcher):
                seen += [parameter.grad.norm() for parameter in plain.parameters() if parameter.grad is not None]
        if way.clip:
            nn.utils.clip_grad_norm_(plain.parameters(), 100.0)
        optimizer.step()
        watcher.synchronize()  # before these gradients are given back
    return torch.cat([parameter.detach().reshape(-1) for parameter in plain.parameters()]).cpu()


def _by_ddp(way: Way) -> torch.Tensor:
    def wrap(model: nn.Module, optimizer: torch.optim.Optimizer) -> tuple[nn.Module, Any]:
        del optimizer
        wrapped = nn.parallel.DistributedDataParallel(model, find_unused_parameters=True)
        return wrapped, wrapped.no_sync

    return _train(way, wrap)


def _by_legato(way: Way, **options: Any) -> torch.Tensor:
    def wrap(model: nn.Module, optimizer: torch.optim.Optimizer) -> tuple[nn.Module, Any]:
        lg.schedule(model, optimizer, tuner="off", **options)
        return model, lambda: lg.no_sync(model)

    return _train(way, wrap)


@contextlib.contextmanager
def _world() -> Iterator[None]:
    dist.init_process_group("gloo")
    lg.init()
    yield


def _differ(way: Way, options: dict[str, Any], sites: tuple[str, ...] | None) -> int:
    """On one rank: how many weights differ from DDP's."""
    with _world():
        expected = _by_ddp(way)
        with delayed(sites, seed=lg.rank()):
            weights = _by_legato(way, **options)
    return int((weights != expected).sum())


@pytest.mark.parametrize(
    ("transport", "policy", "site"),
    [("native", "auto", site) for site in NATIVE_SITES]
    + [("c10d", policy, site) for policy in ("auto", "rsag") for site in C10D_SITES],
)
def test_each_stream_in_turn_is_late_and_no_weight_changes(crew: Crew, transport: str, policy: str, site: str) -> None:
    options = {"transport": transport, "policy": policy}
    assert crew.run(_differ, Way(), options, (site,), size=4) == [0] * 4


WAYS = [
    Way("sgd", skip=True),
    Way("adamw", autocast=True),
    Way("fused adamw", clip=True),
    Way("own", accumulate=True),
    Way("fused adamw", autocast=True, accumulate=True, skip=True),
    Way("adamw", clip=True, skip=True),
    Way("sgd", branches=True),
    Way("adamw", branches=True, watch=True, skip=True),
]
COMPRESSIONS = ("none", "fp16", "bf16")


@pytest.mark.parametrize(
    ("way", "options"),
    [
        (way, {"transport": transport, "compression": COMPRESSIONS[(place + shift) % 3], "policy": policy})
        for place, way in enumerate(WAYS)
        for shift, (transport, policy) in enumerate(
            (("native", "auto"), ("native", "fifo"), ("c10d", "auto"), ("c10d", "wfbp"), ("c10d", "rsag"))
        )
    ],
    ids=str,
)
def test_streams_are_late_at_random_and_no_weight_changes(crew: Crew, way: Way, options: dict[str, Any]) -> None:
    assert crew.run(_differ, way, options, None, size=4) == [0] * 4


def _codec(compression: str, device: str) -> torch.Tensor:
    lg.init()
    torch.manual_seed(7)
    model = nn.Sequential(nn.Linear(300, 400), nn.Linear(400, 300)).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with delayed(None if device == "cuda" else (), seed=lg.rank()):
        lg.schedule(model, optimizer, transport="native", tuner="off", compression=compression)
        for step in range(STEPS):
            optimizer.zero_grad()
            x = torch.randn(4, 300, generator=torch.Generator().manual_seed(10 * step + lg.rank())).to(device)
            with torch.no_grad():
                for parameter in model.parameters():
                    parameter.zero_()  # gradients then depend on the data alone, not on earlier rounding
            model(x).sum().backward()
            optimizer.step()
        lg.flush(model)
    return torch.cat([parameter.detach().reshape(-1) for parameter in model.parameters()]).cpu()


@pytest.mark.parametrize("compression", ["int8", "onebit", "topk:0.1+ef", "randomk:0.2", "dithering:4"])
def test_codecs_on_an_accelerator_give_what_they_give_on_the_host(crew: Crew, compression: str) -> None:
    on_device = crew.run(_codec, compression, "cuda", size=2)
    on_host = crew.run(_codec, compression, "cpu", size=2)
    assert torch.equal(on_device[0], on_device[1])
    torch.testing.assert_close(on_device[0], on_host[0], rtol=1e-4, atol=1e-6)


def _over_nccl(policy: str, compression: str, sites: tuple[str, ...] | None) -> int:
    """A group of one rank: the sums are its own gradients, but streams and collectives are the real ones."""
    way = Way("adamw", skip=True)
    expected = _train(way, lambda model, _: (model, contextlib.nullcontext))
    os.environ.update(RANK="0", WORLD_SIZE="1")
    dist.init_process_group("nccl", device_id=torch.device("cuda", torch.cuda.current_device()))
    group = ProcessGroup(60.0)

    def wrap(model: nn.Module, optimizer: torch.optim.Optimizer) -> tuple[nn.Module, Any]:
        made = Schedule(
            model,
            optimizer,
            lambda slots: C10dSynchronizer(
                group, "nccl", slots, compressor_of(compression), config=StaticConfig(policy=policy)
            ),
        )
        return model, made.no_sync

    with delayed(sites):
        weights = _train(way, wrap)
    return int((weights != expected).sum())


@pytest.mark.parametrize("policy", ["rsag", "bytescheduler"])
@pytest.mark.parametrize("sites", [*((site,) for site in C10D_SITES), None], ids=str)
def test_nccl_of_one_rank(crew: Crew, policy: str, sites: tuple[str, ...] | None) -> None:
    compression = "bf16" if sites is None else "none"
    assert crew.run(_over_nccl, policy, compression, sites, size=1) == [0]
