"""Clipping and loss scaling through legato's own functions: torch's results, the same on all ranks, overlap kept."""

import contextlib
import math
import threading
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional

import legato.torch as lg
from legato.core import Part, Stage
from legato.core.shards import Deployment
from legato.errors import DeadlineError, InputError, JobError
from legato.exchange import Exchange, TensorSpec
from legato.testing.native_job import job_configs, run_job
from legato.torch.scheduling.gradients import Pending
from legato.torch.scheduling.hooks import Schedule
from legato.torch.sync.c10d import C10dSynchronizer
from legato.torch.sync.c10d_plan import StaticConfig
from legato.torch.sync.process_group import ProcessGroup
from legato.torch.sync.synchronizer import Slot
from legato.transports.native.group import NativeGroup
from legato.transports.native.player import EngineConfig
from tests.torch.cases import Case, Groups, UnusedParameters, schedule_over, train
from tests.torch.crew import Crew
from tests.torch.test_codecs import SCHEMES

LIMIT = 0.5
Clip = Callable[..., torch.Tensor]


class Clipped(Case):
    """Norms above the limit and below it, in turns."""

    def __init__(self, clip: Clip) -> None:
        self.clip = clip
        self.norms: list[torch.Tensor] = []

    def loss(self, model: nn.Module, batch: Any) -> torch.Tensor:
        loss = super().loss(model, batch)
        return loss * (0.01 if len(self.norms) % 2 else 10.0)

    def step(self, model: nn.Module, optimizer: torch.optim.Optimizer, step: int, quiet: Any) -> torch.Tensor:
        del quiet
        optimizer.zero_grad()
        loss = self.loss(model, self.batch(step))
        loss.backward()
        self.norms.append(self.clip(model.parameters(), LIMIT))
        optimizer.step()
        return loss.detach()


class Largest(Clipped):
    """By the largest gradient."""

    def step(self, model: nn.Module, optimizer: torch.optim.Optimizer, step: int, quiet: Any) -> torch.Tensor:
        clip = self.clip
        try:
            self.clip = lambda parameters, limit: clip(parameters, limit / 10, norm_type=math.inf)
            return super().step(model, optimizer, step, quiet)
        finally:
            self.clip = clip


class OtherNorm(Clipped):
    """A norm that nobody measures."""

    def step(self, model: nn.Module, optimizer: torch.optim.Optimizer, step: int, quiet: Any) -> torch.Tensor:
        clip = self.clip
        try:
            self.clip = lambda parameters, limit: clip(parameters, 3 * limit, norm_type=1.0)
            return super().step(model, optimizer, step, quiet)
        finally:
            self.clip = clip


class Accumulated(Clipped):
    """Three backward passes, two of them under no_sync, then clipping."""

    def step(self, model: nn.Module, optimizer: torch.optim.Optimizer, step: int, quiet: Any) -> torch.Tensor:
        optimizer.zero_grad()
        for part in range(3):
            with quiet() if part < 2 else contextlib.nullcontext():
                loss = self.loss(model, self.batch(step)) / 3
                loss.backward()
        self.norms.append(self.clip(model.parameters(), LIMIT))
        optimizer.step()
        return loss.detach()


class ClippedBetween(Clipped):
    """Clipped, then accumulated on top, then clipped again; and once before there is any gradient."""

    def step(self, model: nn.Module, optimizer: torch.optim.Optimizer, step: int, quiet: Any) -> torch.Tensor:
        del quiet
        optimizer.zero_grad()
        assert self.clip(model.parameters(), LIMIT).item() == 0.0
        for _ in range(2):
            loss = self.loss(model, self.batch(step))
            loss.backward()
            self.norms.append(self.clip(model.parameters(), LIMIT))
        optimizer.step()
        return loss.detach()


class TwiceAndInParts(Groups, Clipped):
    """Each group by itself, a single tensor again, then all of them; the first by another limit every time."""

    def step(self, model: nn.Module, optimizer: torch.optim.Optimizer, step: int, quiet: Any) -> torch.Tensor:
        del quiet
        optimizer.zero_grad()
        loss = self.loss(model, self.batch(step))
        loss.backward()
        parameters = list(model.parameters())
        for some, limit in (
            (parameters[0], 0.1 * (step + 1)),
            (parameters[::2], LIMIT),
            (parameters[1::2], LIMIT / 2),
            (parameters, LIMIT / 2),
        ):
            self.norms.append(self.clip(some, limit))
        optimizer.step()
        return loss.detach()


