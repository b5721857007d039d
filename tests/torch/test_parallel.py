"""DistributedDataParallel beside torch's own: the same losses, gradients and names."""

import copy
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel as TorchDDP
from torch.utils.checkpoint import checkpoint

import legato.torch as lg
from legato.errors import InputError
from legato.torch.compat.joining import EarlyEndError
from tests.torch.crew import Crew

BATCH = 4


class Net(nn.Module):
    """Layers with buffers, a tied weight, and a branch that a batch may leave out."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(3, 6)
        self.norm = nn.BatchNorm1d(6)
        self.branch = nn.Linear(6, 6)
        self.last = nn.Linear(6, 3)
        self.frozen = nn.Parameter(torch.ones(1), requires_grad=False)

    def forward(self, x: torch.Tensor, branch: bool = True) -> dict[str, torch.Tensor]:
        hidden = torch.relu(self.norm(self.first(x)))
        hidden = self.branch(hidden) if branch else hidden
        return {"out": functional.linear(self.last(hidden), self.first.weight[:3], self.first.bias[:3]) * self.frozen}


def data(steps: int) -> list[torch.Tensor]:
    """Every rank's own batches."""
    rank = dist.get_rank() if dist.is_initialized() else lg.rank()
    generator = torch.Generator().manual_seed(100 + rank)
    return [torch.randn(BATCH, 3, generator=generator, dtype=torch.float64) for _ in range(steps)]


def train(model: nn.Module, how: str, steps: int = 6) -> list[float]:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=0.01)
    losses = []
    for step, x in enumerate(data(steps)):
        keywords = {"branch": step % 3 != 1} if how == "unused" else {}
        if how == "different" and dist.get_rank() == 0:
            keywords = {"branch": False}

        def backward(x: torch.Tensor = x, keywords: dict[str, bool] = keywords) -> None:
            loss = model(x, **keywords)["out"].square().mean()
            losses.append(loss.item())
            loss.backward()

        if how == "no_sync":
            with model.no_sync():  # type: ignore[operator]
                backward()
        backward()
        if how == "clip":
            nn.utils.clip_grad_norm_(model.parameters(), 0.01)
        optimizer.step()
        optimizer.zero_grad(set_to_none=step % 2 == 0)
    with torch.no_grad():
        losses.append(model.eval()(data(1)[0])["out"].square().mean().item())
    return losses


def _side_by_side(how: str) -> tuple[list[float], list[float]]:
    lg.init()
    dist.init_process_group("gloo")
    torch.manual_seed(lg.rank())  # both take rank 0's weights
    module = Net().double()
    unused = how in ("unused", "different")
    theirs = TorchDDP(copy.deepcopy(module), find_unused_parameters=unused)
    ours = lg.DistributedDataParallel(module, find_unused_parameters=unused)
    assert ours.state_dict().keys() == theirs.state_dict().keys()
    expected, losses = train(theirs, how), train(ours, how)
    for (name, a), b in zip(ours.state_dict().items(), theirs.state_dict().values(), strict=True):
        torch.testing.assert_close(a, b, msg=name)
    theirs.load_state_dict(ours.state_dict())
    return expected, losses


@pytest.mark.parametrize("how", ["plain", "no_sync", "unused", "different", "clip"])
def test_trains_as_torchs(crew: Crew, how: str) -> None:
    for expected, losses in crew.run(_side_by_side, how):
        assert losses == pytest.approx(expected, rel=1e-12)


def _alone() -> None:
    lg.init()
    module = Net().double()
    model = lg.DistributedDataParallel(module)
    assert model.module is module
    with model.join(), model.no_sync():
        model(data(1)[0])["out"].sum().backward()
    assert module.first.weight.grad is not None
    model.synchronize()


def test_a_job_of_one(crew: Crew) -> None:
    crew.run(_alone, size=1)


def _copied() -> None:
    lg.init()
    model = lg.DistributedDataParallel(nn.Linear(1, 1, bias=False))
    x = torch.full((1, 1), lg.rank() + 1.0)
    for each, expected in (
        (copy.deepcopy(model), lg.rank() + 1.0),  # a copy trains alone
        (pickle.loads(pickle.dumps(model)), lg.rank() + 1.0),
        (model, 1.5),
    ):
        each(x).sum().backward()
        assert each.get_parameter("module.weight").grad == expected


def test_copies(crew: Crew) -> None:
    crew.run(_copied)


