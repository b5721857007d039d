"""Accelerate: a loop over `LegatoAccelerator` trains what it trains over `Accelerator`'s DDP."""

import contextlib
from collections.abc import Iterator
from importlib.util import find_spec
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import legato.torch as lg
from legato.errors import InputError
from legato.torch.scheduling.gradients import PendingGradient
from legato.torch.scheduling.hooks import Schedule
from tests.torch.crew import Crew

pytestmark = pytest.mark.skipif(find_spec("accelerate") is None, reason="needs accelerate")

STEPS = 6
BATCH = 4
TOLERANCE = 1e-6
"""Of weights where gradients are clipped: torch adds norms up in float32, legato in float64."""


@contextlib.contextmanager
def forgetting() -> Iterator[None]:
    """Accelerate's state is the process's; the next test of this process starts anew."""
    from accelerate.state import AcceleratorState, GradientState

    try:
        yield
    finally:
        AcceleratorState._reset_state(reset_partial_state=True)
        GradientState._reset_state()


def net() -> nn.Sequential:
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 2))


def data() -> "DataLoader[Any]":
    generator = torch.Generator().manual_seed(7)
    return DataLoader(TensorDataset(torch.randn(2 * BATCH * STEPS, 8, generator=generator)), batch_size=BATCH)


def fit(accelerator: Any, folder: str, clip: float | None) -> list[torch.Tensor]:
    """The weights when the state is saved half-way, at the end, and when training went on from the saved state."""
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    warm_up = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min((step + 1) / 8, 1.0))
    # In this order: an optimizer before its model.
    warm_up, optimizer, loader, model = accelerator.prepare(warm_up, optimizer, data(), model)
    found = []

    def steps(first: int, last: int) -> torch.Tensor:
        for batch in list(loader)[first:last]:
            with accelerator.accumulate(model):
                optimizer.zero_grad()
                accelerator.backward(model(batch[0]).square().mean())
                if clip is not None and accelerator.sync_gradients:
                    accelerator.clip_grad_norm_(model.parameters(), clip)
                optimizer.step()
                warm_up.step()
        state = accelerator.unwrap_model(model).state_dict()
        return torch.cat([value.reshape(-1) for value in state.values()]).clone()

    found.append(steps(0, 2))
    accelerator.save_state(f"{folder}/{type(accelerator).__name__}")
    found.append(steps(2, 6))
    accelerator.load_state(f"{folder}/{type(accelerator).__name__}")
    found.append(steps(2, 6))
    accelerator.free_memory()
    return found


def compare(folder: str, name: str) -> tuple[float, list[float]]:
    """The largest difference of any weight to DDP's, and the weights in the end."""
    from accelerate import Accelerator
    from accelerate.utils import GradScalerKwargs

    from legato.integrations.accelerate import LegatoAccelerator

    def made() -> Any:
        kwargs = GradScalerKwargs(init_scale=8.0)
        accelerator = Accelerator(
            cpu=True, gradient_accumulation_steps=2 if name == "accumulated" else 1, kwargs_handlers=[kwargs]
        )
        if name == "scaled":  # as on accelerators; on processors, Accelerate itself never scales
            accelerator.scaler = torch.amp.GradScaler("cpu", **kwargs.to_kwargs())
        return accelerator

    clip = 0.05 if name == "clipped" else None
    with forgetting():
        theirs = fit(made(), folder, clip)
        accelerator = made()
        LegatoAccelerator.adopt(accelerator)
        assert (type(accelerator.scaler) is lg.GradScaler) == (name == "scaled")
        ours = fit(accelerator, folder, clip)
        assert name != "scaled" or accelerator.scaler.get_scale() == 8.0
    assert not torch.equal(ours[0], ours[1])
    assert torch.equal(ours[1], ours[2])
    difference = max((mine - other).abs().max().item() for mine, other in zip(ours, theirs, strict=True))
    return difference, ours[1].tolist()


