"""What a scheduled model and optimizer do, one behaviour at a time."""

import copy
import io
import logging
import pickle
import warnings
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn

import legato.torch as lg
from legato.errors import InputError, JobError, LegatoError
from legato.torch.scheduling.gradients import PendingGradient
from legato.torch.scheduling.hooks import Schedule
from legato.torch.scheduling.steps import StaleWeightError
from tests.torch.crew import Crew


def net() -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2))


def data(step: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(100 * step + lg.rank())
    return torch.randn(3, 4, generator=generator)


def steps(model: nn.Module, optimizer: torch.optim.Optimizer, first: int, last: int) -> None:
    for step in range(first, last):
        optimizer.zero_grad()
        model(data(step)).square().sum().backward()
        optimizer.step()


def weights(model: nn.Module) -> torch.Tensor:
    return torch.cat([value.reshape(-1) for value in model.state_dict().values()]).clone()


def scheduled(optimizer_class: Any = torch.optim.SGD, **options: Any) -> tuple[nn.Sequential, torch.optim.Optimizer]:
    lg.init()
    torch.manual_seed(lg.rank())
    model = net()
    return lg.schedule(model, optimizer_class(model.parameters(), **(options or {"lr": 0.1})))


def by_hand(optimizer_class: Any, last: int, **options: Any) -> torch.Tensor:
    """The same training on one process: the average of all ranks' gradients."""
    torch.manual_seed(0)
    model = net()
    optimizer = optimizer_class(model.parameters(), **options)
    for step in range(last):
        optimizer.zero_grad()
        for rank in range(lg.size()):
            generator = torch.Generator().manual_seed(100 * step + rank)
            (model(torch.randn(3, 4, generator=generator)).square().sum() / lg.size()).backward()
        optimizer.step()
    return weights(model)


def start_and_overlap() -> tuple[bool, bool, bool]:
    model, optimizer = scheduled()
    same_start = bool((weights(model) == by_hand(torch.optim.SGD, 0, lr=0.1)).all())
    steps(model, optimizer, 0, 3)
    schedule = Schedule.of(model)
    is_due = any(each.due is not None for each in schedule._parameters.all)
    lg.flush(model)
    return same_start, is_due, all(each.due is None for each in schedule._parameters.all)


def test_everybody_starts_from_rank_0_and_updates_wait_for_the_next_forward(crew: Crew) -> None:
    assert crew.run(start_and_overlap) == [(True, True, True)] * 2


def zero_through_the_model() -> tuple[bool, bool, float]:
    """Right after step(), as transformers.Trainer does."""
    model, optimizer = scheduled()
    for step in range(3):
        steps(model, optimizer, step, step + 1)
        model.zero_grad()
    is_due = any(each.due is not None for each in Schedule.of(model)._parameters.all)
    is_zero = all(parameter.grad is None for layer in model for parameter in layer.parameters())
    copied = copy.deepcopy(model)
    copied(data(0)).sum().backward()
    copied.zero_grad()
    is_zero = is_zero and all(parameter.grad is None for parameter in copied.parameters())
    return is_due, is_zero, (weights(model) - by_hand(torch.optim.SGD, 3, lr=0.1)).abs().max().item()


def test_gradients_dropped_through_the_model_leave_updates_due(crew: Crew) -> None:
    for is_due, is_zero, difference in crew.run(zero_through_the_model):
        assert is_due
        assert is_zero
        assert difference < 1e-6


def gradients_by_hand(step: int) -> list[torch.Tensor]:
    torch.manual_seed(0)
    model = net()
    for rank in range(lg.size()):
        generator = torch.Generator().manual_seed(100 * step + rank)
        (model(torch.randn(3, 4, generator=generator)).square().sum() / lg.size()).backward()
    return [parameter.grad for parameter in model.parameters() if parameter.grad is not None]


def keep_gradients() -> list[tuple[bool, bool, bool]]:
    """A user's own references to gradients under way, which the model has let go of when their averages come."""
    model, optimizer = scheduled(lr=0.0)
    seen = []
    for step in range(3):
        model(data(step)).square().sum().backward()
        gradients = (parameter.grad for layer in model for parameter in layer.parameters())
        kept = [gradient for gradient in gradients if gradient is not None]
        are_pending = all(isinstance(each, PendingGradient) for each in kept)
        optimizer.step()
        optimizer.zero_grad()
        lg.flush(model)
        are_plain = all(type(each) is torch.Tensor and not vars(each) for each in copy.deepcopy(kept) + kept)
        expected = gradients_by_hand(step)
        are_averages = all(torch.allclose(each, other) for each, other in zip(kept, expected, strict=True))
        seen.append((are_pending, are_plain, are_averages))
    return seen


def test_a_gradient_that_somebody_has_kept_becomes_an_ordinary_one(crew: Crew) -> None:
    assert crew.run(keep_gradients) == [[(True, True, True)] * 3] * 2


def with_a_scheduler_made_before() -> list[str]:
    lg.init()
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=1)
    lg.schedule(model, optimizer)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        for step in range(3):
            steps(model, optimizer, step, step + 1)
            scheduler.step()
    return [str(each.message) for each in told]


