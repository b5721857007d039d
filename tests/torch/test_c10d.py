"""Training over a process group: the same results as torch's DDP, whatever the order of gradients on each rank."""

import os
import threading
from collections.abc import Callable
from typing import Any
from unittest.mock import patch

import pytest
import torch
import torch.distributed as dist
from torch import nn

import legato.torch as lg
from legato.core import Plan, Policy
from legato.core.policies import POLICIES
from legato.errors import InputError, LegatoError, MismatchError
from legato.torch.compression import Compression
from legato.torch.scheduling.hooks import Schedule
from legato.torch.sync.c10d import REGULAR_ROUND, C10dSynchronizer
from legato.torch.sync.c10d_buckets import Buckets
from legato.torch.sync.c10d_plan import StaticConfig
from legato.torch.sync.native import NativeSynchronizer
from legato.torch.sync.process_group import ProcessGroup
from legato.torch.sync.synchronizer import Slot
from tests.core.plans import SmallestFirst
from tests.torch.crew import Crew

# ---- every policy, two and four ranks ----


def train_whole_numbers(policy: str | None, steps: int) -> list[float]:
    """The weights after steps with gradients that are whole numbers; without a policy, with torch's DDP."""
    lg.init()
    if not dist.is_initialized():
        dist.init_process_group("gloo")
    torch.manual_seed(1)
    model: nn.Module = nn.Sequential(*(nn.Linear(9, 9) for _ in range(6)))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.round_()
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    if policy is None:
        model = nn.parallel.DistributedDataParallel(model)
    else:
        lg.schedule(model, optimizer, policy=policy, transport="c10d")
    for step in range(steps):
        optimizer.zero_grad()
        values = torch.full((2, 9), float((lg.rank() + step) % 3))
        # The mean over ranks of a whole number times the number of ranks is a whole number.
        (model(values).sum() * lg.size()).backward()
        for parameter in model.parameters():
            assert parameter.grad is not None
        optimizer.step()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.remainder_(3.0)
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()]).tolist()


def train_all_policies(steps: int) -> dict[str | None, list[float]]:
    return {policy: train_whole_numbers(policy, steps) for policy in (None, *POLICIES, "auto")}


@pytest.mark.parametrize("size", [2, 4])
def test_every_policy_trains_to_the_same_bits_as_ddp(crew: Crew, size: int) -> None:
    for weights in crew.run(train_all_policies, REGULAR_ROUND + 3, size=size):
        for policy in (*POLICIES, "auto"):
            assert weights[policy] == weights[None], policy


# ---- the synchronizer by itself ----


def synchronizer(config: StaticConfig, sizes: tuple[int, ...], dtypes: tuple[torch.dtype, ...] = ()) -> Any:
    lg.init()
    dist.init_process_group("gloo")
    kinds = dtypes or (torch.float32,) * len(sizes)
    slots = [
        Slot(f"p{index}", nn.Parameter(torch.zeros(size, dtype=dtype)))
        for index, (size, dtype) in enumerate(zip(sizes, kinds, strict=True))
    ]
    return C10dSynchronizer(ProcessGroup(20.0), "g", slots, Compression.none, config=config, timeout_s=20.0), slots


def average_in_own_order(policy: str | Policy) -> list[list[float]]:
    """Every rank brings its gradients in another order, over several rounds and through both changes of plan."""
    sync, slots = synchronizer(StaticConfig(policy=policy, bucket_bytes=64), (3, 40, 1, 8, 17))
    rank = lg.rank()
    results: list[list[float]] = []
    for step in range(REGULAR_ROUND + 3):
        order = [(index * (rank + 1) + step + rank) % len(slots) for index in range(len(slots))]
        gradients = [torch.full_like(slot.parameter, rank + step + 1.0, requires_grad=False) for slot in slots]
        for index in order:
            sync.submit(index, gradients[index])
        for index, gradient in enumerate(gradients):
            assert sync.wait(index)
            assert sync.result(index) is gradient
        results.append([float(gradient.unique()) for gradient in gradients])
        if step == 0:
            sync.set_order([2, 0, 4, 1, 3])
    sync.close()
    return results


@pytest.mark.parametrize("policy", ["auto", *POLICIES, SmallestFirst()])
def test_ranks_with_different_orders_do_not_hang(crew: Crew, policy: str | Policy) -> None:
    for results in crew.run(average_in_own_order, policy, size=4):
        assert results == [[step + 2.5] * 5 for step in range(REGULAR_ROUND + 3)]


