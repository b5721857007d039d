"""Large parameters are updated slice by slice while their averages arrive: to the bit what the whole update gives."""

import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

import legato.torch as lg
from legato.core.shards import Deployment
from legato.errors import DeadlineError, JobError
from legato.exchange import Exchange, TensorSpec
from legato.testing.native_job import job_configs, run_job
from legato.torch.scheduling import slices
from legato.torch.scheduling.hooks import Schedule
from legato.torch.scheduling.slices import SlicedUpdate, is_elementwise, is_large
from legato.torch.scheduling.update import Hyperparameters
from legato.torch.sync.native import NativeSynchronizer
from legato.transports.native.group import NativeGroup
from legato.transports.native.player import EngineConfig
from tests.torch.crew import Crew

STEPS = 24
MakeOptimizer = Callable[..., torch.optim.Optimizer]

ELEMENTWISE: dict[str, MakeOptimizer] = {
    "sgd": partial(torch.optim.SGD, lr=0.1),
    "sgd momentum": partial(torch.optim.SGD, lr=0.1, momentum=0.9, weight_decay=0.01),
    "sgd nesterov": partial(torch.optim.SGD, lr=0.1, momentum=0.9, nesterov=True, foreach=True),
    "sgd fused": partial(torch.optim.SGD, lr=0.1, momentum=0.9, fused=True, maximize=True),
    "adam": partial(torch.optim.Adam, lr=0.01, weight_decay=0.01, maximize=True),
    "adam foreach": partial(torch.optim.Adam, lr=0.01, foreach=True),
    "adam fused": partial(torch.optim.Adam, lr=0.01, fused=True, amsgrad=True),
    "adamw": partial(torch.optim.AdamW, lr=0.01, amsgrad=True),
    "adamw rate in a tensor": lambda params: torch.optim.AdamW(params, lr=torch.tensor(0.01)),
    "rmsprop": partial(torch.optim.RMSprop, lr=0.01, momentum=0.9, centered=True),
    "rmsprop foreach": partial(torch.optim.RMSprop, lr=0.01, foreach=True),
    "adagrad": partial(torch.optim.Adagrad, lr=0.01),
}


class Whole(torch.optim.Optimizer):
    """Optimizers of users' own, which take an item's update from more than the item."""

    def __init__(self, params: Any, lr: float) -> None:
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        del closure
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    parameter.sub_(group["lr"] * self.direction(parameter, parameter.grad))

    def direction(self, parameter: torch.Tensor, gradient: torch.Tensor) -> torch.Tensor:
        raise NotImplementedError


class Layerwise(Whole):
    """As LARS and LAMB: by the ratio of two norms."""

    def direction(self, parameter: torch.Tensor, gradient: torch.Tensor) -> torch.Tensor:
        return gradient * parameter.norm() / (gradient.norm() + 1e-6)


class ClippedWhole(Whole):
    """By a norm that few gradients exceed."""

    def direction(self, parameter: torch.Tensor, gradient: torch.Tensor) -> torch.Tensor:
        del parameter
        return gradient * torch.clamp(1000.0 / (gradient.norm() + 1e-6), max=1.0)


class Centralized(Whole):
    """Each row without its mean: only where there are rows."""

    def direction(self, parameter: torch.Tensor, gradient: torch.Tensor) -> torch.Tensor:
        del parameter
        return gradient - gradient.mean(-1, keepdim=True) if gradient.dim() > 1 else gradient


class Known(Whole):
    """Knows parameters by themselves."""

    def __init__(self, params: Any, lr: float) -> None:
        params = list(params)
        super().__init__(params, lr)
        self._rates = dict.fromkeys(params, 0.5)

    def direction(self, parameter: torch.Tensor, gradient: torch.Tensor) -> torch.Tensor:
        return gradient * self._rates.get(parameter, 1.0)


class Hoarder(Whole):
    """Keeps a momentum where nobody finds it."""

    def __init__(self, params: Any, lr: float) -> None:
        super().__init__(params, lr)
        self._momenta: dict[torch.Tensor, torch.Tensor] = {}

    def direction(self, parameter: torch.Tensor, gradient: torch.Tensor) -> torch.Tensor:
        self._momenta[parameter] = 0.9 * self._momenta.get(parameter, torch.zeros_like(gradient)) + gradient
        return self._momenta[parameter]