def test_a_learning_rate_scheduler_may_be_older_than_the_schedule(crew: Crew) -> None:
    """It warns where it does not see the optimizer step."""
    assert crew.run(with_a_scheduler_made_before) == [[], []]


def every_optimizer(name: str) -> float:
    lg.init()
    model, optimizer = scheduled(getattr(torch.optim, name), lr=0.01)
    steps(model, optimizer, 0, 5)
    return (weights(model) - by_hand(getattr(torch.optim, name), 5, lr=0.01)).abs().max().item()


ELEMENTWISE = [
    "SGD",
    "Adam",
    "AdamW",
    "Adamax",
    "NAdam",
    "RAdam",
    "RMSprop",
    "Adagrad",
    "Adadelta",
    "ASGD",
    "Adafactor",
]


@pytest.mark.parametrize("name", ELEMENTWISE)
def test_every_optimizer_of_torch(crew: Crew, name: str) -> None:
    assert max(crew.run(every_optimizer, name)) < 1e-5


class GlobalNormSgd(torch.optim.SGD):
    """Looks at all gradients together: a subclass that must not be stepped in pieces."""

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        nn.utils.clip_grad_norm_([p for group in self.param_groups for p in group["params"]], 0.01)
        return super().step(closure)


class CountingSgd(torch.optim.SGD):
    """Counts its steps on itself."""

    calls = 0

    def step(self, closure: Any = None) -> Any:
        self.calls += 1
        return super().step(closure)


def indivisible(optimizer_class: Any) -> tuple[float, Any, int]:
    model, optimizer = scheduled(optimizer_class, lr=0.1)
    steps(model, optimizer, 0, 5)
    difference = (weights(model) - by_hand(optimizer_class, 5, lr=0.1)).abs().max().item()
    return difference, Schedule.of(model)._steps.overlap, getattr(optimizer, "calls", 5)


@pytest.mark.parametrize("optimizer_class", [GlobalNormSgd, CountingSgd])
def test_an_optimizer_that_cannot_be_divided_is_found_out(crew: Crew, optimizer_class: Any) -> None:
    for difference, overlap, calls in crew.run(indivisible, optimizer_class):
        assert difference < 1e-6
        assert overlap is False
        assert calls == 5


def with_step_hook() -> tuple[int, Any]:
    model, optimizer = scheduled()
    calls = []
    optimizer.register_step_post_hook(lambda *_: calls.append(1))
    steps(model, optimizer, 0, 4)
    return len(calls), Schedule.of(model)._steps.overlap


def test_step_hooks_run_once_a_step(crew: Crew) -> None:
    assert crew.run(with_step_hook) == [(4, False)] * 2


