"""Models that `fully_shard` has spread over the ranks of a host, averaged across hosts: 2 hosts of 2 ranks.

Beside them trains torch's own hybrid sharding, over a mesh of two dimensions.
"""

import contextlib
import math
import os
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor, Shard, distribute_tensor
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

import legato.torch as lg
from legato.errors import InputError, MismatchError
from legato.torch.scheduling.hooks import Schedule
from tests.crew import TIMEOUT_S
from tests.docs.blocks import blocks
from tests.torch.cases import OPTIMIZERS
from tests.torch.crew import Crew

STEPS = 8
LIMIT = 0.5


@pytest.fixture(scope="module")
def crew() -> Iterator[Crew]:
    """Processes of this file's own: torch keeps meshes, with the sockets of their groups, for as long as one runs."""
    crew = Crew(4)
    yield crew
    crew.close()


class Block(nn.Module):
    """Shapes that two ranks cannot share evenly, and a scale of which one of them has nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.wide = nn.Linear(7, 9)
        self.narrow = nn.Linear(9, 7)
        self.scale = nn.Parameter(torch.ones(1))

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        return values + self.scale * self.narrow(torch.tanh(self.wide(values)))


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(5, 7)
        self.blocks = nn.ModuleList(Block() for _ in range(3))
        self.seldom = Block()
        self.last = nn.Linear(7, 3)
        self.recomputes = False

    def forward(self, values: torch.Tensor, *, seldom: bool = False) -> torch.Tensor:
        hidden = self.first(values)
        for block in self.blocks:
            hidden = checkpoint(block, hidden, use_reentrant=False) if self.recomputes else block(hidden)
        if seldom:
            hidden = self.seldom(hidden)
        return self.last(hidden)


def join() -> None:
    # Soon enough for the test to hear why, where one rank fails and the others wait for it.
    dist.init_process_group("gloo", timeout=timedelta(seconds=TIMEOUT_S / 2))
    lg.init()


def meshes() -> tuple[DeviceMesh, DeviceMesh]:
    """For torch's own hybrid sharding, and of this host."""
    join()
    both = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard"))
    return both, both["shard"]


def sharded(mesh: DeviceMesh, **options: Any) -> Net:
    torch.manual_seed(0)
    model = Net()
    for block in (*model.blocks, model.seldom):
        fully_shard(block, mesh=mesh, **options)
    fully_shard(model, mesh=mesh, **options)
    return model