NOT_ELEMENTWISE: dict[str, MakeOptimizer] = {
    "adafactor": partial(torch.optim.Adafactor, lr=0.01),
    "muon": partial(torch.optim.Muon, lr=0.01),
    "norms": partial(Layerwise, lr=0.1),
    "norms, before a warm-up": partial(Layerwise, lr=0.0),
    "a limit": partial(ClippedWhole, lr=0.1),
    "rows": partial(Centralized, lr=0.1),
    "identity": partial(Known, lr=0.1),
    "state of its own": partial(Hoarder, lr=0.1),
}


OPTIMIZERS = {**ELEMENTWISE, **NOT_ELEMENTWISE}


def trained(make: MakeOptimizer, shape: tuple[int, ...] = (7, 300)) -> tuple[nn.Parameter, torch.optim.Optimizer]:
    """A parameter after one step, as the trial finds it."""
    torch.manual_seed(0)
    parameter = nn.Parameter(torch.randn(shape))
    optimizer = make([parameter])
    parameter.grad = torch.zeros_like(parameter)  # as of a layer that is not reached yet
    optimizer.step()
    return parameter, optimizer


@pytest.mark.parametrize("name", ELEMENTWISE)
def test_items_that_do_not_depend_on_each_other_may_be_stepped_apart(name: str) -> None:
    parameter, optimizer = trained(ELEMENTWISE[name])
    assert is_elementwise(optimizer, 0, parameter)


@pytest.mark.parametrize("name", NOT_ELEMENTWISE)
def test_whatever_looks_at_more_than_an_item_is_recognised(name: str) -> None:
    parameter, optimizer = trained(NOT_ELEMENTWISE[name])
    assert not is_elementwise(optimizer, 0, parameter)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_the_trial_leaves_everything_as_it_was(name: str) -> None:
    parameter, optimizer = trained(OPTIMIZERS[name])
    address, value, gradient = parameter.data_ptr(), parameter.detach().clone(), parameter.grad
    state = optimizer.state[parameter]
    before = {key: value.clone() if isinstance(value, torch.Tensor) else value for key, value in state.items()}
    chance = torch.random.get_rng_state()
    is_elementwise(optimizer, 0, parameter)
    assert parameter.data_ptr() == address
    assert torch.equal(parameter, value)
    assert parameter.grad is gradient
    assert [*optimizer.state] == [parameter]
    assert optimizer.state[parameter] is state
    torch.testing.assert_close(state, before, rtol=0, atol=0)
    assert torch.equal(torch.random.get_rng_state(), chance)


def test_only_large_parameters_in_plain_order_are_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slices, "SLICE_BYTES", 128)
    image = torch.zeros(2, 4, 4, 4)
    assert is_large(nn.Parameter(image))
    assert not is_large(nn.Parameter(image.to(memory_format=torch.channels_last)))
    assert not is_large(nn.Parameter(torch.zeros(16, 16).t()[:, :8]))
    assert not is_large(nn.Parameter(torch.zeros(64, dtype=torch.complex64)))
    assert not is_large(nn.Parameter(torch.zeros(63)))


@pytest.mark.parametrize("num_threads", [1, 2])
@pytest.mark.parametrize("name", ELEMENTWISE)
def test_slices_get_what_the_whole_gets(name: str, num_threads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slices, "SLICE_BYTES", 160_000)
    before = torch.get_num_threads()
    torch.set_num_threads(num_threads)
    try:
        generator = torch.Generator().manual_seed(1)
        start = torch.randn(384, 320, generator=generator)  # no thread of two has an odd end
        whole, sliced = nn.Parameter(start.clone()), nn.Parameter(start.clone())
        plain, ours = ELEMENTWISE[name]([whole]), ELEMENTWISE[name]([sliced])
        num_slices = 0
        for _ in range(STEPS):
            gradient = torch.randn(start.shape, generator=generator)
            whole.grad = gradient.clone()
            plain.step()
            held = list(ours.state.get(sliced, {}).values())
            update = SlicedUpdate(ours, Hyperparameters(ours), 0, sliced, gradient)
            while not update.is_done:
                update.step()
                num_slices += 1
            assert all(value is other for value, other in zip(held, ours.state.get(sliced, {}).values(), strict=False))
        assert num_slices == 4 * STEPS
        assert torch.equal(whole, sliced)
        assert list(ours.state) == list(ours.state.keys() & {sliced})
        torch.testing.assert_close(ours.state_dict(), plain.state_dict(), rtol=0, atol=0)
    finally:
        torch.set_num_threads(before)


