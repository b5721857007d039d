"""Who takes over rank 0's weights and optimizer state when an epoch begins: ranks as threads."""

from collections.abc import Callable, Collection
from functools import partial

import pytest
import torch
from torch import nn

from legato.core.shards import Deployment
from legato.testing.native_job import job_configs
from legato.testing.ranks import run_ranks
from legato.torch.scheduling import handover as handover_module
from legato.torch.scheduling.handover import Handover, Lack, cut
from legato.torch.scheduling.update import Hyperparameters
from legato.transports.native.group import NativeGroup


def trained(value: float) -> tuple[nn.Module, torch.optim.Optimizer]:
    """Weights, a buffer, and moments of their own."""
    norm = nn.BatchNorm1d(2)
    model = nn.Sequential(nn.Linear(3, 2), norm)
    optimizer = torch.optim.Adam(model.parameters(), lr=value)
    for parameter in model.parameters():
        parameter.data.fill_(value)
        parameter.grad = torch.full_like(parameter, value)
    optimizer.step()
    assert norm.running_mean is not None
    norm.running_mean.fill_(value)
    return model, optimizer


def words_of(model: nn.Module, optimizer: torch.optim.Optimizer) -> str:
    return repr((model.state_dict(), optimizer.state_dict()))


@pytest.mark.parametrize("newcomers", [(), (2,), (1, 2)], ids=["nobody", "one", "two"])
@pytest.mark.parametrize("lack", [Lack.ALL, Lack.REST], ids=lambda each: each.name)
def test_newcomers_take_what_rank_0_has_and_the_others_keep_theirs(newcomers: Collection[int], lack: Lack) -> None:
    configs = job_configs(Deployment(num_workers=3))

    def body(rank: int) -> tuple[float, float, float]:
        model, optimizer = trained(1.0 + rank)
        handover = Handover("start", model, optimizer)
        handover._lack = lack if rank in newcomers else Lack.NOTHING
        with NativeGroup(configs[rank]) as group:
            assert handover.meet(group, teaches=False) is None
        assert handover._lack is Lack.NOTHING
        return (
            next(model.parameters()).max().item(),
            next(model.buffers()).max().item(),
            optimizer.param_groups[0]["lr"],
        )

    results = run_ranks(3, body)
    for rank, (weight, buffer, rate) in enumerate(results):
        has_taken = rank in newcomers
        assert (buffer, rate) == (1.0, 1.0) if has_taken else (1.0 + rank, 1.0 + rank)
        assert (weight == results[0][0]) == (rank == 0 or (has_taken and lack is Lack.ALL))


def test_where_a_job_begins_everybody_starts_from_rank_0() -> None:
    configs = job_configs(Deployment(num_workers=2))

    def body(rank: int) -> str:
        model, optimizer = trained(1.0 + rank)
        with NativeGroup(configs[rank]) as group:
            Handover("start", model, optimizer).meet(group, teaches=False)
            return words_of(model, optimizer)

    first, second = run_ranks(2, body)
    assert first == second


@pytest.mark.parametrize(
    ("sizes", "batches"),
    [
        ([10, 20, 30, 40], [[0, 1, 2], [3]]),
        ([10, 200, 30], [[0], [1], [], [], [], [2]]),
        ([300], [[0], [], [], [], []]),
        ([10], [[0], []]),
    ],
    ids=["several together", "one larger than its share", "nothing else", "two steps at least"],
)
def test_a_step_carries_its_share(sizes: list[int], batches: list[list[int]]) -> None:
    assert cut(sizes, 60) == batches


@pytest.mark.parametrize("make", [torch.optim.Adam, partial(torch.optim.SGD, momentum=0.9)], ids=["Adam", "SGD"])
def test_a_learner_comes_to_what_rank_0_has_while_that_steps(
    make: Callable[..., torch.optim.Optimizer], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(handover_module, "LEAST_BYTES", 600)
    configs = job_configs(Deployment(num_workers=3, num_learners=1))

    def body(rank: int) -> tuple[int, str]:
        torch.manual_seed(rank)
        model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8), nn.BatchNorm1d(8))
        optimizer = make(model.parameters(), lr=1.0)
        step_by(model, optimizer, 0)
        handover = Handover("start", model, optimizer)
        handover._lack = Lack.ALL if rank == 2 else Lack.NOTHING
        with NativeGroup(configs[rank]) as group:
            assert handover.can_teach()
            lesson = handover.meet(group, teaches=True)
            assert lesson is not None
            num_known: list[int] = []
            for number in range(lesson.num_steps):
                if rank == 0:
                    optimizer.param_groups[0]["lr"] = 0.5 / (1 + number)
                    assert lesson.give(number, Hyperparameters(optimizer))
                    step_by(model, optimizer, number)
                if rank == 2:
                    known = lesson.expect(number)
                    averages: dict[torch.Tensor, torch.Tensor | None] = {
                        each: gradient_of(each, number) for each in model.parameters() if each in known
                    }
                    num_known.append(len(averages))
                    lesson.take(averages)
            if rank == 2:
                assert num_known == sorted(num_known)
                assert num_known[0] < num_known[-1] == len(list(model.parameters()))
            assert handover.meet(group, teaches=False) is None
        return lesson.num_steps, words_of(model, optimizer)

    teacher, another, learner = run_ranks(3, body)
    assert teacher[0] > 3
    assert learner == teacher
    assert another[1] != teacher[1]


def gradient_of(parameter: torch.Tensor, number: int) -> torch.Tensor:
    """In one step, on whatever rank."""
    return torch.linspace(-1.0, 1.0 + number, parameter.numel()).view(parameter.shape)


def step_by(model: nn.Module, optimizer: torch.optim.Optimizer, number: int) -> None:
    for parameter in model.parameters():
        parameter.grad = gradient_of(parameter, number)
    optimizer.step()
    optimizer.zero_grad()
