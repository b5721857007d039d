"""Tensors of an accelerator, which travel through the host: for the machine that has one."""

import time
from dataclasses import astuple
from itertools import pairwise
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn

import legato.torch as lg
from legato.testing.log import said
from legato.torch.compression import compressor_of
from legato.torch.scheduling.hooks import Schedule
from legato.torch.sync.c10d import C10dSynchronizer
from legato.torch.sync.c10d_plan import StaticConfig
from legato.torch.sync.native import NativeSynchronizer
from legato.torch.sync.process_group import ProcessGroup
from legato.torch.sync.switching import Switching
from legato.torch.sync.synchronizer import Slot
from legato.torch.tuning.clock import DeviceClock
from legato.torch.tuning.profile import profile
from legato.torch.tuning.transport_trial import LOOK_STEPS
from tests.programs import Programs
from tests.torch.cases import schedule_over
from tests.torch.crew import Crew
from tests.torch.test_interruption import TIMEOUT_S, workers
from tests.torch.test_tuning import train

pytestmark = pytest.mark.cuda


def _collectives() -> None:
    lg.init()
    rank = lg.rank()
    mine = torch.full((2, 3), rank + 1.0, device="cuda")
    assert lg.allreduce(mine, op=lg.Sum).unique().tolist() == [3]
    assert lg.allreduce(mine > 1, op=lg.Max).all()
    assert lg.broadcast(mine, 1).unique().tolist() == [2]
    assert lg.allgather(mine)[:, 0].tolist() == [1, 1, 2, 2]
    assert lg.reducescatter(mine).tolist() == [[1.5] * 3]
    came = lg.alltoall(mine)
    assert isinstance(came, torch.Tensor)
    assert came[:, 0].tolist() == [1, 2]
    turned = mine.clone().t()
    assert lg.allreduce_(turned).is_cuda
    assert turned.unique().tolist() == [1.5]
    lg.broadcast_(mine, 0)
    assert mine.unique().tolist() == [1]
    x = torch.ones(3, device="cuda", requires_grad=True)
    (lg.allreduce(x) * (rank + 1)).sum().backward()
    assert x.grad is not None
    assert x.grad.tolist() == [1.5] * 3


def test_collectives(crew: Crew) -> None:
    crew.run(_collectives)


def _training() -> None:
    lg.init()
    for kind in ("optimizer", "ddp"):
        torch.manual_seed(0)
        whole = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 1)).cuda().double()
        torch.manual_seed(0)
        plain = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 1)).cuda().double()
        split = lg.SyncBatchNorm.convert_sync_batchnorm(plain)
        model = lg.DistributedDataParallel(split) if kind == "ddp" else split
        optimizers = [torch.optim.SGD(each.parameters(), lr=0.1) for each in (whole, model)]
        if kind == "optimizer":
            lg.DistributedOptimizer(optimizers[1], named_parameters=model.named_parameters())
        for _ in range(4):
            x = torch.randn(8, 3, device="cuda", dtype=torch.float64, generator=torch.Generator("cuda").manual_seed(1))
            whole(x).square().mean().backward()
            model(x[4 * lg.rank() :][:4]).square().mean().backward()
            for optimizer in optimizers:
                optimizer.step()
                optimizer.zero_grad()
        for a, b in zip(split.state_dict().values(), whole.state_dict().values(), strict=True):
            torch.testing.assert_close(a, b)


def test_training(crew: Crew) -> None:
    crew.run(_training)


def _clipped(device: str, system: str) -> None:
    """Scaled and clipped by torch's functions and by legato's, the same data: steps with an overflow, too."""
    lg.init()
    dist.init_process_group("gloo")
    results = []
    for clip, scaler in (
        (nn.utils.clip_grad_norm_, torch.amp.GradScaler(device, init_scale=64.0, growth_interval=2)),
        (lg.clip_grad_norm_, lg.GradScaler(device, init_scale=64.0, growth_interval=2)),
    ):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(3, 2048), nn.Tanh(), nn.Linear(2048, 512), nn.Tanh(), nn.Linear(512, 1))
        model = model.to(device).double()  # in float32, torch's own norm of a million numbers is 1e-4 off on a CPU
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
        schedule_over(system, model, optimizer)
        norms = []
        for step in range(8):
            generator = torch.Generator().manual_seed(10 * step + lg.rank())
            optimizer.zero_grad()
            inputs = torch.randn(8, 3, generator=generator, dtype=torch.float64).to(device)
            loss = model(inputs).square().mean()
            scaler.scale(loss * (torch.inf if step == 4 and lg.rank() else 1.0)).backward()
            scaler.unscale_(optimizer)
            norms.append(clip(model.parameters(), 0.1))
            scaler.step(optimizer)
            scaler.update()
        assert all(norm.device.type == device for norm in norms)
        results.append((nn.utils.parameters_to_vector(model.parameters()), torch.stack(norms), scaler.get_scale()))
        lg.unschedule(model)
    for one, other in zip(*results, strict=True):
        torch.testing.assert_close(one, other, equal_nan=True)