class Looked(Clipped):
    """Rank 0 looks at gradients before it clips, at all or at one; rank 1 afterwards."""

    def step(self, model: nn.Module, optimizer: torch.optim.Optimizer, step: int, quiet: Any) -> torch.Tensor:
        del quiet
        optimizer.zero_grad()
        loss = self.loss(model, self.batch(step))
        loss.backward()
        looked_at = list(model.parameters())[: 2 if step % 3 else None]
        if lg.rank() == 0:
            assert all(parameter.grad.isfinite().all() for parameter in looked_at if parameter.grad is not None)
        norm = self.clip(model.parameters(), LIMIT)
        if lg.rank() == 1:
            clipped = [parameter.grad.norm() for parameter in model.parameters() if parameter.grad is not None]
            assert torch.stack(clipped).norm() <= LIMIT * (1 + 1e-6)
        self.norms.append(norm)
        optimizer.step()
        return loss.detach()


class Unused(Clipped, UnusedParameters):
    """Some parameters have gradients on some ranks only, or on none."""


class Dropped(Clipped):
    """A gradient is thrown away after it was clipped with the others."""

    def step(self, model: nn.Module, optimizer: torch.optim.Optimizer, step: int, quiet: Any) -> torch.Tensor:
        del quiet
        optimizer.zero_grad()
        loss = self.loss(model, self.batch(step))
        loss.backward()
        self.norms.append(self.clip(model.parameters(), LIMIT))
        next(model.parameters()).grad = None
        optimizer.step()
        return loss.detach()


VARIANTS: list[type[Clipped]] = [
    *(Clipped, Largest, OtherNorm, Accumulated, ClippedBetween, TwiceAndInParts, Looked, Unused, Dropped),
]


def against_ddp(variants: list[type[Clipped]], steps: int, system: str) -> list[tuple[list[float], list[float], float]]:
    """For each: its norms, its weights, and the largest relative difference from DDP's of either."""
    lg.init()
    dist.init_process_group("gloo")
    torch.set_default_dtype(torch.float64)
    results = []
    for variant in variants:
        by_torch, by_legato = variant(nn.utils.clip_grad_norm_), variant(lg.clip_grad_norm_)
        _, expected = train(by_torch, "sgd", "ddp", steps)
        _, weights = train(by_legato, "sgd", system, steps)
        expected_norms = torch.stack(by_torch.norms)
        norms = torch.stack(by_legato.norms)
        if variant is Clipped:
            assert (expected_norms[::2] > LIMIT).all()
            assert (expected_norms[1::2] < LIMIT).all()
        difference = max(
            ((weights - expected).norm() / expected.norm()).item(),
            ((norms - expected_norms).abs() / (expected_norms + 1e-3)).max().item(),
        )
        results.append((norms.tolist(), weights.tolist(), difference))
    return results


SYSTEMS = ["native", "c10d", "c10d:rsag", "c10d:dear"]
"""Over c10d, gradients are measured between the halves of sums, or, where a sum is one operation, by torch."""


@pytest.mark.parametrize("size", [2, 4])
@pytest.mark.parametrize("system", SYSTEMS)
def test_50_clipped_steps_equal_ddps(crew: Crew, system: str, size: int) -> None:
    first, *others = crew.run(against_ddp, [Clipped], 50, system, size=size)
    for [(norms, weights, difference)] in (first, *others):
        assert norms == first[0][0]
        assert weights == first[0][1]
        assert difference < 1e-6


@pytest.mark.parametrize("system", ["native", "c10d", "c10d:rsag:200"])
def test_every_way_to_clip_equals_ddps(crew: Crew, system: str) -> None:
    first, second = crew.run(against_ddp, VARIANTS, 9, system)
    for variant, one, other in zip(VARIANTS, first, second, strict=True):
        assert one[:2] == other[:2], variant
        assert max(one[2], other[2]) < 1e-9, variant


# ---- loss scaling ----