def test_state_may_begin_at_any_step() -> None:
    """A schedule of users' own turns the momentum on."""
    start = torch.randn(190, generator=torch.Generator().manual_seed(0))
    whole, sliced = nn.Parameter(start.clone()), nn.Parameter(start.clone())
    plain, ours = torch.optim.SGD([whole], lr=0.1), torch.optim.SGD([sliced], lr=0.1)
    for momentum in (0.0, 0.9, 0.5):
        for optimizer in (plain, ours):
            optimizer.param_groups[0]["momentum"] = momentum
        gradient = torch.randn(190)
        whole.grad = gradient.clone()
        plain.step()
        update = SlicedUpdate(ours, Hyperparameters(ours), 0, sliced, gradient, slice_bytes=256)
        while not update.is_done:
            update.step()
        assert torch.equal(whole, sliced)
    torch.testing.assert_close(ours.state_dict(), plain.state_dict(), rtol=0, atol=0)


def test_autograd_notices_the_update() -> None:
    parameter, optimizer = trained(ELEMENTWISE["adam"])
    product = (parameter * parameter).sum()
    SlicedUpdate(optimizer, Hyperparameters(optimizer), 0, parameter, torch.ones_like(parameter)).step()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        product.backward()


# ---- with other ranks ----

SLICE = 8192


def in_slices(model: nn.Module, *, interrupted: bool = False) -> list[tuple[int, int]]:
    """Watch how averages of large tensors are taken slice by slice: (index, items) of each.

    Somebody may interrupt every fifth wait.
    """
    synchronizer = Schedule.of(model).synchronizer
    assert isinstance(synchronizer, NativeSynchronizer)
    own_wait, taken = synchronizer.wait_first, []

    def wait_first(index: int, num_items: int) -> int:
        assert own_wait(index, num_items) >= num_items
        taken.append((index, num_items))
        if interrupted and len(taken) % 5 == 0:
            raise KeyboardInterrupt
        return num_items

    synchronizer.wait_first = wait_first  # type: ignore[method-assign]
    return taken


def network() -> nn.Sequential:
    return nn.Sequential(nn.Linear(12, 400), nn.Tanh(), nn.Linear(400, 41, bias=False), nn.Tanh(), nn.Linear(41, 3))


def train(make: MakeOptimizer, *, sliced: bool, way: str) -> tuple[dict[str, Any], dict[str, Any], list[float], int]:
    """Weights, the optimizer's state, what was read of gradients, and the number of slices."""
    torch.manual_seed(0)
    model = network()
    heavy = [parameter for parameter in model.parameters() if parameter.dim() > 1]
    light = [parameter for parameter in model.parameters() if parameter.dim() == 1]
    optimizer = make([{"params": heavy}, {"params": light, "lr": 0.02}])
    compression: Any = {"codec": "onebit", "cast": lg.Compression.fp16}.get(way)
    lg.schedule(
        model,
        optimizer,
        transport="native",
        tuner="off",
        compression=compression,
        min_compress_bytes=0,
    )
    taken = in_slices(model, interrupted=way == "interrupted") if sliced else []
    scaler = lg.GradScaler("cpu", init_scale=256.0, growth_interval=5) if way == "scaler" else None
    decay = torch.optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.98)
    generator = torch.Generator().manual_seed(1 + lg.rank())
    read: list[float] = []

    def loss_of(step: int) -> torch.Tensor:
        inputs = torch.randn(4, 12, generator=generator)
        loss = functional.mse_loss(model(inputs), inputs[:, :3]) * (0.01 if step % 2 else 10.0)
        return loss * torch.inf if scaler is not None and step in (3, 4) and step % 2 == lg.rank() else loss

    for step in range(STEPS):
        optimizer.zero_grad()
        if way == "accumulated":
            with lg.no_sync(model):
                loss_of(step).backward()
        if way == "closure":

            def closure(step: int = step) -> torch.Tensor:
                optimizer.zero_grad()
                loss = loss_of(step)
                loss.backward()
                return loss

            optimizer.step(closure)  # type: ignore[arg-type]
        else:
            loss = loss_of(step)
            (loss if scaler is None else scaler.scale(loss)).backward()
            if scaler is not None:
                scaler.unscale_(optimizer)
            if way in ("clipped", "scaler", "kept", "interrupted"):
                lg.clip_grad_norm_(model, 0.5)
            if scaler is None:
                optimizer.step()
            else:
                scaler.step(optimizer)
                scaler.update()
        decay.step()
        while way == "interrupted":
            try:
                lg.flush(model)
                break
            except KeyboardInterrupt:
                if step % 2:  # then somebody looks at a gradient, half of which has been applied
                    assert all(parameter.grad is None or parameter.grad.isfinite().all() for parameter in heavy)
        if way in ("kept", "interrupted"):  # gradients that are looked at after their update, or in its place
            if step % 3:
                lg.flush(model)
            read += [parameter.grad.square().sum().item() for parameter in heavy if parameter.grad is not None]
    weights = {name: value.clone() for name, value in model.state_dict().items()}
    state = optimizer.state_dict()
    lg.unschedule(model)
    return weights, state, read, len(taken)