@pytest.mark.parametrize("system", ["native", "c10d:rsag", "c10d:dear"])
def test_clipping_and_scaling(crew: Crew, system: str) -> None:
    crew.run(_clipped, "cuda", system)


def _watched(system: str) -> None:
    """The same numbers as on the host."""
    lg.init()
    dist.init_process_group("gloo")
    seen = []
    for device in ("cpu", "cuda"):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(3, 64), nn.Tanh(), nn.Linear(64, 1)).to(device).double()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        schedule_over(system, model, optimizer)
        lg.watch_gradients(model, batch_size=8)
        for step in range(4):
            generator = torch.Generator().manual_seed(10 * step + lg.rank())
            optimizer.zero_grad()
            model(torch.randn(8, 3, generator=generator, dtype=torch.float64).to(device)).square().mean().backward()
            lg.clip_grad_norm_(model, 0.1)
            optimizer.step()
        seen.append(lg.metrics(model))
        lg.unschedule(model)
    for one, other in zip(*map(astuple, seen), strict=True):
        assert one == pytest.approx(other, rel=1e-9)


@pytest.mark.parametrize("system", ["native", "c10d:rsag"])
def test_metrics(crew: Crew, system: str) -> None:
    crew.run(_watched, system)


def _measured_over_nccl() -> None:
    """A group of one rank: its share is the whole, measured on the stream that has summed it."""
    dist.init_process_group("nccl", device_id=torch.device("cuda", torch.cuda.current_device()))
    slots = [Slot(name, nn.Parameter(torch.zeros(1000, device="cuda"))) for name in ("first", "second")]
    config = StaticConfig(policy="rsag", bucket_bytes=512)
    synchronizer = C10dSynchronizer(ProcessGroup(60.0), "g", slots, lg.Compression.none, config=config)
    for step in range(20):
        values = [step + torch.arange(1000.0, device="cuda"), torch.full((1000,), -2.0, device="cuda")]
        exact = [(each.double().square().sum().item(), each.abs().max().item()) for each in values]
        torch.cuda._sleep(10_000_000)  # gradients are late
        for index in (1, 0):
            synchronizer.submit(index, values[index].add_(0.0))
        assert synchronizer.is_measured(0) == (step > 0)
        told = [synchronizer.measure(index) for index in range(2)] if step else []
        for index, value in enumerate(values):
            assert synchronizer.wait(index)
            if step:
                assert told[index] == pytest.approx(exact[index], rel=1e-9)
                assert told[index] == synchronizer.measure_here(index, value)
        if step == 0:
            synchronizer.set_measured()
            synchronizer.set_order([0, 1])
    synchronizer.close()


def test_measures_over_nccl(crew: Crew) -> None:
    crew.run(_measured_over_nccl, size=1)


def _waiting() -> float:
    """The part of a wait for the device in which this thread was busy."""
    lg.init()
    model = nn.Linear(3, 3).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    lg.schedule(model, optimizer, transport="native")
    torch.cuda.synchronize()
    begin_s, busy_s = time.monotonic(), time.thread_time()
    while time.monotonic() < begin_s + 0.3:
        torch.cuda._sleep(100_000_000)
        torch.cuda.synchronize()
    busy_s, took_s = time.thread_time() - busy_s, time.monotonic() - begin_s
    lg.unschedule(model)
    return busy_s / took_s


def test_a_thread_that_waits_for_the_device_leaves_its_core_to_others(crew: Crew) -> None:
    for busy in crew.run(_waiting):
        assert busy < 0.5  # 1 where it spins


def _loosely(options: dict[str, Any]) -> list[float]:
    lg.init()
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 64), nn.Tanh(), nn.Linear(64, 1)).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    lg.schedule(model, optimizer, **options)
    before = nn.utils.parameters_to_vector(model.parameters()).tolist()
    for step in range(7):
        generator = torch.Generator("cuda").manual_seed(10 * step + lg.rank())
        optimizer.zero_grad()
        model(torch.randn(8, 3, device="cuda", generator=generator)).square().mean().backward()
        optimizer.step()
    lg.unschedule(model)
    after: list[float] = nn.utils.parameters_to_vector(model.parameters()).tolist()
    assert before != after
    return after