OVERFLOWS = {3: 0, 4: 1, 9: 1}
"""At which steps whose loss is infinite."""


def scaled(make_scaler: Any, system: str, *, clip: Clip | None, fused: bool) -> tuple[list[float], torch.Tensor, int]:
    torch.manual_seed(lg.rank())
    model: nn.Module = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 3))
    if system == "ddp":
        model = nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, fused=fused)
    if system != "ddp":
        schedule_over(system, model, optimizer)
    scaler = make_scaler("cpu", init_scale=1024.0, growth_interval=3)
    generator = torch.Generator().manual_seed(20 + lg.rank())
    scales, num_kept = [], 0
    for step in range(14):
        optimizer.zero_grad()
        inputs = torch.randn(4, 6, generator=generator)
        loss = functional.mse_loss(model(inputs), inputs[:, :3])
        if OVERFLOWS.get(step) == lg.rank():
            loss = loss * torch.inf
        scaler.scale(loss).backward()
        if clip is not None:
            scaler.unscale_(optimizer)
            clip(model.parameters(), 0.05)
        scaler.step(optimizer)
        if system != "ddp":
            num_kept += any(each.due is not None for each in Schedule.of(model)._parameters.all)
        scaler.update()
        scales.append(scaler.get_scale())
    return scales, torch.cat([parameter.detach().flatten() for parameter in model.parameters()]), num_kept


def scale_both(system: str) -> list[tuple[bool, float, int, list[float]]]:
    """For each way: whether the scales are torch's, how far the weights are from DDP's, steps with overlap, weights."""
    lg.init()
    dist.init_process_group("gloo")
    results = []
    for clips, fused in ((False, False), (True, False), (True, True)):
        clip, own = (nn.utils.clip_grad_norm_, lg.clip_grad_norm_) if clips else (None, None)
        scales, expected, _ = scaled(torch.amp.GradScaler, "ddp", clip=clip, fused=fused)
        own_scales, weights, num_kept = scaled(lg.GradScaler, system, clip=own, fused=fused)
        assert len(set(scales)) > 2
        difference = ((weights - expected).norm() / expected.norm()).item()
        results.append((own_scales == scales, difference, num_kept, weights.tolist()))
    return results


@pytest.mark.parametrize("size", [2, 4])
@pytest.mark.parametrize("system", SYSTEMS)
def test_scaled_losses_skip_the_same_steps_as_ddps(crew: Crew, system: str, size: int) -> None:
    first, *others = crew.run(scale_both, system, size=size)
    assert others == [first] * (size - 1)
    for same_scales, difference, num_kept, _ in first:
        assert same_scales
        assert difference < 1e-6
        # Of 14 steps, 3 are skipped; the first shows the order of use.
        assert num_kept == (0 if system == "c10d" else 10)


def skip_then_unused() -> tuple[list[float], list[float]]:
    """The gradients of a skipped step are not applied later, where the next one does not use a layer."""
    lg.init()
    torch.manual_seed(0)
    first, second = nn.Linear(4, 4), nn.Linear(4, 4)
    layers = nn.ModuleList([first, second])
    optimizer = torch.optim.SGD(layers.parameters(), lr=0.1)
    lg.schedule(layers, optimizer, transport="native")
    scaler = lg.GradScaler("cpu", init_scale=2.0)
    before: list[float] = []
    for step in range(4):
        optimizer.zero_grad()
        hidden = first(torch.ones(1, 4))
        loss = (second(hidden) if step < 3 else hidden).sum()
        if step == 2:
            lg.flush(layers)
            before = second.weight.flatten().tolist()
            loss = loss * torch.inf
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
    lg.flush(layers)
    return before, second.weight.flatten().tolist()


def test_a_skipped_gradient_is_not_applied_later(crew: Crew) -> None:
    for before, after in crew.run(skip_then_unused):
        assert before == after


# ---- norms and codecs ----