def average_some() -> list[tuple[bool, ...]]:
    """Parameters 0: everybody, 1: rank 1 only, 2: nobody."""
    sync, _ = synchronizer(StaticConfig(), (2, 2, 2))
    seen = []
    for _ in range(2):
        sync.submit(0, torch.full((2,), 4.0))
        sync.submit(1, torch.full((2,), 4.0) if lg.rank() == 1 else None)
        sync.submit(2, None)
        had = tuple(sync.wait(index) for index in range(3))
        seen.append(had)
        assert sync.result(0).tolist() == [4.0, 4.0]
        assert sync.result(1).tolist() == [2.0, 2.0]
    sync.close()
    return seen


def test_a_gradient_that_some_or_no_rank_has(crew: Crew) -> None:
    assert crew.run(average_some) == [[(True, True, False)] * 2] * 2


def wait_before_all_have_come() -> list[list[float]]:
    """Rank 0 does not use parameter 1; both look at parameter 0 before step() has said so."""
    sync, _ = synchronizer(StaticConfig(), (1, 1))
    results = []
    for _ in range(3):
        sync.submit(0, torch.ones(1))
        if lg.rank() == 1:
            sync.submit(1, torch.ones(1))
        assert sync.wait(0)
        if lg.rank() == 0:
            sync.submit(1, None)
        assert sync.wait(1)
        results.append([float(sync.result(0)), float(sync.result(1))])
    sync.close()
    return results


def test_whoever_is_waited_for_does_not_wait_for_an_unused_parameter(crew: Crew) -> None:
    assert crew.run(wait_before_all_have_come) == [[[1.0, 0.5]] * 3] * 2


class Sum(nn.Module):
    """Autograd makes the gradients of `c`, `b` and `a` in this order; one rank does not use `c`."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = (nn.Parameter(torch.ones(2)) for _ in range(3))

    def forward(self) -> torch.Tensor:
        total = self.a.sum() + 2 * self.b.sum()
        return total if lg.rank() else total + 4 * self.c.sum()


def look_in_mid_backward() -> list[float]:
    """A hook looks at an average before all gradients have come."""
    lg.init()
    dist.init_process_group("gloo")
    model = Sum()
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    lg.schedule(model, optimizer, transport="c10d")
    seen: list[float] = []
    model.b.register_post_accumulate_grad_hook(lambda b: seen.append(float(b.grad[0])))
    for _ in range(3):
        optimizer.zero_grad()
        model().backward()
        optimizer.step()
    assert seen == [2.0] * 3
    return [float(parameter[0]) for parameter in model.state_dict().values()]


def test_an_average_is_kept_for_a_rank_whose_next_round_has_none(crew: Crew) -> None:
    """Of `c`: the look ends a round in which one rank had a gradient, and all enter the next with nothing."""
    assert crew.run(look_in_mid_backward) == [[1.0 - 3, 1.0 - 6, 1.0 - 6]] * 2


def several_kinds() -> list[torch.dtype]:
    sync, slots = synchronizer(StaticConfig(), (3, 3, 3), (torch.float32, torch.bfloat16, torch.float64))
    for index, slot in enumerate(slots):
        sync.submit(index, torch.full_like(slot.parameter, lg.rank(), requires_grad=False))
    dtypes = []
    for index in range(3):
        assert sync.wait(index)
        assert sync.result(index).tolist() == [0.5] * 3 if index == 0 else True
        dtypes.append(sync._buckets.put(index, None).dtype)
    sync.close()
    return dtypes


def test_gradients_of_different_kinds_do_not_share_a_bucket(crew: Crew) -> None:
    assert crew.run(several_kinds) == [[torch.float32, torch.bfloat16, torch.float64]] * 2


def average_in_place(num_items: int, stride: int) -> tuple[bool, list[float]]:
    """Whether the gradient's own memory travels, and the average of ranks 0 and 1, each with its rank + 1."""
    sync, _ = synchronizer(StaticConfig(bucket_bytes=800), (num_items, 4))
    gradient = torch.full((num_items * stride,), lg.rank() + 1.0)[::stride]
    sync.submit(0, gradient)
    in_place = sync._passages[0].place.data_ptr() == gradient.data_ptr()
    sync.submit(1, torch.zeros(4))
    assert sync.wait(0)
    assert sync.wait(1)
    sync.close()
    return in_place, gradient.unique().tolist()


@pytest.mark.parametrize(("num_items", "stride", "in_place"), [(500, 1, True), (500, 2, False), (10, 1, False)])
def test_a_large_gradient_travels_in_its_own_memory(crew: Crew, num_items: int, stride: int, in_place: bool) -> None:
    assert crew.run(average_in_place, num_items, stride) == [(in_place, [1.5])] * 2


