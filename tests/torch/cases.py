"""Training in all the ways that have been a bug somewhere: each case is a model, its data, and how a step is taken."""

import contextlib
import math
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional

import legato.torch as lg

STEPS = 50
Batch = tuple[torch.Tensor, torch.Tensor]


class HalfSgd(torch.optim.Optimizer):
    """A user's own optimizer: half the learning rate for biases, and a count of its steps by parameter."""

    def __init__(self, params: Any, lr: float) -> None:
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> None:  # type: ignore[override]
        if closure is not None:
            with torch.enable_grad():
                closure()
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    state = self.state[parameter]
                    state["count"] = state.get("count", 0) + 1
                    rate = group["lr"] / math.sqrt(state["count"])
                    parameter.sub_(parameter.grad, alpha=rate if parameter.dim() > 1 else rate / 2)


OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "sgd": lambda params: torch.optim.SGD(params, lr=0.05, momentum=0.9, weight_decay=1e-3),
    "adamw": lambda params: torch.optim.AdamW(params, lr=0.01),
    "adafactor": lambda params: torch.optim.Adafactor(params, lr=0.01),
    "own": lambda params: HalfSgd(params, lr=0.1),
}


class Case:
    """The plain case, and what the others override."""

    def model(self) -> nn.Module:
        return nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 8), nn.Tanh(), nn.Linear(8, 3))

    def parameters(self, model: nn.Module) -> Any:
        return model.parameters()

    def batch(self, step: int) -> Batch:
        del step
        return torch.randn(4, 6), torch.randint(0, 3, (4,))

    def loss(self, model: nn.Module, batch: Batch) -> torch.Tensor:
        return functional.cross_entropy(model(batch[0]), batch[1])

    def prepare(self, optimizer: torch.optim.Optimizer) -> None:
        """Once, before the first step."""

    def step(self, model: nn.Module, optimizer: torch.optim.Optimizer, step: int, quiet: Any) -> torch.Tensor:
        """One training step; `quiet()` is the system's no_sync."""
        del quiet
        optimizer.zero_grad()
        loss = self.loss(model, self.batch(step))
        loss.backward()
        optimizer.step()
        return loss.detach()

    find_unused = False


class Groups(Case):
    """Several parameter groups with values of their own."""

    def parameters(self, model: nn.Module) -> Any:
        weights = [parameter for parameter in model.parameters() if parameter.dim() > 1]
        biases = [parameter for parameter in model.parameters() if parameter.dim() == 1]
        return [{"params": biases, "lr": 0.02, "weight_decay": 0.0}, {"params": weights}]


class LearningRates(Case):
    """A scheduler that changes the rate right after step(), before the update has happened."""

    def prepare(self, optimizer: torch.optim.Optimizer) -> None:
        self._scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.9)

    def step(self, model: nn.Module, optimizer: torch.optim.Optimizer, step: int, quiet: Any) -> torch.Tensor:
        loss = super().step(model, optimizer, step, quiet)
        self._scheduler.step()
        return loss


class Accumulation(Case):
    """Three backward passes for one step, two of them under no_sync."""

    def step(self, model: nn.Module, optimizer: torch.optim.Optimizer, step: int, quiet: Any) -> torch.Tensor:
        optimizer.zero_grad()
        for part in range(3):
            with quiet() if part < 2 else contextlib.nullcontext():
                loss = self.loss(model, self.batch(step)) / 3
                loss.backward()
        optimizer.step()
        return loss.detach()


class AccumulationWithoutNoSync(Accumulation):
    """The same, with every backward pass synchronised: gradients add up on top of averages."""

    def step(self, model: nn.Module, optimizer: torch.optim.Optimizer, step: int, quiet: Any) -> torch.Tensor:
        del quiet
        return super().step(model, optimizer, step, contextlib.nullcontext)