@pytest.mark.parametrize("options", [{"staleness": 2}, {"local_steps": 3}, {"backups": 1}], ids=str)
def test_ranks_that_wait_less_end_with_the_same_weights(crew: Crew, options: dict[str, Any]) -> None:
    one, other = crew.run(_loosely, options)
    assert one == other


def _choosing() -> tuple[list[float], str]:
    torch.distributed.init_process_group("gloo")
    lg.init()
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 64), nn.Tanh(), nn.Linear(64, 1)).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    lg.schedule(model, optimizer)
    schedule = Schedule.of(model)
    switching = schedule.synchronizer
    assert isinstance(switching, Switching)
    for step in range(64):
        generator = torch.Generator("cuda").manual_seed(10 * step + lg.rank())
        optimizer.zero_grad()
        model(torch.randn(8, 3, device="cuda", generator=generator)).square().mean().backward()
        optimizer.step()
    lg.flush(model)
    weights: list[float] = nn.utils.parameters_to_vector(model.parameters()).tolist()
    [left] = switching._synchronizers
    assert schedule.synchronizer is switching.over(left)
    return weights, left


def test_the_first_steps_choose_a_transport(crew: Crew) -> None:
    one, other = crew.run(_choosing)
    assert one == other


def _waits_for_a_sum() -> list[str]:
    """What is said after the first steps, in which rank 1 is late and its peer's stream, not its thread, waits."""
    torch.distributed.init_process_group("gloo")
    lg.init()
    model = nn.Linear(64, 64).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    lg.schedule(model, optimizer)
    with said("legato.torch.tuning.transport_trial") as lines:
        for _ in range(LOOK_STEPS + 3):
            optimizer.zero_grad()
            loss = model(torch.ones(1, 64, device="cuda")).sum()
            if lg.rank() == 1:
                torch.cuda._sleep(100_000_000)
            loss.backward()
            optimizer.step()
        lg.unschedule(model)
    return lines


def test_an_accelerator_that_waits_has_something_to_gain(crew: Crew) -> None:
    assert crew.run(_waits_for_a_sum) == [[], []], "the trial goes on"


def test_plans_are_tuned_by_the_accelerators_clock_and_no_result_changes(crew: Crew) -> None:
    (weights, plans), (weights_too, plans_too) = crew.run(train, "grid", 300, 3, "", "cuda")
    (untuned, _), _ = crew.run(train, "off", len(plans) + 2, None, "", "cuda")
    assert plans == plans_too
    assert len(set(plans)) == 3
    assert torch.equal(weights, weights_too)
    assert torch.equal(weights, untuned)


def _steps_counted() -> list[int]:
    lg.init()
    model = nn.Linear(64, 64).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    lg.schedule(model, optimizer, tuner="off")
    synchronizer = Schedule.of(model).synchronizer
    assert isinstance(synchronizer, NativeSynchronizer)
    counted = []
    for _ in range(3):
        optimizer.zero_grad()
        loss = model(torch.ones(1, 64, device="cuda")).sum()
        torch.cuda._sleep(100_000_000)
        loss.backward()
        counted.append(synchronizer.num_steps)
        optimizer.step()
    lg.flush(model)
    return counted


def test_a_step_counts_when_it_is_given_and_not_when_the_accelerator_has_come_so_far(crew: Crew) -> None:
    assert crew.run(_steps_counted) == [[1, 2, 3]] * 2


