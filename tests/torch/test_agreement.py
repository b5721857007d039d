"""What ranks agree on about a parameter, and what happens to one that is no longer what they agreed on."""

from typing import Any

import pytest
import torch
from torch import nn

import legato.torch as lg
from legato.errors import InputError, JobError, LegatoError, MismatchError
from tests.torch.crew import Crew

TRANSPORTS = ["native", "c10d"]


def net() -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2))


def train(model: nn.Module, optimizer: torch.optim.Optimizer, inputs: torch.Tensor, num: int = 1) -> None:
    for _ in range(num):
        optimizer.zero_grad()
        model(inputs).square().sum().backward()
        optimizer.step()


def _cast(how: str, transport: str) -> tuple[str, bool]:
    """A model cast after `schedule`: the message, and whether the memory behind a gradient is as it was."""
    lg.init()
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    lg.schedule(model, optimizer, transport=transport)
    train(model, optimizer, torch.ones(3, 4), 3)
    lg.flush(model)
    getattr(model, how)()
    weight = model.get_parameter("2.weight")
    around = torch.full((8 * weight.numel(),), 7.0, dtype=weight.dtype)
    weight.grad = around[: weight.numel()].view(weight.shape).zero_()
    try:
        model(torch.ones(3, 4, dtype=weight.dtype)).square().sum().backward()
        optimizer.step()
        lg.flush(model)
    except InputError as error:
        return str(error), bool((around[weight.numel() :] == 7.0).all())
    return "nothing noticed", bool((around[weight.numel() :] == 7.0).all())


@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize(("how", "dtype"), [("half", "float16"), ("bfloat16", "bfloat16"), ("double", "float64")])
def test_a_model_cast_after_schedule_is_refused_and_no_memory_is_touched(
    crew: Crew, how: str, dtype: str, transport: str
) -> None:
    for message, untouched in crew.run(_cast, how, transport):
        assert untouched
        assert "parameter '2." in message
        assert "float32" in message
        assert dtype in message
        assert "schedule" in message


def _cast_with_updates_due(local_steps: int, staleness: int) -> None:
    lg.init()
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    lg.schedule(model, optimizer, local_steps=local_steps, staleness=staleness)
    train(model, optimizer, torch.ones(3, 4), 3)
    model.double()
    train(model, optimizer, torch.ones(3, 4, dtype=torch.float64), 3)


@pytest.mark.parametrize(("local_steps", "staleness"), [(1, 0), (2, 0), (1, 2)])
def test_a_cast_is_noticed_wherever_weights_or_gradients_travel(crew: Crew, local_steps: int, staleness: int) -> None:
    first, *others = sorted(
        crew.outcomes(_cast_with_updates_due, local_steps, staleness), key=lambda each: not isinstance(each, InputError)
    )
    assert isinstance(first, InputError)
    assert "parameter '" in str(first)
    assert "float64" in str(first)
    assert all(isinstance(each, InputError | JobError) for each in others)  # one may hear of the other's end first


def _cast_with(kind: str) -> None:
    lg.init()
    model: Any = net()
    optimizer: Any = torch.optim.SGD(model.parameters(), lr=0.1)
    if kind == "optimizer":
        optimizer = lg.DistributedOptimizer(optimizer, model.named_parameters())
    else:
        model = lg.DistributedDataParallel(model)
    train(model, optimizer, torch.ones(3, 4), 2)
    model.double()
    train(model, optimizer, torch.ones(3, 4, dtype=torch.float64))


@pytest.mark.parametrize("kind", ["optimizer", "module"])
def test_the_other_interfaces_notice_a_cast_as_well(crew: Crew, kind: str) -> None:
    for outcome in crew.outcomes(_cast_with, kind):
        assert isinstance(outcome, InputError)
        assert "float64" in str(outcome)


class Transposable(nn.Module):
    """A matrix whose orientation is the rank's own."""

    def __init__(self, transposed: bool) -> None:
        super().__init__()
        self.inner = nn.Linear(3, 3)
        self.matrix = nn.Parameter(torch.ones(3, 5) if transposed else torch.ones(5, 3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(x) @ (self.matrix if self.matrix.shape[0] == 3 else self.matrix.t())


def _transposed(interface: str) -> None:
    lg.init()
    model: Any = Transposable(lg.rank() == 1)
    optimizer: Any = torch.optim.SGD(model.parameters(), lr=0.1)
    if interface == "optimizer":
        optimizer = lg.DistributedOptimizer(optimizer, model.named_parameters())
    elif interface == "module":
        model = lg.DistributedDataParallel(model)
    else:
        lg.schedule(model, optimizer, transport=interface)
    train(model, optimizer, torch.ones(2, 3), 2)


@pytest.mark.parametrize("interface", [*TRANSPORTS, "optimizer", "module"])
def test_a_matrix_that_one_rank_has_transposed_is_named_with_both_shapes(crew: Crew, interface: str) -> None:
    for outcome in crew.outcomes(_transposed, interface):
        assert isinstance(outcome, MismatchError)
        for part in ("'matrix'", "(5, 3)", "(3, 5)", "rank 0", "rank 1"):
            assert part in str(outcome)


def _larger(interface: str) -> None:
    lg.init()
    model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8 if lg.rank() == 0 else 9))
    if interface == "module":
        lg.DistributedDataParallel(model)
    elif interface == "broadcast":
        lg.broadcast_parameters(model.state_dict())
    else:
        lg.schedule(model, torch.optim.SGD(model.parameters(), lr=0.1), transport=interface)