class _Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(3, 6)
        self.body = nn.Linear(6, 6)
        self.head = nn.Linear(6, 3, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        hidden = torch.tanh(self.body(values + self.embedding.weight.mean(0)))
        return self.head(torch.tanh(self.body(hidden)))  # the same module twice


class TiedAndReused(Case):
    """One parameter in two modules, one of which is never called; one module called twice."""

    def model(self) -> nn.Module:
        return _Tied()


class _Branches(nn.Module):
    """Registered in another order than executed; a parameter of its own; a branch for each sign of the data."""

    def __init__(self) -> None:
        super().__init__()
        self.last = nn.Linear(8, 3)
        self.left = nn.Linear(8, 8)
        self.right = nn.Linear(8, 8)
        self.first = nn.Linear(6, 8)
        self.scale = nn.Parameter(torch.ones(8))
        self.unused = nn.Linear(4, 4)

    def forward(self, values: torch.Tensor, go_left: bool) -> torch.Tensor:
        hidden = torch.tanh(self.first(values)) * self.scale
        return self.last(torch.tanh(self.left(hidden) if go_left else self.right(hidden)))


class UnusedParameters(Case):
    """A parameter nobody uses, and branches that some ranks take in some steps; order differs from registration."""

    find_unused = True

    def model(self) -> nn.Module:
        return _Branches()

    def batch(self, step: int) -> Batch:
        values, labels = super().batch(step)
        self._go_left = (step + lg.rank()) % 3 > 0
        return values, labels

    def loss(self, model: nn.Module, batch: Batch) -> torch.Tensor:
        return functional.cross_entropy(model(batch[0], self._go_left), batch[1])


class Frozen(Case):
    """The first layer does not train."""

    def model(self) -> nn.Module:
        model = super().model()
        for parameter in next(iter(model.children())).parameters():
            parameter.requires_grad_(False)
        return model


class _Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(6, 2, batch_first=True)
        self.head = nn.Linear(6, 3)

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        mixed, _ = self.attention(values[None], values[None], values[None])
        return self.head(mixed[0])


class UncalledModule(Case):
    """`nn.MultiheadAttention` uses the weights of its `out_proj` without ever calling it."""

    def model(self) -> nn.Module:
        return _Attention()


class Clipped(Case):
    """Global-norm clipping needs every gradient before the update."""

    def step(self, model: nn.Module, optimizer: torch.optim.Optimizer, step: int, quiet: Any) -> torch.Tensor:
        del quiet
        optimizer.zero_grad()
        loss = self.loss(model, self.batch(step))
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        optimizer.step()
        return loss.detach()


class Closure(Case):
    """Forward and backward inside of step(), as trainers call it."""

    def step(self, model: nn.Module, optimizer: torch.optim.Optimizer, step: int, quiet: Any) -> torch.Tensor:
        del quiet

        def closure() -> torch.Tensor:
            loss = self.loss(model, self.batch(step))
            optimizer.zero_grad()
            loss.backward()
            losses.append(loss.detach())
            return loss

        losses: list[torch.Tensor] = []
        optimizer.step(closure)  # type: ignore[arg-type]
        return torch.stack(losses).sum()


class Scaled(Case):
    """A gradient scaler looks at every gradient, and skips the step when one is not finite (as in step 7 here)."""

    def prepare(self, optimizer: torch.optim.Optimizer) -> None:
        del optimizer
        self._scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=5)

    def step(self, model: nn.Module, optimizer: torch.optim.Optimizer, step: int, quiet: Any) -> torch.Tensor:
        del quiet
        optimizer.zero_grad()
        loss = self.loss(model, self.batch(step))
        if step == 7 and lg.rank() == 0:
            loss = loss * torch.inf
        self._scaler.scale(loss).backward()
        self._scaler.step(optimizer)
        self._scaler.update()
        return loss.detach()


class ZeroedInPlace(Case):
    """zero_grad that keeps the tensors, after the step, through the model."""

    def step(self, model: nn.Module, optimizer: torch.optim.Optimizer, step: int, quiet: Any) -> torch.Tensor:
        del quiet
        loss = self.loss(model, self.batch(step))
        loss.backward()
        optimizer.step()
        if step % 2:
            model.zero_grad(set_to_none=False)
        else:
            optimizer.zero_grad(set_to_none=False)
        return loss.detach()


