"""The order of streams, proven by making each of them late: for the machine that has an accelerator."""

import contextlib
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any
from unittest.mock import patch

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch._C._distributed_c10d import HashStore

import legato.torch as lg
from legato.compression import PLAIN
from legato.core.part import Stage
from legato.torch.compression import compression_of, compressor_of
from legato.torch.scheduling.hooks import Schedule
from legato.torch.sync import native
from legato.torch.sync.c10d import C10dSynchronizer
from legato.torch.sync.c10d_plan import StaticConfig
from legato.torch.sync.in_host import InHostSynchronizer
from legato.torch.sync.native import NativeSynchronizer
from legato.torch.sync.options import SyncOptions
from legato.torch.sync.process_group import ProcessGroup
from legato.torch.sync.replicas import Replicas
from legato.torch.sync.routes import NativeRoute
from legato.torch.sync.synchronizer import Slot, Synchronizer
from legato.transports.c10d.collectives import Cargo, Collectives
from legato.transports.rendezvous import hosts
from tests.torch.cases import HalfSgd
from tests.torch.crew import Crew
from tests.torch.streams import C10D_SITES, DELAY_CYCLES, HOME, IN_HOST_SITES, NATIVE_SITES, RETURN, Exact, delayed

pytestmark = pytest.mark.cuda

STEPS = 20
ROUNDS = 6
"""The first loads kernels, which takes longer than any delay here and may wait for the device."""
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


def _train(
    way: Way, wrap: Callable[[nn.Module, torch.optim.Optimizer], tuple[nn.Module, Any]], rank: int | None = None
) -> torch.Tensor:
    """The weights after some steps; `wrap` gives the model to call and its no_sync."""
    torch.manual_seed(7)
    plain = (_Branches() if way.branches else Exact()).cuda()
    optimizer = OPTIMIZERS[way.optimizer](plain.parameters())
    model, quiet = wrap(plain, optimizer)
    if rank is None:
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

    return _train(way, wrap, lg.rank())


BLOCKING = "native, blocking"
"""Where a device's streams cannot wait for words."""
IN_HOST = "native, in the host"
"""Of 2 ranks each, which sum over their process group."""


@contextlib.contextmanager
def _world(transport: str = "auto") -> Iterator[None]:
    dist.init_process_group("gloo")
    with contextlib.ExitStack() as stack:
        if transport == IN_HOST:
            stack.enter_context(patch.object(hosts, "identity", lambda: f"host {dist.get_rank() // 2}"))
            stack.enter_context(patch.dict(os.environ, LEGATO_IN_HOST="1"))
        lg.init()
        yield


@contextlib.contextmanager
def _transport(name: str) -> Iterator[str]:
    if name == IN_HOST:
        yield "native"
        return
    if name != BLOCKING:
        yield name
        return
    with patch.object(native, "can_wait", lambda _: False):
        yield "native"


_expected: dict[Way, torch.Tensor] = {}
"""DDP's weights, which a rank that stays for many tests makes once."""


def _differ(way: Way, options: dict[str, Any], sites: tuple[str, ...] | None) -> int:
    """On one rank: how many weights differ from DDP's."""
    with _world(options["transport"]):
        if way not in _expected:
            _expected[way] = _by_ddp(way)
        with _transport(options["transport"]) as transport, delayed(sites, seed=lg.rank()):
            weights = _by_legato(way, **{**options, "transport": transport})
    return int((weights != _expected[way]).sum())


@pytest.mark.parametrize(
    ("transport", "policy", "site"),
    [(transport, "auto", site) for transport in ("native", BLOCKING) for site in NATIVE_SITES]
    + [("c10d", policy, site) for policy in ("auto", "rsag") for site in C10D_SITES]
    + [(IN_HOST, "auto", site) for site in IN_HOST_SITES],
)
def test_each_stream_in_turn_is_late_and_no_weight_changes(crew: Crew, transport: str, policy: str, site: str) -> None:
    options = {"transport": transport, "policy": policy}
    assert crew.run(_differ, Way(), options, (site,), size=4) == [0] * 4


@pytest.mark.parametrize("transport", ["native", BLOCKING, "c10d", IN_HOST])
def test_halves_of_a_model_run_on_streams_of_their_own(crew: Crew, transport: str) -> None:
    way = Way(branches=True)
    assert crew.run(_differ, way, {"transport": transport}, (RETURN, HOME), size=4) == [0] * 4