@pytest.mark.parametrize("interface", [*TRANSPORTS, "module", "broadcast"])
def test_models_that_differ_at_the_start_are_named_by_parameter(crew: Crew, interface: str) -> None:
    for outcome in crew.outcomes(_larger, interface):
        assert isinstance(outcome, MismatchError)
        for part in ("'1.weight'", "(8,)", "(9,)"):
            assert part in str(outcome)


def conv() -> nn.Sequential:
    torch.manual_seed(3)
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.Flatten(), nn.Linear(16, 2))


def image(rank: int) -> torch.Tensor:
    return torch.randn(2, 3, 4, 4, generator=torch.Generator().manual_seed(rank))


def _formats(interface: str, where: str) -> float:
    """One rank's parameters, or only its gradients, lie in memory in another order; the largest wrong weight."""
    lg.init()
    model: Any = conv()
    if where == "parameters" and lg.rank() == 1:
        model.to(memory_format=torch.channels_last)
    optimizer: Any = torch.optim.SGD(model.parameters(), lr=0.1)
    if interface == "optimizer":
        optimizer = lg.DistributedOptimizer(optimizer, model.named_parameters())
    elif interface == "module":
        model = lg.DistributedDataParallel(model)
    else:
        lg.schedule(model, optimizer, transport=interface)
    expected = conv()
    by_hand = torch.optim.SGD(expected.parameters(), lr=0.1)
    for _ in range(3):
        optimizer.zero_grad()
        if where == "gradients" and lg.rank() == 1:
            for parameter in model.parameters():
                if parameter.dim() == 4:
                    parameter.grad = torch.zeros_like(parameter, memory_format=torch.channels_last)
        model(image(lg.rank())).square().sum().backward()
        optimizer.step()
        by_hand.zero_grad()
        sum(expected(image(rank)).square().sum() for rank in range(2)).div(2).backward()
        by_hand.step()
    found, wanted = model.state_dict().values(), expected.state_dict().values()
    return max((a - b).abs().max().item() for a, b in zip(found, wanted, strict=True))


@pytest.mark.parametrize("where", ["parameters", "gradients"])
@pytest.mark.parametrize("interface", [*TRANSPORTS, "optimizer", "module"])
def test_elements_meet_whatever_order_they_lie_in(crew: Crew, interface: str, where: str) -> None:
    assert max(crew.run(_formats, interface, where)) < 1e-5


def _collective() -> str:
    lg.init()
    try:
        lg.allreduce(torch.ones(2, 3) if lg.rank() == 0 else torch.ones(3, 2), name="mine")
    except LegatoError as error:
        return str(error)
    return "nothing noticed"


def test_collectives_compare_shapes(crew: Crew) -> None:
    for message in crew.run(_collective):
        assert "(2, 3)" in message
        assert "(3, 2)" in message


def _share_state() -> tuple[float, int, float]:
    """An LR scheduler and a scaler that are further on rank 0: where they are after `schedule`."""
    lg.init()
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.5)
    scaler = lg.GradScaler("cpu", init_scale=8.0 if lg.rank() == 0 else 4.0)
    if lg.rank() == 0:
        optimizer.step()
        scheduler.step()
    lg.schedule(model, optimizer, transport="native", state=[scheduler, scaler])
    return optimizer.param_groups[0]["lr"], scheduler.last_epoch, scaler.get_scale()


def test_other_state_becomes_that_of_rank_0(crew: Crew) -> None:
    assert crew.run(_share_state) == [(0.5, 1, 8.0)] * 2


def _share_other_state() -> str:
    lg.init()
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    state = [lg.GradScaler("cpu")] if lg.rank() == 0 else []
    with pytest.raises(MismatchError) as caught:
        lg.schedule(model, optimizer, transport="native", state=state)
    return str(caught.value)


def test_ranks_that_share_other_objects_are_told(crew: Crew) -> None:
    for message in crew.run(_share_other_state):
        assert "state=GradScaler" in message