class Watched(Case):
    """Reads gradients and weights wherever a script might: after backward, after step, as state_dict."""

    def step(self, model: nn.Module, optimizer: torch.optim.Optimizer, step: int, quiet: Any) -> torch.Tensor:
        loss = super().step(model, optimizer, step, quiet)
        seen = [loss]
        if step % 3 == 0:
            seen += [parameter.detach().sum() for parameter in model.parameters()]
        if step % 5 == 0:
            seen += [value.sum() for value in model.state_dict().values()]
        if step % 7 == 0:
            seen += [parameter.grad.sum() for parameter in model.parameters() if parameter.grad is not None]
        return torch.stack([value.double() for value in seen]).sum()


class Convolution(Case):
    """Weights in channels-last order: their elements fill memory, but not in the order of their shape."""

    def model(self) -> nn.Module:
        model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(16, 3))
        return model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]

    def batch(self, step: int) -> Batch:
        return torch.randn(4, 3, 4, 4), super().batch(step)[1]


class Whole(Case):
    """Gradients that are whole numbers sum without rounding, in any order: everything must be equal to the bit."""

    def model(self) -> nn.Module:
        return nn.Sequential(nn.Linear(6, 4, bias=False), nn.Linear(4, 1, bias=False))

    def batch(self, step: int) -> Batch:
        del step
        return torch.randint(-3, 4, (4, 6)).double(), torch.zeros(4)

    def loss(self, model: nn.Module, batch: Batch) -> torch.Tensor:
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.round_()
        return model(batch[0]).sum() * dist.get_world_size()


CASES: dict[str, Callable[[], Case]] = {
    each.__name__: each
    for each in (
        *(Case, Groups, LearningRates, Accumulation, AccumulationWithoutNoSync, TiedAndReused, UnusedParameters),
        *(Frozen, UncalledModule, Clipped, Closure, Scaled, ZeroedInPlace, Watched, Convolution, Whole),
    )
}


def schedule_over(system: str, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """`native`, `c10d:rsag` or `c10d:rsag:64`: a transport, a policy, and the largest part in bytes."""
    transport, policy, partition_bytes, *_ = (*system.split(":"), None, None)
    lg.schedule(model, optimizer, transport=transport, policy=policy, partition_bytes=partition_bytes)


def train(case: Case, optimizer_name: str, system: str, steps: int = STEPS) -> tuple[torch.Tensor, torch.Tensor]:
    """(losses, all weights at the end) of a training run with torch's DDP, or with legato: see `schedule_over`."""
    torch.manual_seed(10 + lg.rank())
    model = case.model()
    if system == "ddp":
        model = nn.parallel.DistributedDataParallel(model, find_unused_parameters=case.find_unused)
        optimizer = OPTIMIZERS[optimizer_name](case.parameters(model))
        quiet = model.no_sync
    else:
        optimizer = OPTIMIZERS[optimizer_name](case.parameters(model))
        schedule_over(system, model, optimizer)

        @contextlib.contextmanager
        def quiet() -> Iterator[None]:
            with lg.no_sync(model) if lg.size() > 1 else contextlib.nullcontext():
                yield

    case.prepare(optimizer)
    torch.manual_seed(20 + lg.rank())
    losses = torch.stack([case.step(model, optimizer, step, quiet) for step in range(steps)])
    weights = torch.cat([parameter.detach().reshape(-1) for parameter in model.parameters()])
    return losses, weights.clone()


def compare(case_name: str, systems: tuple[str, ...], steps: int = STEPS) -> dict[tuple[str, str], tuple[float, float]]:
    """On one rank of a job: the largest difference from DDP in losses and weights, by optimizer and system."""
    lg.init()
    dist.init_process_group("gloo")
    # In double precision the last bits stay below what an optimizer that divides by small numbers can amplify.
    torch.set_default_dtype(torch.float64)
    differences = {}
    for name in OPTIMIZERS:
        losses, weights = train(CASES[case_name](), name, "ddp", steps)
        for system in systems:
            other_losses, other_weights = train(CASES[case_name](), name, system, steps)
            differences[name, system] = (
                (losses - other_losses).nan_to_num().abs().max().item(),
                (weights - other_weights).abs().max().item(),
            )
    return differences