def norm_and_applied(system: str, schemes: list[Any]) -> list[tuple[list[float], list[float]]]:
    """Norms that were told before the averages came, and norms of the averages that were applied."""
    job = lg.init()
    dist.init_process_group("gloo")
    transport, _, policy = system.partition(":")
    results = []
    for scheme in schemes:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(16, 64), nn.Tanh(), nn.Linear(64, 4))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        lg.schedule(
            model,
            optimizer,
            transport=transport,
            policy=policy or None,
            compression=scheme,
            min_compress_bytes=0,
        )
        torch.manual_seed(1 + job.rank)
        told, applied = [], []
        for step in range(4):
            optimizer.zero_grad()
            model(torch.randn(8, 16)).square().sum().backward()
            norm = lg.clip_grad_norm_(model, math.inf)
            assert isinstance(norm, Pending) == (step > 0), scheme
            told.append(norm.item())
            averages = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
            applied.append(nn.utils.get_total_norm([average.double() for average in averages]).item())
            optimizer.step()
        lg.unschedule(model)
        results.append((told, applied))
    return results


CASTS = [None, "fp16", "bf16", lg.Compression.fp16]
"""What c10d knows of compression."""


@pytest.mark.parametrize("size", [2, 4])
@pytest.mark.parametrize(
    ("system", "schemes"), [("native", [*CASTS, *SCHEMES.values()]), ("c10d:rsag", CASTS)], ids=["native", "c10d"]
)
def test_the_norm_of_every_codec_is_that_of_what_is_applied(
    crew: Crew, system: str, schemes: list[Any], size: int
) -> None:
    first, *others = crew.run(norm_and_applied, system, schemes, size=size)
    assert others == [first] * (size - 1)
    for told, applied in first:
        assert told == pytest.approx(applied, rel=1e-6)


def reduced() -> tuple[list[list[float]], list[list[float]]]:
    """What was asked for in the second step, read after all has been applied; and what has been applied."""
    lg.init()
    torch.manual_seed(0)
    torch.set_default_dtype(torch.float64)
    model = nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    lg.schedule(model, optimizer, transport="native")
    torch.manual_seed(lg.rank())
    found: list[torch.Tensor] = []
    for step in range(3):
        before = [parameter.detach().clone() for parameter in model.parameters()]
        optimizer.zero_grad()
        (model(torch.randn(2, 4)).sum() * (torch.inf if step == 2 else 1.0)).backward()
        found = [lg.reduce_gradients(model, name) for name in ("sum of squares", "max", "finite")]
        assert step == 0 or all(isinstance(each, Pending) for each in found)
        optimizer.step()
        if step == 1:
            averages = [2 * (old - new) for old, new in zip(before, model.parameters(), strict=True)]
            told = [each.tolist() for each in found]
    assert found[2].tolist() == [0.0] * 4
    applied = [[each.square().sum().item() for each in averages], [each.abs().max().item() for each in averages]]
    return told, [*applied, [1.0] * 4]


def test_reductions_by_name(crew: Crew) -> None:
    for told, applied in crew.run(reduced):
        for one, other in zip(told, applied, strict=True):
            assert one == pytest.approx(other, rel=1e-9)


def test_an_unknown_reduction_is_refused() -> None:
    with pytest.raises(InputError, match="accepted: sum of squares, max, finite"):
        lg.reduce_gradients([], "median")


def test_an_unscheduled_model_is_clipped_by_torch() -> None:
    gradients = [torch.tensor([3.0, 4.0]), torch.tensor([12.0])]
    for clip in (nn.utils.clip_grad_norm_, lg.clip_grad_norm_):
        parameters = [nn.Parameter(gradient.clone()) for gradient in gradients]
        for parameter, gradient in zip(parameters, gradients, strict=True):
            parameter.grad = gradient.clone()
        assert clip(parameters, 1.0).item() == 13.0
        clipped = [parameter.grad.tolist() for parameter in parameters if parameter.grad is not None]
        assert clipped == [pytest.approx((gradient / 13.0).tolist()) for gradient in gradients]


# ---- overlap ----