def checkpoint() -> float:
    model, optimizer = scheduled(torch.optim.Adam, lr=0.01)
    steps(model, optimizer, 0, 3)
    saved = io.BytesIO()
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, saved)
    steps(model, optimizer, 3, 6)
    after = weights(model)
    # An unscheduled run takes over from the checkpoint, and a scheduled one from that one's.
    loaded = torch.load(io.BytesIO(saved.getvalue()), weights_only=True)
    plain = net()
    plain_optimizer = torch.optim.Adam(plain.parameters(), lr=0.5)
    plain.load_state_dict(loaded["model"])
    plain_optimizer.load_state_dict(loaded["optimizer"])
    model.load_state_dict(plain.state_dict())
    optimizer.load_state_dict(plain_optimizer.state_dict())
    steps(model, optimizer, 3, 6)
    return (weights(model) - after).abs().max().item()


def test_checkpoints_go_back_and_forth(crew: Crew) -> None:
    assert crew.run(checkpoint) == [0, 0]


def copies() -> tuple[bool, bool, bool]:
    model, optimizer = scheduled()
    steps(model, optimizer, 0, 3)
    average = torch.optim.swa_utils.AveragedModel(model)
    average.update_parameters(model)
    steps(model, optimizer, 3, 4)
    average.update_parameters(model)
    expected = (by_hand(torch.optim.SGD, 3, lr=0.1) + by_hand(torch.optim.SGD, 4, lr=0.1)) / 2
    averaged = weights(average.module)
    pickled = pickle.loads(pickle.dumps(copy.deepcopy(model)))
    pickled(data(0)).sum().backward()
    is_its_own = {id(p) for p in pickled.parameters()}.isdisjoint(id(p) for p in model.parameters())
    trained = all(p.grad is not None for p in pickled.parameters())
    return torch.allclose(averaged, expected, atol=1e-6), is_its_own, trained


def test_a_copy_is_a_plain_model_and_a_running_average_sees_fresh_weights(crew: Crew) -> None:
    assert crew.run(copies) == [(True, True, True)] * 2


def use_weights_behind_its_back() -> str:
    model, optimizer = scheduled()
    steps(model, optimizer, 0, 3)
    try:
        nn.functional.linear(data(0), model.get_parameter("0.weight")).sum().backward()
    except StaleWeightError as error:
        return str(error)
    return "nothing noticed"


def test_weights_used_before_their_update_are_an_error(crew: Crew) -> None:
    for message in crew.run(use_weights_behind_its_back):
        assert "parameter '0.weight' was used before its update" in message


def regularise(flushes: bool, kept: bool) -> tuple[str, float]:
    """A penalty on a list of weights that is older than the step, before the forward pass."""
    model, optimizer = scheduled()
    old = list(model.parameters())
    losses = []
    for step in range(4):
        optimizer.zero_grad()
        if flushes:
            lg.flush(model)
        try:
            penalty = torch.stack([weight.norm() for weight in old]).sum()
            loss = model(data(step)).square().sum() + penalty
            loss.backward()
        except StaleWeightError as error:
            return str(error), 0.0
        optimizer.step()
        if kept:
            losses.append(loss)
    return "nothing noticed", weights(model).double().sum().item()


@pytest.mark.parametrize("kept", [False, True])
def test_weights_used_before_the_forward_pass_that_updates_them_are_an_error(crew: Crew, kept: bool) -> None:
    for message, _ in crew.run(regularise, False, kept):
        assert "was used before its update" in message
        assert "legato.torch.flush(model)" in message


def test_a_regulariser_after_a_flush_trains_on(crew: Crew) -> None:
    (message, first), (_, second) = crew.run(regularise, True, True)
    assert message == "nothing noticed"
    assert first == second


def clip_and_log() -> tuple[list[str], bool]:
    records: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: records.append(record.getMessage())  # type: ignore[method-assign]
    logger = logging.getLogger("legato.torch.scheduling.steps")
    logger.setLevel(logging.INFO)
    logger.addHandler(handler)
    model, optimizer = scheduled()
    for step in range(4):
        optimizer.zero_grad()
        model(data(step)).square().sum().backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
    logger.removeHandler(handler)
    return records, Schedule.of(model)._steps.overlap is True