class _Apart(nn.Module):
    """Two layers that need nothing of each other, on two streams. The gradient of every weight is 1."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = (nn.Linear(4, 1, bias=False) for _ in range(2))
        for parameter in self.parameters():
            nn.init.zeros_(parameter)
        self.side = torch.cuda.Stream()

    def forward(self, values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        with torch.cuda.stream(self.side):
            torch.cuda._sleep(5 * DELAY_CYCLES)
            first = self.first(values)
        second = self.second(values)
        torch.cuda.current_stream().wait_stream(self.side)
        first.record_stream(torch.cuda.current_stream())
        return first, second


def _early_updates(transport: str) -> list[float]:
    """What a layer gives whose weights were updated with another's, late, on the stream of that one."""
    with _world():
        model = _Apart().cuda()
        optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
        lg.schedule(model, optimizer, transport=transport, tuner="off")
        synchronizer = Schedule.of(model).synchronizer
        values = torch.ones(1, 4, device="cuda")
        torch.cuda.synchronize()
        given = []
        for step in range(ROUNDS):
            # From the second step on updates are due in the forward pass: that of `first` takes along all that is here.
            while step > 1 and not all(map(synchronizer.poll, range(2))):
                pass
            first, second = model(values)
            given.append(second.detach())
            optimizer.zero_grad()
            (first + second).sum().backward()
            optimizer.step()
        return torch.cat(given).flatten().tolist()


@pytest.mark.parametrize("transport", ["native", "c10d"])
def test_an_update_that_came_early_is_waited_for_on_another_stream(crew: Crew, transport: str) -> None:
    assert crew.run(_early_updates, transport) == [[-4.0 * step for step in range(ROUNDS)]] * 2


@pytest.mark.parametrize("transport", ["native", IN_HOST])
def test_gradients_are_looked_at_on_another_stream(crew: Crew, transport: str) -> None:
    way = Way(watch=True)
    assert crew.run(_differ, way, {"transport": transport}, (RETURN,), size=4) == [0] * 4


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
        (way, {"transport": transport, "policy": policies[place % 2], "compression": COMPRESSIONS[(place + shift) % 3]})
        for place, way in enumerate(WAYS)
        for shift, (transport, policies) in enumerate(
            (("native", ("auto", "fifo")), ("c10d", ("auto", "auto")), ("c10d", ("wfbp", "rsag")))
        )
    ]
    # On the device, with what they lose remembered there: of small whole numbers, nothing.
    + [(way, {"transport": "native", "compression": "bf16+ef"}) for way in WAYS]
    + [(way, {"transport": IN_HOST, "compression": COMPRESSIONS[place % 3]}) for place, way in enumerate(WAYS)],
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
@pytest.mark.parametrize("site", [*C10D_SITES, "any"])
def test_nccl_of_one_rank(crew: Crew, policy: str, site: str) -> None:
    sites, compression = (None, "bf16") if site == "any" else ((site,), "none")
    assert crew.run(_over_nccl, policy, compression, sites, size=1) == [0]


def _in_host_over_nccl(compression: str, sites: tuple[str, ...] | None) -> int:
    """Two hosts of one rank, each with a group of NCCL's: its sums are one rank's, but streams are the real ones."""
    way = Way("adamw", skip=True)
    job = lg.init()
    expected = _by_legato(way, transport="native", compression=compression)
    device = torch.device("cuda", torch.cuda.current_device())
    dist.init_process_group("nccl", store=HashStore(), rank=0, world_size=1, device_id=device)
    replicas = Replicas(job, [(0,), (1,)])
    host = ProcessGroup(60.0)
    route = NativeRoute(replicas.group)
    options = SyncOptions(
        prefix=job.name("nccl"), policy="auto", compressor=compressor_of(compression), selection=PLAIN
    )

    def wrap(model: nn.Module, optimizer: torch.optim.Optimizer) -> tuple[nn.Module, Any]:
        made = Schedule(
            model,
            optimizer,
            lambda slots: InHostSynchronizer(
                job.group, host, replicas, partial(route.synchronizer, options), options.prefix, slots
            ),
        )
        return model, made.no_sync

    with delayed(sites, seed=job.rank):
        weights = _train(way, wrap, job.rank)
    return int((weights != expected).sum())


@pytest.mark.parametrize("site", [*IN_HOST_SITES, "any"])
def test_nccl_in_hosts_of_one_rank(crew: Crew, site: str) -> None:
    sites, compression = (None, "bf16") if site == "any" else ((site,), "none")
    assert crew.run(_in_host_over_nccl, compression, sites, size=2) == [0, 0]