def note_order(system: str) -> list[str]:
    """What the third step waits for and updates, in order; what is waited for has not arrived before."""
    lg.init()
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Linear(4, 4, bias=False) for _ in range(3)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    schedule_over(system, model, optimizer)
    synchronizer = Schedule.of(model).synchronizer
    events: list[str] = []
    own_wait, own_measure = synchronizer.wait, synchronizer.measure

    def wait(index: int) -> bool:
        events.append(f"average {index}")
        return own_wait(index)

    def measure(index: int) -> Any:
        events.append(f"measure {index}")
        return own_measure(index)

    synchronizer.wait, synchronizer.measure = wait, measure  # type: ignore[method-assign]
    synchronizer.poll = lambda index: index < 0  # type: ignore[method-assign]
    for layer in model:
        layer.register_forward_hook(lambda layer, *_: events.append(f"forward {list(model).index(layer)}"))
    for step in range(3):
        model(torch.randn(2, 4)).sum().backward()
        lg.clip_grad_norm_(model.parameters(), 0.1)
        optimizer.step()
        optimizer.zero_grad()
        if step == 1:
            events.clear()
    return list(events)


@pytest.mark.parametrize("system", ["native", "c10d:rsag", "c10d:dear"])
def test_updates_wait_for_the_norm_and_for_their_own_averages_only(crew: Crew, system: str) -> None:
    layers = [[f"average {index}", f"forward {index}"] for index in range(3)]
    expected = ["measure 0", "measure 1", "measure 2", *(event for layer in layers for event in layer)]
    assert crew.run(note_order, system) == [expected] * 2


def norm_without_averages(policy: str) -> tuple[int, bool]:
    """How many second halves were held back, and whether an average was there when the norm was."""
    lg.init()
    dist.init_process_group("gloo")
    model = nn.Sequential(*(nn.Linear(4, 4, bias=False) for _ in range(3)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    lg.schedule(model, optimizer, transport="c10d", policy=policy, partition_bytes=64, credit_bytes=1024)
    synchronizer = Schedule.of(model).synchronizer
    assert isinstance(synchronizer, C10dSynchronizer)
    transport = synchronizer._transport
    num_parts = len(transport._plan_at(1).buckets)  # no bucket is larger than a part here
    held: list[Part] = []
    all_held = threading.Event()
    own_start = transport.start

    def start(part: Part) -> None:
        if part.stage is not Stage.ALL_GATHER:
            own_start(part)
            return
        held.append(part)
        if len(held) == num_parts:
            all_held.set()

    for step in range(2):
        optimizer.zero_grad()
        if step == 1:
            transport.start = start  # type: ignore[method-assign]
        model(torch.randn(2, 4)).sum().backward()
        norm = lg.clip_grad_norm_(model, 1.0)
        optimizer.step()
    assert norm.item() > 0
    has_average = any(synchronizer.poll(index) for index in range(3))
    # Ranks match operations by their order: nothing may start beside what is started late.
    assert all_held.wait(20.0)
    seen = len(held), has_average
    transport.start = own_start  # type: ignore[method-assign]
    for part in held:
        transport.start(part)
    lg.flush(model)
    return seen


@pytest.mark.parametrize("policy", ["rsag", "dear"])
def test_over_a_process_group_the_norm_needs_first_halves_only(crew: Crew, policy: str) -> None:
    for num_held, has_average in crew.run(norm_without_averages, policy):
        assert num_held > 0
        assert not has_average


def ask_on_rank_0() -> list[float]:
    lg.init()
    dist.init_process_group("gloo")
    model = nn.Linear(3, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    lg.schedule(model, optimizer, transport="c10d", policy="rsag")
    for step in range(3):
        optimizer.zero_grad()
        model(torch.ones(1, 3)).sum().backward()
        if lg.rank() == 0:
            squares = lg.reduce_gradients(model, "sum of squares")
            assert isinstance(squares, Pending) == (step > 0)
            assert squares.tolist() == [6.0, 2.0]
        optimizer.step()
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()]).tolist()


def test_one_rank_that_asks_is_enough(crew: Crew) -> None:
    first, second = crew.run(ask_on_rank_0)
    assert first == second


def look_on_rank_0(system: str) -> list[float]:
    """In float32, where torch's norm and that of measures differ."""
    lg.init()
    dist.init_process_group("gloo")
    model = nn.Sequential(nn.Linear(64, 64), nn.Linear(64, 64))
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    schedule_over(system, model, optimizer)
    torch.manual_seed(1 + lg.rank())
    for _ in range(4):
        optimizer.zero_grad()
        model(torch.randn(8, 64)).square().sum().backward()
        if lg.rank() == 0:
            assert all(
                parameter.grad.isfinite().all() for parameter in model.parameters() if parameter.grad is not None
            )
        lg.clip_grad_norm_(model, 0.1)
        optimizer.step()
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()]).tolist()


