"""What becomes of a scheduled model: jobs that end, several optimizers, layers that join late, compiled models."""

import copy
import gc
import io
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import legato.byteps.torch as bps
import legato.torch as lg
from legato.byteps.torch.cross_barrier import CrossBarrier
from legato.errors import ClosedError, InputError
from tests.torch.crew import Crew

TRANSPORTS = ["native", "c10d"]


def net() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2))


def data(step: int, rank: int | None = None) -> torch.Tensor:
    rank = lg.rank() if rank is None else rank
    return torch.randn(3, 4, generator=torch.Generator().manual_seed(100 * step + rank))


def train(model: nn.Module, optimizers: list[Any], num: int) -> None:
    for step in range(num):
        for optimizer in optimizers:
            optimizer.zero_grad()
        model(data(step)).square().sum().backward()
        for optimizer in optimizers:
            optimizer.step()


def everything(model: nn.Module) -> torch.Tensor:
    """The weights as memory holds them: nothing is flushed."""
    return torch.cat([value.detach().reshape(-1).clone() for _, value in nn.Module.named_parameters(model)])


def by_hand(num: int) -> torch.Tensor:
    """The same training on one process: the average of all ranks' gradients."""
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(num):
        optimizer.zero_grad()
        for rank in range(2):
            (model(data(step, rank)).square().sum() / 2).backward()
        optimizer.step()
    return everything(model)


# ---- the job ends ----


def scheduled(model: nn.Module, optimizer: torch.optim.Optimizer) -> tuple[Any, Any]:
    return lg.schedule(model, optimizer)


def local(model: nn.Module, optimizer: torch.optim.Optimizer) -> tuple[Any, Any]:
    return lg.schedule(model, optimizer, local_steps=2)


def crossing(model: nn.Module, optimizer: torch.optim.Optimizer) -> tuple[Any, Any]:
    return model, CrossBarrier(model, optimizer)


def distributed(model: nn.Module, optimizer: torch.optim.Optimizer) -> tuple[Any, Any]:
    return model, lg.DistributedOptimizer(optimizer, model.named_parameters())


def wrapped(model: nn.Module, optimizer: torch.optim.Optimizer) -> tuple[Any, Any]:
    return lg.DistributedDataParallel(model), optimizer


Attach = Callable[[nn.Module, torch.optim.Optimizer], tuple[Any, Any]]
INTERFACES = [scheduled, local, crossing, distributed, wrapped]


def _go_on(attach: Attach, end: str) -> tuple[str, bool, float]:
    """(what training on says, whether reading goes on, how far ranks are from one process after attaching again)."""
    lg.init()
    bare = net()
    model, optimizer = attach(bare, torch.optim.SGD(bare.parameters(), lr=0.1))
    train(model, [optimizer], 2)
    if end == "suspend":
        bps.suspend()
        bps.resume(2, 0)
    else:
        lg.shutdown()
    saved = io.BytesIO()
    torch.save(model.state_dict(), saved)
    before = everything(bare)
    reads = model(torch.ones(1, 4)).isfinite().all() and copy.deepcopy(optimizer) is not None and len(saved.getvalue())
    message = "nothing noticed"
    try:
        model(torch.ones(1, 4)).sum().backward()
        optimizer.step()
    except ClosedError as error:
        message = str(error)
    unchanged = torch.equal(before, everything(bare))
    lg.init()
    with torch.no_grad():
        for parameter, value in zip(bare.parameters(), net().parameters(), strict=True):
            parameter.copy_(value)
            parameter.grad = None
    if attach is wrapped:
        optimizer = torch.optim.SGD(bare.parameters(), lr=0.1)
    model, optimizer = attach(bare, optimizer)
    train(model, [optimizer], 4)
    lg.shutdown()
    difference = (everything(bare) - by_hand(4)).abs().max().item()
    return message, bool(reads) and unchanged, 0.0 if attach is local else difference


@pytest.mark.parametrize("end", ["shutdown", "suspend"])
@pytest.mark.parametrize("attach", INTERFACES)
def test_training_on_after_the_job_has_ended_is_refused(crew: Crew, attach: Attach, end: str) -> None:
    for message, reads, difference in crew.run(_go_on, attach, end):
        assert "job" in message
        assert "has ended" in message
        assert "again" in message
        assert reads
        assert difference < 1e-6


def _left_behind(attach: Attach) -> tuple[str, int]:
    """(what a step says after a job was left at once, how many parameters outlive all that had them)."""
    lg.init()
    bare = net()
    model, optimizer = attach(bare, torch.optim.SGD(bare.parameters(), lr=0.1))
    train(model, [optimizer], 2)
    model(data(2)).square().sum().backward()  # whose averages nobody waits for
    lg.shutdown(now=True)
    message = "nothing noticed"
    try:
        optimizer.step()
        model(torch.ones(1, 4)).sum().backward()
    except ClosedError as error:
        message = str(error)
    parameters = [weakref.ref(parameter) for _, parameter in nn.Module.named_parameters(bare)]
    del bare, model, optimizer
    gc.collect()
    return message, sum(parameter() is not None for parameter in parameters)


@pytest.mark.parametrize("attach", INTERFACES)
def test_a_job_that_is_left_at_once_keeps_no_model(crew: Crew, attach: Attach) -> None:
    for message, num_left in crew.run(_left_behind, attach):
        assert "ended" in message or "closed" in message
        assert num_left == 0