def _reads_when_finished() -> list[float]:
    """The errors of sums that somebody else reads on a stream of their own as soon as they are said to be there."""
    device = torch.device("cuda", torch.cuda.current_device())
    dist.init_process_group("nccl", device_id=device)
    collectives = Collectives(ProcessGroup(60.0).handle, device=device, is_nccl=True)
    values, reader = torch.empty(1 << 16, device=device), torch.cuda.Stream()
    errors = []
    for step in range(ROUNDS):
        values.fill_(torch.nan)
        torch.cuda.synchronize()
        torch.cuda._sleep(5 * DELAY_CYCLES)
        values.fill_(step)
        ready = torch.cuda.current_stream().record_event()
        flight = collectives.start(Stage.SYNC, Cargo(values, values, "sum", ready))
        assert flight.wait(60.0)
        with torch.cuda.stream(reader):
            errors.append((values - step).abs().max().item())
    return errors


def test_what_nccl_has_finished_may_be_read_on_any_stream(crew: Crew) -> None:
    assert crew.run(_reads_when_finished, size=1) == [[0.0] * ROUNDS]


def _on_two_streams(transport: str, compression: str) -> list[float]:
    """The largest error of averages that come home late, on a stream of their own, while the next ones are given."""
    # Pieces come home on a stream of their own, which no caller can delay.
    lateness = delayed((RETURN,), chance=1.0) if transport == "native" else contextlib.nullcontext()
    with _world(), _transport(transport) as kind, lateness:
        job = lg.init()
        slots = [Slot(f"p{place}", nn.Parameter(torch.zeros(1 << 18, device="cuda"))) for place in range(2)]
        compressor, selection = compression_of(compression)
        synchronizer: Synchronizer
        if kind == "native":
            synchronizer = NativeSynchronizer(job.group, job.name("two"), slots, compressor, selection, runs_ahead=True)
        else:
            one_bucket = StaticConfig(bucket_bytes=1 << 30)
            synchronizer = C10dSynchronizer(ProcessGroup(60.0), job.name("two"), slots, compressor, config=one_bucket)
        late = torch.cuda.Stream()
        kept: list[tuple[int, torch.Tensor]] = []
        others: list[torch.Tensor] = []
        for step in range(4):
            for index, slot in enumerate(slots):
                gradient = torch.full_like(slot.parameter, step + index + lg.rank(), requires_grad=False)
                synchronizer.submit(index, gradient)
            with torch.cuda.stream(late):
                torch.cuda._sleep(5 * DELAY_CYCLES)
                for index in range(len(slots)):
                    synchronizer.wait(index)
                    gradient = synchronizer.result(index)
                    gradient.record_stream(late)
                    kept.append((step + index, gradient))
            # Memory that has been given back may be somebody else's at once.
            for dtype in (torch.float16, torch.float32):
                others += [torch.full((1 << 18,), torch.nan, dtype=dtype, device="cuda") for _ in slots]
        late.synchronize()
        synchronizer.close()
        assert all(other.isnan().all() for other in others), "memory of others was overwritten"
    return [(gradient - base - 0.5).abs().max().item() for base, gradient in kept]


def _one_bucket_on_two_streams() -> list[float]:
    """The errors of a bucket's second gradient, read on a stream of its own while its copy home is late on another."""
    with _world(), delayed((HOME,), chance=1.0):
        job = lg.init()
        slots = [Slot(f"p{place}", nn.Parameter(torch.zeros(1 << 16, device="cuda"))) for place in range(2)]
        options = StaticConfig(bucket_bytes=1 << 30)
        synchronizer = C10dSynchronizer(ProcessGroup(60.0), job.name("one"), slots, compressor_of(None), config=options)
        home, reader = torch.cuda.Stream(), torch.cuda.Stream()
        errors = []
        for step in range(ROUNDS):
            for index, slot in enumerate(slots):
                gradient = torch.full_like(slot.parameter, step + index + lg.rank(), requires_grad=False)
                synchronizer.submit(index, gradient)
            with torch.cuda.stream(home):
                synchronizer.wait(0)  # brings both home, late
            with torch.cuda.stream(reader):
                synchronizer.wait(1)
                errors.append((synchronizer.result(1) - step - 1.5).abs().max().item())
            home.synchronize()
            errors.append((synchronizer.result(0) - step - 0.5).abs().max().item())
        synchronizer.close()
    return errors


def test_a_buckets_second_gradient_is_waited_for_on_another_stream(crew: Crew) -> None:
    assert crew.run(_one_bucket_on_two_streams) == [[0.0, 0.0] * ROUNDS] * 2


@pytest.mark.parametrize(
    ("transport", "compression"),
    [(transport, compression) for transport in ("native", BLOCKING, "c10d") for compression in COMPRESSIONS]
    + [("native", compression) for compression in ("onebit", "onebit+ef", "fp16+ef")],
)
def test_averages_come_home_on_one_stream_while_gradients_are_given_on_another(
    crew: Crew, transport: str, compression: str
) -> None:
    assert crew.run(_on_two_streams, transport, compression) == [[0.0] * 8] * 2