def test_clipping_is_said_once(crew: Crew) -> None:
    for records, overlap in crew.run(clip_and_log):
        assert overlap
        [said] = [record for record in records if "gradients are read between backward and step" in record]
        assert "legato.torch.clip_grad_norm_ and legato.torch.GradScaler do not wait for them" in said


def fail_in_backward() -> None:
    model, optimizer = scheduled()
    steps(model, optimizer, 0, 2)
    loss = model(data(2)).square().sum()
    if lg.rank() == 1:
        next(model.parameters()).register_hook(lambda _: 1 / 0)
    loss.backward()
    optimizer.step()
    lg.flush(model)


def test_an_exception_in_backward_ends_the_others_with_an_error_that_names_the_rank(crew: Crew) -> None:
    first, second = crew.outcomes(fail_in_backward)
    assert isinstance(second, ZeroDivisionError)
    assert isinstance(first, JobError)
    assert first.rank == 1


def two_schedules() -> float:
    """A generator and a discriminator: gradients that are thrown away, and two optimizers."""
    lg.init()
    dist.init_process_group("gloo")
    results = []
    for system in ("ddp", "legato"):
        torch.manual_seed(0)
        models: list[nn.Module] = [net(), nn.Sequential(nn.Linear(2, 4), nn.Tanh(), nn.Linear(4, 1))]
        if system == "ddp":
            models = [nn.parallel.DistributedDataParallel(model) for model in models]
        optimizers = [torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9) for model in models]
        if system == "legato":
            for model, optimizer in zip(models, optimizers, strict=True):
                lg.schedule(model, optimizer)
        for step in range(6):
            made = models[0](data(step))
            optimizers[0].zero_grad()
            models[1](made).sum().backward()
            optimizers[0].step()
            optimizers[1].zero_grad()
            models[1](made.detach()).square().sum().backward()
            optimizers[1].step()
        results.append(torch.cat([weights(model) for model in models]))
    return (results[0] - results[1]).abs().max().item()


def test_two_models_with_optimizers_of_their_own(crew: Crew) -> None:
    assert max(crew.run(two_schedules)) < 1e-6


def step_without_gradients(tuner: str | None) -> float:
    """Some scripts step once before they train, for a scheduler or a warm-up of the optimizer's state."""
    lg.init()
    torch.manual_seed(0)
    model = net()
    model, optimizer = lg.schedule(model, torch.optim.SGD(model.parameters(), lr=0.1), tuner=tuner)
    optimizer.step()
    optimizer.step()
    steps(model, optimizer, 0, 5)
    return (weights(model) - by_hand(torch.optim.SGD, 5, lr=0.1)).abs().max().item()


@pytest.mark.parametrize("tuner", [None, "off"])
def test_steps_before_there_is_a_gradient_change_nothing(crew: Crew, tuner: str | None) -> None:
    assert max(crew.run(step_without_gradients, tuner)) < 1e-6


def compiled(how: str) -> float:
    lg.init()
    torch.manual_seed(0)
    model: Any = net()
    if how == "function":
        model = torch.compile(model, backend="eager")
    elif how == "blocks":
        model[0].compile(backend="eager")
        model[2].compile(backend="eager")
    model, optimizer = lg.schedule(model, torch.optim.SGD(model.parameters(), lr=0.1))
    if how == "afterwards":
        model = torch.compile(model, backend="eager")
    steps(model, optimizer, 0, 5)
    return (weights(model) - by_hand(torch.optim.SGD, 5, lr=0.1)).abs().max().item()


@pytest.mark.parametrize("how", ["function", "blocks"])
def test_a_compiled_model_trains_the_same(crew: Crew, how: str) -> None:
    assert max(crew.run(compiled, how)) < 1e-6