@pytest.mark.parametrize("system", SYSTEMS)
def test_a_rank_that_has_looked_at_gradients_clips_as_the_others(crew: Crew, system: str) -> None:
    first, second = crew.run(look_on_rank_0, system)
    assert first == second


# ---- trouble ----


def lose_a_rank() -> float:
    lg.init()
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    lg.schedule(model, optimizer, transport="native")
    norm = torch.zeros(())
    for step in range(3):
        optimizer.zero_grad()
        if step == 2 and lg.rank() == 1:
            raise ZeroDivisionError
        model(torch.randn(2, 4)).sum().backward()
        norm = lg.clip_grad_norm_(model, 1.0)
        optimizer.step()
    return norm.item()


def test_a_rank_that_is_lost_is_named_by_whoever_reads_the_norm(crew: Crew) -> None:
    first, second = crew.outcomes(lose_a_rank)
    assert isinstance(second, ZeroDivisionError)
    assert isinstance(first, JobError)
    assert first.rank == 1


def test_a_norm_that_does_not_come_names_who_is_missing() -> None:
    def wait_for_rank_1(group: NativeGroup) -> None:
        exchange = Exchange(group, "gradients", [TensorSpec("weight", (4,), "float32")])
        exchange.set_measured()
        group.barrier()  # all ranks know its name
        value = torch.ones(4)
        if group.rank == 0:
            exchange.add(0, value.data_ptr(), value.nbytes, False, value)
        wait = partial(exchange.measure, 0) if group.rank == 0 else partial(group.barrier, 20.0)
        with pytest.raises(DeadlineError, match=r"weight', step 0: .* ranks 1 have not sent it") as caught:
            wait()
        assert caught.value.rank == 1

    configs = job_configs(Deployment(num_workers=2), timeout_s=1.5)
    run_job([replace(config, engine=EngineConfig(heartbeat_s=0.5)) for config in configs], wait_for_rank_1)


def wait_over_a_process_group() -> None:
    lg.init()
    dist.init_process_group("gloo")
    slots = [Slot(name, nn.Parameter(torch.zeros(4))) for name in ("first", "second")]
    config = StaticConfig(policy="rsag", bucket_bytes=16)
    synchronizer = C10dSynchronizer(
        ProcessGroup(20.0), "g", slots, lg.Compression.none, config=config, timeout_s=1.5 if lg.rank() == 0 else 20.0
    )
    for index in (1, 0):
        synchronizer.submit(index, torch.ones(4))
    synchronizer.set_measured()
    synchronizer.set_order([0, 1])
    synchronizer.submit(1, torch.ones(4))  # all ranks begin to follow the next plan
    if lg.rank() == 1:
        dist.barrier()
    synchronizer.submit(0, torch.ones(4))
    if lg.rank() == 0:
        words = "waited 1.5 s for the sums of step 1; REDUCE_SCATTER of 'g/first' .*: a rank has not started it"
        with pytest.raises(DeadlineError, match=words):
            synchronizer.measure(1)
        dist.barrier()
    dist.barrier()
    for index in range(2):
        assert synchronizer.measure(index) == (4.0, 1.0)
        assert synchronizer.wait(index)
    synchronizer.close()


def test_over_a_process_group_a_norm_that_does_not_come_names_what_is_missing(crew: Crew) -> None:
    crew.run(wait_over_a_process_group)


def overflow() -> str:
    lg.init()
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    lg.schedule(model, optimizer, transport="native")
    for step in range(3):
        optimizer.zero_grad()
        loss = model(torch.ones(1, 2)).sum()
        (loss * (torch.inf if step == 2 and lg.rank() == 1 else 1.0)).backward()
        try:
            lg.clip_grad_norm_(model, 1.0, error_if_nonfinite=True)
        except RuntimeError as error:
            return f"step {step}: {error}"
        optimizer.step()
    return "nothing noticed"


def test_a_norm_that_is_not_finite_is_an_error_for_those_who_ask(crew: Crew) -> None:
    for message in crew.run(overflow):
        assert message.startswith("step 2: the norm of the gradients is inf, so they cannot be clipped")