def batch(step: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(1000 * step + dist.get_rank())
    return torch.randn(4, 5, generator=generator), torch.randint(0, 3, (4,), generator=generator)


def loss_of(model: Net, step: int, part: int = 0) -> torch.Tensor:
    values, labels = batch(10 * step + part)
    return functional.cross_entropy(model(values, seldom=step % 3 == 1).float(), labels)


Step = Callable[[Net, torch.optim.Optimizer, int], Any]


def plain(model: Net, optimizer: torch.optim.Optimizer, step: int) -> None:
    optimizer.zero_grad()
    loss_of(model, step).backward()
    optimizer.step()


def weights(model: nn.Module) -> list[torch.Tensor]:
    return [parameter.detach().full_tensor() for parameter in model.parameters()]  # type: ignore[attr-defined]


def beside_torch(
    name: str,
    theirs: Step = plain,
    ours: Step | None = None,
    prepare: Callable[[Net], None] | None = None,
    **options: Any,
) -> tuple[list[torch.Tensor], list[torch.Tensor], list[Any], list[Any]]:
    """The weights of both, and what their steps returned."""
    both, host = meshes()
    found: list[Any] = []
    for mesh, step_of in ((both, theirs), (host, ours or theirs)):
        model = sharded(mesh, **options)
        if prepare is not None:
            prepare(model)
        optimizer = OPTIMIZERS[name](model.parameters())
        if mesh is host:
            lg.schedule(model, optimizer)
        said = [step_of(model, optimizer, step) for step in range(STEPS)]
        found.append((weights(model), said))
    (theirs_weights, theirs_said), (ours_weights, ours_said) = found
    return theirs_weights, ours_weights, theirs_said, ours_said


def check_alike(outcomes: list[Any], tolerance: float = 1e-6) -> None:
    """All ranks have the same bits, and these are torch's."""
    for theirs, ours, *_ in outcomes:
        for mine, first in zip(ours, outcomes[0][1], strict=True):
            assert torch.equal(mine, first)
        for mine, expected in zip(ours, theirs, strict=True):
            torch.testing.assert_close(mine, expected, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("reshard", [True, False])
@pytest.mark.parametrize("name", ["sgd", "adamw"])
def test_equals_torchs_own(crew: Crew, name: str, reshard: bool) -> None:
    check_alike(crew.run(_with_reshard, name, reshard, size=4))


def _with_reshard(name: str, reshard: bool) -> Any:
    return beside_torch(name, reshard_after_forward=reshard)


def test_mixed_precision(crew: Crew) -> None:
    outcomes = crew.run(_mixed, size=4)
    check_alike(outcomes)
    assert all(weight.dtype is torch.float32 for weight in outcomes[0][1])


def _mixed() -> Any:
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    return beside_torch("adamw", mp_policy=policy)


def test_recomputed_activations(crew: Crew) -> None:
    check_alike(crew.run(_recomputing, size=4))


def _recomputing() -> Any:
    def recompute(model: Net) -> None:
        model.recomputes = True

    return beside_torch("adamw", prepare=recompute)


@pytest.mark.parametrize(
    ("function", "norm_type"), [("legato", 2.0), ("legato", math.inf), ("legato", 1.0), ("torch", 2.0)]
)
def test_clipping(crew: Crew, function: str, norm_type: float) -> None:
    """Norms above and below the limit in turn; a norm is one of all shards, and of the average of all hosts."""
    outcomes = crew.run(_clipped, function, norm_type, size=4)
    check_alike(outcomes)
    for _, _, theirs, ours in outcomes:
        assert ours == outcomes[0][3]
        assert ours == pytest.approx(theirs, rel=1e-6)
    assert max(outcomes[0][3]) > LIMIT > min(outcomes[0][3])


def _clipped(function: str, norm_type: float) -> Any:
    def clipped(clip: Callable[..., Any]) -> Step:
        def step_of(model: Net, optimizer: torch.optim.Optimizer, step: int) -> float:
            optimizer.zero_grad()
            (loss_of(model, step) * (0.01 if step % 2 else 10.0)).backward()
            norm = clip(model.parameters(), LIMIT, norm_type=norm_type)
            optimizer.step()
            return float(norm.full_tensor() if isinstance(norm, DTensor) else norm)

        return step_of

    expected = _clip_by_largest if math.isinf(norm_type) else nn.utils.clip_grad_norm_
    ours = lg.clip_grad_norm_ if function == "legato" else nn.utils.clip_grad_norm_
    return beside_torch("adamw", clipped(expected), clipped(ours))


def _clip_by_largest(parameters: Any, limit: float, norm_type: float) -> torch.Tensor:
    """torch's own fails on a rank that has nothing of a parameter."""
    del norm_type
    gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
    largest = torch.stack([gradient.full_tensor().abs().max() for gradient in gradients]).max()
    for gradient in gradients:
        gradient.to_local().mul_(torch.clamp(limit / (largest + 1e-6), max=1.0))
    return largest


def test_clipping_waits_for_no_average(crew: Crew) -> None:
    assert crew.run(_left_due, size=4) == [True] * 4


def _left_due() -> bool:
    _, host = meshes()
    model = sharded(host)
    optimizer = OPTIMIZERS["sgd"](model.parameters())
    lg.schedule(model, optimizer)
    for step in range(3):
        optimizer.zero_grad()
        loss_of(model, step).backward()
        norm = lg.clip_grad_norm_(model.parameters(), LIMIT)
        optimizer.step()
    assert not isinstance(norm, DTensor)
    return all(each.due is not None for each in Schedule.of(model)._parameters.all)


def test_reductions_are_of_whole_gradients(crew: Crew) -> None:
    for here, expected in crew.run(_reduced, size=4):
        torch.testing.assert_close(here, expected)


def _reduced() -> Any:
    _, host = meshes()
    model = sharded(host)
    optimizer = OPTIMIZERS["sgd"](model.parameters())
    lg.schedule(model, optimizer)
    found = []
    for step in range(2):  # nobody measures the first
        optimizer.zero_grad()
        loss_of(model, 1).backward()
        squares = lg.reduce_gradients(model.parameters(), "sum of squares")
        whole = [parameter.grad.full_tensor().double() for parameter in model.parameters()]  # type: ignore[union-attr]
        found.append((torch.as_tensor(squares.tolist()), torch.stack([each.square().sum() for each in whole]).float()))
        optimizer.step()
        del step
    return torch.cat([here for here, _ in found]), torch.cat([expected for _, expected in found])


def test_loss_scaling(crew: Crew) -> None:
    """One rank's shard overflows: all ranks skip the step."""
    outcomes = crew.run(_scaled, size=4)
    check_alike(outcomes)
    for _, _, theirs, ours in outcomes:
        assert ours == theirs
    assert set(outcomes[0][3]) == {512.0, 1024.0}


def _scaled() -> Any:
    def scaled(scaler: torch.amp.GradScaler) -> Step:
        def step_of(model: Net, optimizer: torch.optim.Optimizer, step: int) -> float:
            optimizer.zero_grad()
            loss = loss_of(model, step)
            if step % 7 == 3 and dist.get_rank() == 2:
                loss = loss * math.inf
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            return scaler.get_scale()

        return step_of

    def new(kind: type[torch.amp.GradScaler]) -> torch.amp.GradScaler:
        return kind("cpu", init_scale=1024.0, growth_interval=4)

    return beside_torch("sgd", scaled(new(torch.amp.GradScaler)), scaled(new(lg.GradScaler)))


@pytest.mark.parametrize("way", ["torch's", "legato's", "none"])
def test_accumulation(crew: Crew, way: str) -> None:
    check_alike(crew.run(_accumulated, way, size=4))


def _accumulated(way: str) -> Any:
    def step_of(model: Net, optimizer: torch.optim.Optimizer, step: int) -> None:
        optimizer.zero_grad()
        is_ours = bool(getattr(model, "_legato", None))
        for part in range(3):
            assert isinstance(model, FSDPModule)
            is_quiet = part < 2 and (way == "torch's" or (way == "legato's" and not is_ours))
            model.set_requires_gradient_sync(not is_quiet)
            with lg.no_sync(model) if way == "legato's" and is_ours and part < 2 else contextlib.nullcontext():
                (loss_of(model, step, part) / 3).backward()
        optimizer.step()

    return beside_torch("sgd", step_of)


def test_state_dicts(crew: Crew) -> None:
    """What is saved is what a step has made, and what is loaded goes on from there."""
    outcomes = crew.run(_saved_and_loaded, size=4)
    for straight, loaded, saved, expected in outcomes:
        for mine, first in zip(straight, loaded, strict=True):
            assert torch.equal(mine, first)
        for mine, first in zip(saved, expected, strict=True):
            assert torch.equal(mine, first)


def _saved_and_loaded() -> Any:
    _, host = meshes()

    def made() -> tuple[Net, torch.optim.Optimizer]:
        model = sharded(host)
        optimizer = OPTIMIZERS["adamw"](model.parameters())
        lg.schedule(model, optimizer)
        return model, optimizer

    model, optimizer = made()
    for step in range(5):
        plain(model, optimizer, step)
    saved: Any = get_state_dict(model, optimizer)
    of_model, of_optimizer = saved
    # Copies: what a state dict holds changes with the model.
    copies = {name: value.full_tensor() for name, value in of_model.items()}
    of_model = {name: value.clone() for name, value in of_model.items()}
    of_optimizer = _cloned(of_optimizer)
    expected = dict(zip(copies, weights(model), strict=True))
    for step in range(5, 10):
        plain(model, optimizer, step)
    straight = weights(model)

    lg.unschedule(model)
    model, optimizer = made()
    plain(model, optimizer, 0)
    set_state_dict(model, optimizer, model_state_dict=of_model, optim_state_dict=of_optimizer)
    for step in range(5, 10):
        plain(model, optimizer, step)
    return straight, weights(model), list(copies.values()), list(expected.values())


def _cloned(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _cloned(each) for key, each in value.items()}
    if isinstance(value, list):
        return [_cloned(each) for each in value]
    return value.clone() if isinstance(value, torch.Tensor) else value


def test_hosts_begin_alike(crew: Crew) -> None:
    """Weights and the optimizer's state are those of the first host, shard by shard."""
    outcomes = crew.run(_begun_differently, size=4)
    for start, moments, after in outcomes:
        for mine, first in zip(
            (*start, *moments, *after), (*outcomes[0][0], *outcomes[0][1], *outcomes[0][2]), strict=True
        ):
            assert torch.equal(mine, first)
    assert len(outcomes[0][1]) > 0


def _begun_differently() -> Any:
    _, host = meshes()
    model = sharded(host)
    is_first = dist.get_rank() < 2
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(1.0 if is_first else 2.0)
    optimizer = OPTIMIZERS["adamw"](model.parameters())
    if is_first:
        plain(model, optimizer, 0)  # alone: nobody has scheduled it yet
    lg.schedule(model, optimizer)
    start = weights(model)
    state = [
        optimizer.state[parameter]["exp_avg"].full_tensor()
        for parameter in model.parameters()
        if parameter in optimizer.state
    ]
    for step in range(3):
        plain(model, optimizer, step)
    return start, state, weights(model)


def test_updates_come_group_by_group(crew: Crew) -> None:
    """A step waits for nothing, and what a group owes is applied before FSDP gathers it, not much earlier."""
    for dues in crew.run(_dues, size=4):
        assert dues == [[False, True, True], [False, False, True], [False, False, False]]


def _dues() -> Any:
    _, host = meshes()
    model = sharded(host)
    optimizer = OPTIMIZERS["sgd"](model.parameters())
    lg.schedule(model, optimizer)
    plain(model, optimizer, 0)
    plain(model, optimizer, 0)
    known = Schedule.of(model)._parameters.all
    dues: list[list[bool]] = []

    def look(*_: Any) -> None:
        of_block = [[each for each in known if each.slot.name.startswith(f"blocks.{at}.")] for at in range(3)]
        dues.append([all(each.due is not None for each in block) for block in of_block])

    handles = [block.register_forward_pre_hook(look) for block in model.blocks]
    loss_of(model, 0)
    for handle in handles:
        handle.remove()
    lg.flush(model)
    return dues


@pytest.mark.parametrize("way", ["prefetch", "unshard"])
def test_what_is_gathered_early_is_up_to_date(crew: Crew, way: str) -> None:
    check_alike(crew.run(_gathered_early, way, size=4))


def _gathered_early(way: str) -> Any:
    def prefetch(model: Net) -> None:
        for block, later in zip(model.blocks, list(model.blocks)[1:], strict=False):
            assert isinstance(block, FSDPModule)
            block.set_modules_to_forward_prefetch([later])  # type: ignore[list-item]

    def unshard_first(model: Net, optimizer: torch.optim.Optimizer, step: int) -> None:
        for module in (model, *model.blocks):
            assert isinstance(module, FSDPModule)
            module.unshard()
        plain(model, optimizer, step)

    if way == "prefetch":
        return beside_torch("adamw", prepare=prefetch)
    return beside_torch("adamw", unshard_first)


def test_modules_that_share_a_group(crew: Crew) -> None:
    """Two modules with one weight are gathered together, whichever of them runs first."""
    check_alike(crew.run(_tied, size=4))


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(9, 6)
        self.body = nn.Linear(6, 6)
        self.head = nn.Linear(6, 9)
        self.head.weight = self.embedding.weight

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.head(torch.tanh(self.body(self.embedding(tokens))))


def _tied() -> Any:
    found = []
    both, host = meshes()
    for mesh in (both, host):
        torch.manual_seed(0)
        model = Tied()
        fully_shard([model.embedding, model.head], mesh=mesh)
        fully_shard(model, mesh=mesh)
        optimizer = OPTIMIZERS["adamw"](model.parameters())
        if mesh is host:
            lg.schedule(model, optimizer)
        for step in range(STEPS):
            optimizer.zero_grad()
            tokens = torch.randint(0, 9, (4, 5), generator=torch.Generator().manual_seed(10 * step + dist.get_rank()))
            functional.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten()).backward()
            optimizer.step()
        found.append(weights(model))
    return found


def test_hosts_may_use_different_parameters(crew: Crew) -> None:
    """What one host alone has used is updated on both, by half of it; a rank with nothing of it knows as well."""
    outcomes = crew.run(_used_on_one_host, size=4)
    for steps, ours, norms in outcomes:
        assert steps == [3.0] * 5
        assert norms == outcomes[0][2]
        for mine, first in zip(ours, outcomes[0][1], strict=True):
            assert torch.equal(mine, first)


def _used_on_one_host() -> Any:
    _, host = meshes()
    model = sharded(host)
    optimizer = OPTIMIZERS["adamw"](model.parameters())
    lg.schedule(model, optimizer)
    norms = []
    for step in range(3):
        optimizer.zero_grad()
        values, labels = batch(step)
        functional.cross_entropy(model(values, seldom=dist.get_rank() < 2), labels).backward()
        norms.append(lg.clip_grad_norm_(model.parameters(), LIMIT).item())
        optimizer.step()
    lg.flush(model)
    return [optimizer.state[each]["step"].item() for each in model.seldom.parameters()], weights(model), norms


def test_shards_are_tuned(crew: Crew) -> None:
    """A tuner changes the plan of each group of replicas while training runs."""
    outcomes = crew.run(_tuned, size=4)
    for ours, plans in outcomes:
        assert len(plans) > 1
        for mine, first in zip(ours, outcomes[0][0], strict=True):
            assert torch.equal(mine, first)


def _tuned() -> Any:
    _, host = meshes()
    model = sharded(host)
    optimizer = OPTIMIZERS["sgd"](model.parameters())
    lg.schedule(model, optimizer, tuner="grid")
    plans = set()
    for step in range(60):
        plain(model, optimizer, step)
        plans.add(lg.current_plan(model).digest)
    return weights(model), plans


@pytest.mark.parametrize("compression", ["fp16", "onebit+ef", "topk:0.5+ef"])
def test_shards_are_compressed(crew: Crew, compression: str) -> None:
    for ours, before, after in (outcomes := crew.run(_compressed, compression, size=4)):
        assert after < before
        for mine, first in zip(ours, outcomes[0][0], strict=True):
            assert torch.equal(mine, first)


def _compressed(compression: str) -> Any:
    _, host = meshes()
    model = sharded(host)
    optimizer = OPTIMIZERS["sgd"](model.parameters())
    lg.schedule(model, optimizer, compression=compression, min_compress_bytes=0)
    before = loss_of(model, 0).item()
    for _ in range(20):  # enough to learn from, whatever a codec holds back at first
        optimizer.zero_grad()
        loss_of(model, 0).backward()
        lg.clip_grad_norm_(model.parameters(), 10.0)
        optimizer.step()
    return weights(model), before, loss_of(model, 0).item()


def test_a_model_over_all_ranks_is_fsdps(crew: Crew) -> None:
    for trained, alone in crew.run(_over_all, size=2):
        for mine, expected in zip(trained, alone, strict=True):
            assert torch.equal(mine, expected)


def _over_all() -> Any:
    join()
    mesh = init_device_mesh("cpu", (2,))
    found = []
    for schedules in (True, False):
        model = sharded(mesh)
        optimizer = OPTIMIZERS["sgd"](model.parameters())
        if schedules:
            lg.schedule(model, optimizer)
        for step in range(3):
            plain(model, optimizer, step)
        found.append(weights(model))
    return found


def test_a_forward_pass_before_is_no_matter(crew: Crew) -> None:
    """It leaves the root's parameters gathered."""
    assert crew.run(_evaluated_first, size=4) == [["first.bias", "first.weight"]] * 4


def _evaluated_first() -> Any:
    _, host = meshes()
    model = sharded(host)
    optimizer = OPTIMIZERS["sgd"](model.parameters())
    with torch.no_grad():
        loss_of(model, 0)
    lg.schedule(model, optimizer)
    return sorted(slot.name for slot in Schedule.of(model).slots if slot.name.startswith("first."))


def test_the_page_says_how(crew: Crew) -> None:
    """The block of docs/pytorch.md, as it stands there."""
    [block] = [each for each in blocks(["docs/pytorch.md"], "python") if each.heading.startswith("Sharded models")]
    assert crew.run(_as_the_page_says, block.text, size=4) == [True] * 4


def _as_the_page_says(block: str) -> bool:
    os.environ.update(LOCAL_RANK=str(int(os.environ["RANK"]) % 2), LOCAL_WORLD_SIZE="2")
    names: dict[str, Any] = {"model": Net()}
    exec(block, names)
    for step in range(3):
        plain(names["model"], names["optimizer"], step)
    return any(each.due is not None for each in Schedule.of(names["model"])._parameters.all)


# ---- what is refused ----


def _two_dimensions(both: DeviceMesh, host: DeviceMesh) -> None:
    del host
    model = sharded(both)
    lg.schedule(model, OPTIMIZERS["sgd"](model.parameters()))


def _tensor_parallel(both: DeviceMesh, host: DeviceMesh) -> None:
    del both
    model = nn.Linear(4, 4)
    model.weight = nn.Parameter(distribute_tensor(model.weight.detach(), host, [Shard(0)]))
    model.bias = nn.Parameter(distribute_tensor(model.bias.detach(), host, [Shard(0)]))
    lg.schedule(model, OPTIMIZERS["sgd"](model.parameters()))


def _partly(both: DeviceMesh, host: DeviceMesh) -> None:
    del both
    model = Net()
    for block in model.blocks:
        fully_shard(block, mesh=host)
    lg.schedule(model, OPTIMIZERS["sgd"](model.parameters()))


def _over_c10d(both: DeviceMesh, host: DeviceMesh) -> None:
    del both
    model = sharded(host)
    lg.schedule(model, OPTIMIZERS["sgd"](model.parameters()), transport="c10d")


def _alone(both: DeviceMesh, host: DeviceMesh) -> None:
    del both
    model = sharded(host)
    lg.schedule(model, OPTIMIZERS["sgd"](model.parameters()), local_steps=4)


@pytest.mark.parametrize(
    ("ask", "words"),
    [
        (_two_dimensions, ["'first.weight'", "a mesh of 2 dimensions", "the mesh of one host"]),
        (_tensor_parallel, ["'weight'", "not one of fully_shard's"]),
        (_partly, ["'first.weight'", "is whole on every rank", "the whole model"]),
        (_over_c10d, ["transport='c10d'", "accepted are native and auto"]),
        (_alone, ["local_steps=4", "sharded model"]),
    ],
)
def test_what_is_not_supported_is_refused(crew: Crew, ask: Callable[..., None], words: list[str]) -> None:
    for outcome in crew.outcomes(_asking, ask, size=4):
        assert isinstance(outcome, InputError)
        assert all(each in str(outcome) for each in words), str(outcome)


def _asking(ask: Callable[..., None]) -> None:
    ask(*meshes())


def test_meshes_must_be_alike(crew: Crew) -> None:
    for outcome in crew.outcomes(_uneven_meshes, size=3):
        assert isinstance(outcome, MismatchError)
        assert "rank 2 over (2,)" in str(outcome)


def _uneven_meshes() -> None:
    join()
    groups = [dist.new_group([0, 1]), dist.new_group([2])]
    model = sharded(DeviceMesh.from_group(groups[dist.get_rank() // 2], "cpu"))
    lg.schedule(model, OPTIMIZERS["sgd"](model.parameters()))


def test_all_ranks_or_none_shard_a_model(crew: Crew) -> None:
    for outcome in crew.outcomes(_one_whole, size=4):
        assert isinstance(outcome, MismatchError)
        assert "sharded as" in str(outcome)


def _one_whole() -> None:
    _, host = meshes()
    model = sharded(host) if dist.get_rank() < 2 else Net()
    lg.schedule(model, OPTIMIZERS["sgd"](model.parameters()), transport="native")