def test_a_model_compiled_after_it_was_scheduled_is_an_error_not_a_wrong_result(crew: Crew) -> None:
    for outcome in crew.outcomes(compiled, "afterwards"):
        assert isinstance(outcome, StaleWeightError | JobError)


def removed() -> tuple[bool, float]:
    model, optimizer = scheduled()
    steps(model, optimizer, 0, 3)
    lg.unschedule(model)
    clean = not {"named_parameters", "zero_grad"} & set(vars(model)) and "step" not in vars(optimizer)
    return clean, (weights(model) - by_hand(torch.optim.SGD, 3, lr=0.1)).abs().max().item()


def test_a_schedule_can_be_taken_off(crew: Crew) -> None:
    for clean, difference in crew.run(removed):
        assert clean
        assert difference < 1e-6


def half_precision(compression: str) -> float:
    lg.init()
    torch.manual_seed(0)
    model = net()
    model, optimizer = lg.schedule(model, torch.optim.SGD(model.parameters(), lr=0.1), compression=compression)
    steps(model, optimizer, 0, 5)
    return (weights(model) - by_hand(torch.optim.SGD, 5, lr=0.1)).abs().max().item()


@pytest.mark.parametrize("compression", ["fp16", "bf16"])
def test_gradients_may_travel_in_half_precision(crew: Crew, compression: str) -> None:
    assert 0 < max(crew.run(half_precision, compression)) < 0.05


def bad_values() -> list[str]:
    lg.init()
    messages = []
    for options in ({"transport": "smoke"}, {"policy": "lifo"}, {"compression": "zip"}):
        model = net()
        try:
            lg.schedule(model, torch.optim.SGD(model.parameters(), lr=0.1), **options)  # type: ignore[arg-type]
        except InputError as error:
            messages.append(str(error))
    return messages


def test_wrong_values_are_refused_with_what_is_accepted(crew: Crew) -> None:
    for messages in crew.run(bad_values):
        assert len(messages) == 3
        assert all("accepted" in message for message in messages)


def test_without_a_job_there_is_one_clear_line() -> None:
    with pytest.raises(LegatoError, match=r"call legato\.torch\.init\(\) first"):
        lg.schedule(net(), torch.optim.SGD(net().parameters(), lr=0.1))


def clip_what_others_use() -> float:
    """Each rank uses one half of the model, and clips: nobody may wait for what another submits only in step()."""
    lg.init()
    torch.manual_seed(0)
    halves = nn.ModuleList([nn.Linear(4, 2), nn.Linear(4, 2)])
    optimizer = torch.optim.SGD(halves.parameters(), lr=0.1)
    lg.schedule(halves, optimizer)
    norms = []
    for step in range(4):
        optimizer.zero_grad()
        halves[lg.rank()](data(step)).square().sum().backward()
        norms.append(nn.utils.clip_grad_norm_(halves.parameters(), 0.5).item())
        optimizer.step()
    return sum(norms)


def test_clipping_with_parameters_that_only_other_ranks_use(crew: Crew) -> None:
    first, second = crew.run(clip_what_others_use)
    assert first == pytest.approx(second)


def _alone() -> None:
    lg.init()
    model = nn.Linear(3, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.raises(LegatoError, match="not scheduled"):
        lg.flush(model)
    lg.schedule(model, optimizer)
    compiled: Any = torch.compile(model)
    for scripts in (model, compiled):
        with lg.no_sync(scripts):
            model(torch.ones(1, 3)).sum().backward()
        lg.clip_grad_norm_(scripts, 1.0)
        optimizer.step()
        lg.flush(scripts)
        lg.unschedule(scripts)
    with pytest.raises(InputError, match="shares no gradients"):
        lg.current_plan(model)
    with pytest.raises(InputError, match="with other ranks"):
        lg.watch_gradients(model)


def test_a_script_runs_on_one_rank_as_it_is(crew: Crew) -> None:
    crew.run(_alone, size=1)