def test_trains_as_over_ddp(crew: Crew, tmp_path: Any) -> None:
    ends = {}
    for name in ("plain", "accumulated", "clipped", "scaled"):
        for difference, end in crew.run(compare, str(tmp_path), name):
            assert difference <= (TOLERANCE if name == "clipped" else 0.0), name
            ends[name] = end
    assert ends["scaled"] == ends["plain"]  # by a power of two
    assert ends["accumulated"] != ends["plain"]
    assert ends["clipped"] != ends["plain"]


def refusals() -> list[str]:
    """What each mistake is told."""
    from accelerate import Accelerator, DistributedDataParallelKwargs, DistributedType
    from accelerate.utils.dataclasses import DDPCommunicationHookType

    from legato.integrations.accelerate import LegatoAccelerator

    told = []

    def refused(mistake: Any) -> None:
        with forgetting(), pytest.raises(InputError) as error:
            mistake()
        told.append(str(error.value))

    def without_optimizer() -> None:
        accelerator = LegatoAccelerator(cpu=True)
        model = accelerator.prepare(net())
        with torch.no_grad():
            model(torch.ones(1, 8))  # evaluating needs none
        model(torch.ones(1, 8))

    def of_another_model() -> None:
        accelerator = LegatoAccelerator(cpu=True)
        accelerator.prepare(net(), torch.optim.SGD(net().parameters(), lr=0.1))

    def sharded() -> None:
        accelerator = Accelerator(cpu=True)
        accelerator.state.distributed_type = DistributedType.FSDP
        LegatoAccelerator.adopt(accelerator)

    def hooked() -> None:
        handler = DistributedDataParallelKwargs(comm_hook=DDPCommunicationHookType.FP16)
        LegatoAccelerator(cpu=True, kwargs_handlers=[handler])

    refused(without_optimizer)
    refused(of_another_model)
    refused(sharded)
    refused(hooked)
    if not torch.cuda.is_available():
        refused(LegatoAccelerator)  # without cpu=True, Accelerate takes each process for the only one
    return told


def test_what_would_train_alone_is_refused(crew: Crew) -> None:
    for told in crew.run(refusals):
        assert "prepared, but not its optimizer: nobody would average its gradients" in told[0]
        assert "no model prepared for training has all parameters of this SGD" in told[1]
        assert "distributed_type is FSDP; legato takes the place of DistributedDataParallel" in told[2]
        assert "comm_hook is fp16" in told[3]
        assert all("on processors with cpu=True" in line for line in told[4:])


def due() -> tuple[list[bool], bool, bool, bool]:
    """Whether gradients travel, in `no_sync` and after it; whether updates are left for the next forward pass, also if
    clipped; whether `end_training` applies them; and whether the model can be prepared again."""
    from legato.integrations.accelerate import LegatoAccelerator

    with forgetting():
        accelerator = LegatoAccelerator(cpu=True, schedule={"transport": "native", "tuner": "off"})
        model = net()
        model, optimizer = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
        schedule = Schedule.of(model)
        travel = []
        for _ in range(3):
            optimizer.zero_grad()
            with accelerator.no_sync(model):
                accelerator.backward(model(torch.ones(2, 8)).square().mean())
            travel.append(isinstance(model[0].weight.grad, PendingGradient))
            accelerator.backward(model(torch.ones(2, 8)).square().mean())
            travel.append(isinstance(model[0].weight.grad, PendingGradient))
            accelerator.clip_grad_norm_(model.parameters(), 0.05)
            optimizer.step()
        is_due = any(each.due is not None for each in schedule._parameters.all)
        before = model[0].weight.detach().clone()
        accelerator.end_training()
        is_applied = not torch.equal(before, model[0].weight)
        model, optimizer = accelerator.prepare(model, optimizer)
        return travel, is_due, is_applied, Schedule.of(model) is not schedule


def test_updates_are_left_for_the_next_forward_pass_and_applied_in_the_end(crew: Crew) -> None:
    assert crew.run(due) == [([False, True] * 3, True, True, True)] * 2