# ---- what is refused ----


def error_of(action: Callable[[], object], kind: type[LegatoError]) -> str:
    """What it says; on a rank of the crew, where pytest's own failures could not travel back."""
    try:
        action()
    except kind as error:
        return str(error)
    return f"no {kind.__name__}"


def disagree() -> str:
    other = lg.init().rank == 1
    return error_of(lambda: synchronizer(StaticConfig(), (4, 5 if other else 4)), MismatchError)


def test_ranks_that_disagree_hear_it_on_every_rank(crew: Crew) -> None:
    first, second = crew.run(disagree)
    assert "tensor 'g/p1'" in first
    assert first == second


def plan_of_a_policy_of_ones_own() -> str:
    """Each rank has another policy; rank 0's is one that the others do not even know."""
    policy: str | Policy = SmallestFirst() if lg.init().rank == 0 else "dear"
    sync, _ = synchronizer(StaticConfig(policy=policy, bucket_bytes=16), (40, 1, 17))
    plan: Plan = sync.plan
    sync.close()
    return plan.to_json()


def test_rank_0_writes_the_plan_that_all_follow(crew: Crew) -> None:
    first, second = crew.run(plan_of_a_policy_of_ones_own)
    assert first == second
    assert Plan.from_json(first).policy == "smallest"


def schedule_without_torch_distributed() -> str:
    job = lg.init(rank=0, num_workers=2, conductor="127.0.0.1:1")
    model = nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters())
    return error_of(lambda: lg.schedule(model, optimizer, transport="c10d", job=job), InputError)


def test_without_torch_distributed_it_says_what_to_call(crew: Crew) -> None:
    assert "init_process_group" in crew.run(schedule_without_torch_distributed, size=1)[0]


def schedule_on_a_protected_wire() -> tuple[str, bool]:
    dist.init_process_group("gloo")
    with patch.dict(os.environ, LEGATO_WIRE="encrypted"):
        lg.init()
    model = nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters())
    refusal = error_of(lambda: lg.schedule(model, optimizer, transport="c10d"), InputError)
    lg.schedule(model, optimizer)
    is_native_for_good = isinstance(Schedule.of(model).synchronizer, NativeSynchronizer)
    lg.shutdown()
    return refusal, is_native_for_good


def test_what_cannot_be_protected_is_refused(crew: Crew) -> None:
    """And `auto` does not try it."""
    words = "LEGATO_WIRE is 'encrypted', which transport c10d cannot do; accepted are native and auto"
    assert crew.run(schedule_on_a_protected_wire) == [(words, True)] * 2


def schedule_under_torchrun() -> tuple[bool, bool, int]:
    lg.init()
    model = nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters())
    lg.schedule(model, optimizer, transport="c10d")
    model(torch.ones(1)).sum().backward()
    optimizer.step()
    before = dist.is_initialized()
    lg.shutdown()
    threads = [thread.name for thread in threading.enumerate() if thread.name.startswith("legato")]
    return before, dist.is_initialized(), len(threads)


def test_under_torchrun_it_comes_and_goes_by_itself(crew: Crew) -> None:
    assert crew.run(schedule_under_torchrun) == [(True, False, 0)] * 2


def unknown(transport: str, policy: str) -> str:
    lg.init()
    dist.init_process_group("gloo")
    model = nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters())
    return error_of(lambda: lg.schedule(model, optimizer, transport=transport, policy=policy), InputError)


@pytest.mark.parametrize(
    ("transport", "policy", "words"),
    [("pigeon", "auto", "accepted: auto, native, c10d"), ("c10d", "lifo", "accepted: auto, fifo, wfbp")],
)
def test_what_is_unknown_is_refused(crew: Crew, transport: str, policy: str, words: str) -> None:
    assert all(words in message for message in crew.run(unknown, transport, policy))


# ---- buckets ----


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize("sizes", [[4], [1, 3]])
def test_a_sum_is_divided_where_it_lands_unless_it_could_be_infinite(dtype: torch.dtype, sizes: list[int]) -> None:
    members = (tuple(range(len(sizes))),)
    buckets = Buckets(members, [torch.Size([size]) for size in sizes], [torch.empty(0, dtype=dtype)] * len(sizes), 4)
    for index, size in enumerate(sizes):
        buckets.put(index, torch.full([size], 32768, dtype=dtype))
    packed = buckets.pack(0)
    is_narrow = dtype is torch.float16
    assert (buckets.reduction(0), packed.tolist()) == (("sum", [8192] * 4) if is_narrow else ("average", [32768] * 4))