def compare(name: str, ways: list[str]) -> list[tuple[int, dict[str, Any]]]:
    """Slices and weights of each way; what is not bit-equal to the whole update is an error."""
    lg.init()
    results = []
    for way in ways:
        make = OPTIMIZERS[name]
        whole = train(make, sliced=False, way=way)
        slices.SLICE_BYTES, before = SLICE, slices.SLICE_BYTES
        try:
            sliced = train(make, sliced=True, way=way)
        finally:
            slices.SLICE_BYTES = before
        torch.testing.assert_close(sliced[:3], whole[:3], rtol=0, atol=0, msg=partial("{}: {}".format, way))
        results.append((sliced[3], sliced[0]))
    return results


LARGE_ITEMS = {0: 12 * 400, 2: 400 * 41}
SLICES_PER_STEP = sum(math.ceil(4 * items / SLICE) for items in LARGE_ITEMS.values())


@pytest.mark.parametrize("name", ELEMENTWISE)
def test_every_elementwise_optimizer_trains_as_with_whole_updates(crew: Crew, name: str) -> None:
    first, second = crew.run(compare, name, ["plain", "clipped"])
    for (num_slices, weights), (_, others) in zip(first, second, strict=True):
        assert num_slices == (STEPS - 1) * SLICES_PER_STEP  # the first step shows what the optimizer does
        torch.testing.assert_close(weights, others, rtol=0, atol=0)


WAYS = {"scaler": 3, "accumulated": 1, "closure": 2, "kept": 8, "codec": 1}
"""And the steps without slices: what shows the optimizer, what the scaler skips, and gradients read before."""


@pytest.mark.parametrize("name", ["sgd momentum", "adamw"])
def test_slices_go_with_whatever_else_happens_to_gradients(crew: Crew, name: str) -> None:
    first, second = crew.run(compare, name, list(WAYS))
    for way, one, other in zip(WAYS, first, second, strict=True):
        assert one[0] == (STEPS - WAYS[way]) * SLICES_PER_STEP, way
        torch.testing.assert_close(one[1], other[1], rtol=0, atol=0)


def test_an_update_that_was_interrupted_goes_on_where_it_was(crew: Crew) -> None:
    first, second = crew.run(compare, "adamw", ["interrupted"])
    assert first[0][0] > (STEPS - 1) * SLICES_PER_STEP / 2
    torch.testing.assert_close(first[0][1], second[0][1], rtol=0, atol=0)


@pytest.mark.parametrize(("name", "way"), [("adamw", "cast"), ("norms", "clipped")])
def test_other_optimizers_and_other_forms_wait_for_the_whole(crew: Crew, name: str, way: str) -> None:
    for [(num_slices, _)] in crew.run(compare, name, [way]):
        assert num_slices == 0


# ---- in order ----

ITEMS = 512 * 64
HALF_BYTES = 2 * ITEMS


class Noting(torch.optim.SGD):
    """Notes how many items it has stepped, and calls back."""

    after: Callable[[int], None] | None = None

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        super().step(closure)
        if self.after is not None:
            self.after(sum(parameter.numel() for group in self.param_groups for parameter in group["params"]))