def _ahead() -> bool:
    """Whether rank 0 had queued work behind an average to which rank 1 had not contributed yet."""
    torch.distributed.init_process_group("gloo")
    job = lg.init()
    # Of several pieces, the last of them not whole.
    slots = [Slot("p", nn.Parameter(torch.zeros((5 << 20) // 4 + 7, device="cuda")))]
    synchronizer = NativeSynchronizer(job.group, job.name("ahead"), slots, compressor_of(None), runs_ahead=True)
    (slots[0].parameter * 2).sum().item()  # a kernel that is loaded behind a wait makes its thread wait, too
    was_ahead = True
    for step in range(3):
        if lg.rank() == 1:
            torch.distributed.barrier()
        gradient = torch.full_like(slots[0].parameter, step + lg.rank(), requires_grad=False)
        synchronizer.submit(0, gradient)
        assert synchronizer.wait(0)
        is_early = not synchronizer.poll(0)
        twice = (synchronizer.result(0) * 2).sum()
        queued = torch.cuda.current_stream().record_event()
        if lg.rank() == 0:
            was_ahead = was_ahead and is_early and not queued.query()
            torch.distributed.barrier()
        synchronizer.confirm()
        assert twice.item() == (2 * step + 1) * slots[0].parameter.numel()
    synchronizer.close()
    return was_ahead


def test_a_stream_waits_for_an_average_and_its_thread_goes_on(crew: Crew) -> None:
    assert crew.run(_ahead) == [True, True]


class _Halves(nn.Module):
    """Its first layer is on the host, as a large embedding may be."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(64, 64), nn.Linear(64, 64).cuda()

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        second: torch.Tensor = self.second(self.first(values).cuda())
        return second


def _on_both(rate: float) -> list[float]:
    lg.init()
    torch.manual_seed(0)
    model = _Halves()
    optimizer = torch.optim.SGD(model.parameters(), lr=rate)
    lg.schedule(model, optimizer, transport="native", tuner="off")
    for step in range(3):
        optimizer.zero_grad()
        model(torch.full((2, 64), 1.0 + step + lg.rank())).square().mean().backward()
        optimizer.step()
    lg.unschedule(model)
    return [parameter.sum().item() for parameter in model.parameters()]


def test_a_model_on_the_host_and_an_accelerator(crew: Crew) -> None:
    one, other = crew.run(_on_both, 0.01)
    assert one == other
    assert one != crew.run(_on_both, 0.0)[0]


LOSS = """
import gc
import sys
import torch
from torch import nn
import legato.torch as lg
from legato.errors import JobError

lg.init()
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(1024, 2048), nn.ReLU(), nn.Linear(2048, 1024)).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
lg.schedule(model, optimizer, transport="native", tuner="off", compression=sys.argv[1])
values = torch.ones(4, 1024, device="cuda")
for step in range(7):
    optimizer.zero_grad()
    loss = model(values).sum()
    if step == 6:
        break  # rank 0: all of this is queued behind averages to which rank 1 does not contribute
    if step == 5 and lg.rank() == 1:
        print("there", flush=True)
        sys.stdin.readline()  # and is killed
    loss.backward()
    optimizer.step()
print("waiting", flush=True)
print(loss.item(), flush=True)
try:
    lg.flush(model)
except JobError as error:
    print("rank", error.rank, flush=True)
before = torch.cuda.memory_allocated()
lg.shutdown(now=True)
del model, optimizer, loss
gc.collect()
torch.cuda.synchronize()
torch._C._cuda_clearCublasWorkspaces()  # which are no smaller than this model
print(torch.cuda.memory_allocated() < before / 4, flush=True)
"""


@pytest.mark.parametrize("compression", ["none", "onebit+ef"])
def test_a_peer_is_killed_while_kernels_wait_for_its_gradients(programs: Programs, compression: str) -> None:
    """The stream goes on with NaN, the next call names the rank, and memory is free again."""
    with workers(programs, ["-c", LOSS, compression], ["waiting\n", "there\n"]) as (other, victim):
        victim.kill()
        output, errors = other.communicate(timeout=TIMEOUT_S)
        assert output.splitlines() == ["nan", "rank 1", "True"], errors
        assert other.returncode == 0, errors


def _times() -> list[int]:
    clock = DeviceClock(torch.device("cuda", torch.cuda.current_device()))
    start_ns = clock.begin()
    times_ns = [start_ns]
    for _ in range(2):
        stamps = []
        for _ in range(3):
            torch.cuda._sleep(10_000_000)
            stamps.append(clock.stamp())
        times_ns += clock.times_ns(stamps)
    return times_ns


def test_an_accelerators_clock_goes_on_from_step_to_step() -> None:
    times_ns = _times()
    passed = [after - before for before, after in pairwise(times_ns)]
    assert min(passed) > 1_000_000
    assert max(passed) < 3 * min(passed), "each mark comes after the same work"


def test_profiles_come_from_the_devices_own_events() -> None:
    model = nn.Sequential(nn.Linear(512, 1024), nn.ReLU(), nn.Linear(1024, 512)).cuda()
    measured = profile("cuda", model, torch.ones(64, 512, device="cuda"))
    assert [layer.num_bytes for layer in measured.layers] == [4 * (512 * 1024 + 1024), 4 * (1024 * 512 + 512)]
    assert all(layer.forward_s > 0 and layer.backward_s > 0 for layer in measured.layers)