def _nobody_used_anything() -> None:
    """A rank whose batch leaves all parameters out still takes part: the others' backward must not wait for it."""
    lg.init()
    p = nn.Linear(1, 1, bias=False)
    nn.init.ones_(p.weight)

    class Sometimes(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = p

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.as_tensor(self.layer(x)) if lg.rank() else x * 2

    model = lg.DistributedDataParallel(Sometimes())
    x = torch.ones(1, 1, requires_grad=True)
    model(x).sum().backward()
    assert p.weight.grad is not None
    assert p.weight.grad.item() == 0.5


def test_a_rank_that_uses_nothing(crew: Crew) -> None:
    crew.run(_nobody_used_anything)


class Failing(torch.autograd.Function):
    """Fails in the first backward pass on rank 0."""

    passes = 0

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        del ctx
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        del ctx
        Failing.passes += 1
        if Failing.passes == 1 and lg.rank() == 0:
            raise ArithmeticError("on purpose")
        return gradient


def _failing_backward() -> None:
    lg.init()
    Failing.passes = 0

    class Layers(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.last = nn.Linear(1, 1, bias=False), nn.Linear(1, 1, bias=False)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.as_tensor(self.last(Failing.apply(self.first(x))))  # type: ignore[no-untyped-call]

    model = lg.DistributedDataParallel(Layers())
    for each in model.parameters():
        nn.init.ones_(each)
    x = torch.full((1, 1), lg.rank() + 1.0)
    if lg.rank() == 0:
        with pytest.raises(ArithmeticError):
            model(x).sum().backward()
    else:
        model(x).sum().backward()
    model.zero_grad()
    model(x).sum().backward()  # the others have waited for rank 0 to come here
    assert [each.grad for each in model.parameters()] == [1.5, 1.5]


def test_an_exception_in_backward(crew: Crew) -> None:
    crew.run(_failing_backward)


def _checkpointed(reentrant: bool) -> None:
    lg.init()
    layers = [nn.Linear(2, 2, bias=False, dtype=torch.float64) for _ in range(3)]

    class Checkpointed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList(layers)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for layer in self.layers:
                x = checkpoint(layer, x, use_reentrant=reentrant)
            return x

    model = lg.DistributedDataParallel(Checkpointed())
    x = torch.full((1, 2), lg.rank() + 1.0, dtype=torch.float64, requires_grad=True)
    model(x).sum().backward()
    averages = [layer.weight.grad for layer in layers]
    expected = [torch.zeros_like(layer.weight) for layer in layers]
    for rank in range(lg.size()):
        y = torch.full((1, 2), rank + 1.0, dtype=torch.float64)
        for layer in layers:
            y = layer(y)
        gradients = torch.autograd.grad(y.sum(), [layer.weight for layer in layers])
        expected = [total + each / lg.size() for total, each in zip(expected, gradients, strict=True)]
    torch.testing.assert_close(averages, expected)


@pytest.mark.parametrize("reentrant", [True, False])
def test_checkpointing(crew: Crew, reentrant: bool) -> None:
    crew.run(_checkpointed, reentrant)


def _refusals() -> None:
    lg.init()
    with pytest.raises(InputError, match="process_group"):
        lg.DistributedDataParallel(nn.Linear(1, 1), process_group=object())
    with pytest.raises(InputError, match="nothing to average"):
        lg.DistributedDataParallel(nn.ReLU())


def test_refusals(crew: Crew) -> None:
    crew.run(_refusals, size=1)


# ---- uneven inputs ----


def _uneven(num_batches: list[int], divide_by_all: bool) -> tuple[list[float], float, float]:
    lg.init()
    layer = nn.Linear(1, 1, bias=False)
    norm = nn.BatchNorm1d(1, affine=False)
    model = lg.DistributedDataParallel(nn.Sequential(norm, layer))
    nn.init.zeros_(layer.weight)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    seen = []
    with model.join(divide_by_initial_world_size=divide_by_all):
        for batch in range(num_batches[lg.rank()]):
            if batch == 0:
                with model.no_sync():
                    model(torch.tensor([[1.0], [-1.0]]))
            optimizer.zero_grad()
            (model(torch.tensor([[1.0], [-1.0]])) * torch.tensor([[1.0], [-1.0]])).mean().backward()
            optimizer.step()
            assert layer.weight.grad is not None
            seen.append(round(layer.weight.grad.item(), 4))
    assert norm.num_batches_tracked is not None
    return seen, round(layer.weight.item(), 3), float(norm.num_batches_tracked)


@pytest.mark.parametrize("divide_by_all", [True, False])
@pytest.mark.parametrize("num_batches", [[1, 3], [3, 1], [2, 2], [0, 2, 1]])
def test_join(crew: Crew, num_batches: list[int], divide_by_all: bool) -> None:
    size = len(num_batches)
    training = [sum(count > batch for count in num_batches) for batch in range(max(num_batches))]
    gradients = [num / size if divide_by_all else 1.0 for num in training]
    for rank, (seen, weight, num_tracked) in enumerate(
        crew.run(_uneven, num_batches, divide_by_all, size=len(num_batches))
    ):
        assert seen == pytest.approx(gradients[: num_batches[rank]], abs=1e-3)
        assert weight == pytest.approx(-sum(gradients), abs=1e-2), "everybody ends with the last one's model"
        assert num_tracked == max(num_batches) + 1


def _early() -> None:
    lg.init()
    model = lg.DistributedDataParallel(nn.Linear(1, 1))

    def train_on(num_batches: int) -> None:
        with model.join(throw_on_early_termination=True):
            for _ in range(num_batches):
                model(torch.ones(1, 1)).sum().backward()

    with pytest.raises(EarlyEndError, match="ranks 0 have no data"):
        train_on(1 + lg.rank())


def test_early_end(crew: Crew) -> None:
    crew.run(_early)


# ---- torch's own class ----


def _hooked(compression: str | None) -> tuple[list[float], list[float]]:
    lg.init()
    dist.init_process_group("gloo")
    module = Net().double()
    theirs = TorchDDP(copy.deepcopy(module), bucket_cap_mb=1)
    hooked = TorchDDP(copy.deepcopy(module), bucket_cap_mb=1)
    hooked.register_comm_hook(lg.ddp_state(compression=compression), lg.ddp_hook)
    return train(theirs, "plain"), train(hooked, "plain")


@pytest.mark.parametrize(("compression", "tolerance"), [(None, 1e-12), ("bf16", 0.1)])
def test_communication_hook(crew: Crew, compression: str | None, tolerance: float) -> None:
    for expected, losses in crew.run(_hooked, compression):
        assert losses == pytest.approx(expected, rel=tolerance)


def test_exported() -> None:
    assert sorted(lg.__all__) == lg.__all__
    documented: list[Callable[..., Any]] = [getattr(lg, name) for name in lg.__all__]
    assert all(documented)