def _alone() -> float:
    """A model that is unscheduled is a plain one, also after the end of the job."""
    lg.init()
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    lg.schedule(model, optimizer)
    train(model, [optimizer], 2)
    lg.unschedule(model)
    lg.shutdown()
    before = everything(model)
    model(torch.ones(1, 4)).sum().backward()
    optimizer.step()
    return (everything(model) - before).abs().max().item()


def test_an_unscheduled_model_trains_alone(crew: Crew) -> None:
    assert min(crew.run(_alone)) > 0


# ---- several optimizers ----


def _two_optimizers(end: str, transport: str) -> float:
    lg.init()
    model = net()
    optimizers = [torch.optim.SGD(part.parameters(), lr=0.1) for part in (model[0], model[2])]
    for optimizer in optimizers:
        lg.schedule(model, optimizer, transport=transport)
    train(model, optimizers, 4)
    expected = by_hand(4)
    if end == "flush":
        lg.flush(model)
    elif end == "unschedule":
        lg.unschedule(model)
    elif end == "state_dict":
        model.state_dict()
    else:
        lg.shutdown()
    return (everything(model) - expected).abs().max().item()


@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize("end", ["flush", "unschedule", "state_dict", "shutdown"])
def test_every_optimizer_of_a_model_has_its_last_step_applied(crew: Crew, end: str, transport: str) -> None:
    assert max(crew.run(_two_optimizers, end, transport)) < 1e-6


def _twice(same_optimizer: bool) -> None:
    lg.init()
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    lg.schedule(model, optimizer)
    lg.schedule(model, optimizer if same_optimizer else torch.optim.SGD(model[2].parameters(), lr=0.1))


@pytest.mark.parametrize("same_optimizer", [True, False])
def test_a_parameter_is_scheduled_once(crew: Crew, same_optimizer: bool) -> None:
    for outcome in crew.outcomes(_twice, same_optimizer):
        assert isinstance(outcome, InputError)
        assert "scheduled already" in str(outcome)
        assert "unschedule" in str(outcome)


# ---- compiled models ----


def _compiled(end: str, local_steps: int) -> float:
    lg.init()
    bare = net()
    model: Any = torch.compile(bare, backend="eager")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    lg.schedule(model, optimizer, local_steps=local_steps)
    train(model, [optimizer], 4)
    expected = by_hand(4)
    if end == "parameters":
        list(model.parameters())
    elif end == "inner parameters":
        list(bare.parameters())
    elif end == "state_dict":
        model.state_dict()
    elif end == "inner state_dict":
        model._orig_mod.state_dict()
    elif end == "flush":
        lg.flush(model)
    elif end == "inner flush":
        lg.flush(bare)
    elif end == "no_sync":
        with lg.no_sync(model):
            lg.flush(model)
    elif end == "unschedule":
        lg.unschedule(model)
        assert "named_parameters" not in vars(bare) | vars(model)
    else:
        lg.shutdown()
    return (everything(bare) - expected).abs().max().item() if local_steps == 1 else 0.0


READINGS = ["parameters", "inner parameters", "state_dict", "inner state_dict", "flush", "inner flush", "no_sync"]


@pytest.mark.parametrize("end", [*READINGS, "unschedule", "shutdown"])
def test_a_compiled_model_has_every_update_applied_where_a_plain_one_has(crew: Crew, end: str) -> None:
    assert max(crew.run(_compiled, end, 1)) < 1e-6


def test_a_compiled_model_may_step_alone(crew: Crew) -> None:
    assert crew.run(_compiled, "flush", 2) == [0.0, 0.0]


# ---- layers that join late ----


def _late(how: str, attach: Attach) -> None:
    lg.init()
    model = net()
    first = list(model[0].parameters())
    if how == "unfreeze":
        for parameter in first:
            parameter.requires_grad_(False)
    trained = model.parameters() if how == "unfreeze" else model[2].parameters()
    outer, optimizer = attach(model, torch.optim.SGD(trained, lr=0.1))
    train(outer, [optimizer], 3)
    if how == "unfreeze":
        for parameter in first:
            parameter.requires_grad_(True)
    else:
        optimizer.add_param_group({"params": first})
    train(outer, [optimizer], 1)


@pytest.mark.parametrize(
    ("how", "attach"),
    [("unfreeze", each) for each in INTERFACES] + [("add_param_group", scheduled), ("add_param_group", local)],
)
def test_a_layer_that_joins_after_schedule_is_named(crew: Crew, how: str, attach: Attach) -> None:
    for outcome in crew.outcomes(_late, how, attach):
        assert isinstance(outcome, InputError)
        assert "0.weight" in str(outcome)
        assert "again" in str(outcome)


def _added() -> float:
    """Under Horovod's interface a group joins by being added."""
    lg.init()
    model = net()
    for parameter in model[0].parameters():
        parameter.requires_grad_(False)
    optimizer: Any = lg.DistributedOptimizer(torch.optim.SGD(model[2].parameters(), lr=0.1))
    train(model, [optimizer], 1)
    for parameter in model[0].parameters():
        parameter.requires_grad_(True)
    optimizer.add_param_group({"params": list(model[0].parameters())})
    train(model, [optimizer], 2)
    return everything(model).double().sum().item()


def test_a_group_that_is_added_to_a_distributed_optimizer_is_averaged(crew: Crew) -> None:
    first, second = crew.run(_added)
    assert first == second