def hold_back_the_second_half(make: MakeOptimizer) -> tuple[list[int], bool, bool]:
    """What rank 0 steps; rank 1 sends the second half only when rank 0 has updated the first."""
    lg.init()
    slices.SLICE_BYTES, before_bytes = 16_384, slices.SLICE_BYTES
    try:
        torch.manual_seed(0)
        layer = nn.Linear(64, 512, bias=False)
        optimizer = make(layer.parameters())
        lg.schedule(layer, optimizer, transport="native", tuner="off", partition_bytes=4096)
        synchronizer = Schedule.of(layer).synchronizer
        assert isinstance(synchronizer, NativeSynchronizer)
        collector = synchronizer._exchange.collector
        stepped: list[int] = []

        def train_once() -> None:
            optimizer.zero_grad()
            layer(torch.ones(2, 64)).square().mean().backward()
            optimizer.step()

        for _ in range(2):
            train_once()
        lg.flush(layer)
        words = np.zeros(1, np.uint32)
        if lg.rank() == 1:
            collector.set_pieces(0, 4 * ITEMS, words.ctypes.data)
        before = layer.weight.detach().clone()
        train_once()
        first_has_changed = second_has_changed = False
        if lg.rank() == 1:
            collector.ready(0, HALF_BYTES)
            lg.barrier()
            collector.ready(0, 4 * ITEMS)
            Schedule.of(layer)._parameters.settle_all()  # all of it is here before the first slice
            optimizer.after = stepped.append  # type: ignore[attr-defined]
        else:

            def after(num_items: int) -> None:
                nonlocal first_has_changed, second_has_changed
                stepped.append(num_items)
                if sum(stepped) == ITEMS // 2:
                    changed = layer.weight.detach() != before
                    first_has_changed = bool(changed[:256].all())
                    second_has_changed = bool(changed[256:].any())
                    lg.barrier()

            optimizer.after = after  # type: ignore[attr-defined]
        lg.flush(layer)
        assert not torch.equal(layer.weight.detach()[256:], before[256:])
        return stepped, first_has_changed, second_has_changed
    finally:
        slices.SLICE_BYTES = before_bytes


def test_the_first_items_are_updated_while_the_last_have_not_been_sent(crew: Crew) -> None:
    (stepped, first_has_changed, second_has_changed), (stepped_too, _, _) = crew.run(
        hold_back_the_second_half, partial(Noting, lr=0.1, momentum=0.9)
    )
    assert stepped == stepped_too == [4096] * 8, "the same slices, whatever has arrived when"
    assert first_has_changed
    assert not second_has_changed


# ---- trouble ----


def test_a_slice_that_does_not_come_names_who_is_missing() -> None:
    def wait_for_rank_1(group: NativeGroup) -> None:
        exchange = Exchange(group, "gradients", [TensorSpec("weight", (64,), "float32")])
        group.barrier()  # all ranks know its name
        value = torch.ones(64)
        if group.rank == 0:
            exchange.add(0, value.data_ptr(), value.nbytes, False, value)
        wait = partial(exchange.wait_first, 0, 4) if group.rank == 0 else partial(group.barrier, 20.0)
        with pytest.raises(DeadlineError, match=r"weight', step 0: .* ranks 1 have not sent it") as caught:
            wait()
        assert caught.value.rank == 1

    configs = job_configs(Deployment(num_workers=2), timeout_s=1.5)
    run_job([replace(config, engine=EngineConfig(heartbeat_s=0.5)) for config in configs], wait_for_rank_1)


def lose_a_rank() -> None:
    lg.init()
    slices.SLICE_BYTES, before = SLICE, slices.SLICE_BYTES
    try:
        model = network()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        lg.schedule(model, optimizer, transport="native", tuner="off")
        in_slices(model)
        for step in range(3):
            if step == 2 and lg.rank() == 1:
                raise ZeroDivisionError
            optimizer.zero_grad()
            model(torch.randn(2, 12)).sum().backward()
            optimizer.step()
        lg.flush(model)
    finally:
        slices.SLICE_BYTES = before


def test_a_rank_that_is_lost_is_named_by_whoever_waits_for_a_slice(crew: Crew) -> None:
    first, second = crew.outcomes(lose_a_rank)
    assert isinstance(second, ZeroDivisionError)
    assert isinstance(first, JobError)
    assert first.rank == 1
