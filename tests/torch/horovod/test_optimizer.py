"""DistributedOptimizer and the optimizer's state, where only Horovod's users see a difference."""

from typing import Any

import pytest
import torch
from torch import nn

import legato.horovod.torch as hvd
from tests.torch.crew import Crew


def _adasum_steps(compression: Any) -> None:
    """Every rank takes a step of its own, with state of its own; the steps are combined."""
    hvd.init()
    rank, size = hvd.rank(), hvd.size()

    def parameter(seed: int) -> nn.Parameter:
        return nn.Parameter(torch.randn(4, generator=torch.Generator().manual_seed(seed), dtype=torch.float64))

    def gradient(of: int, step: int) -> torch.Tensor:
        return torch.randn(4, generator=torch.Generator().manual_seed(10 * of + step), dtype=torch.float64)

    p = parameter(0)
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD([p], lr=0.1, momentum=0.9), named_parameters=[("p", p)], op=hvd.Adasum, compression=compression
    )
    alone = [parameter(0) for _ in range(size)]
    theirs = [torch.optim.SGD([each], lr=0.1, momentum=0.9) for each in alone]
    for step in range(3):
        optimizer.zero_grad()
        (p * gradient(rank, step)).sum().backward()
        optimizer.synchronize()
        optimizer.step()
        start = alone[0].detach().clone()
        for of, (each, other) in enumerate(zip(alone, theirs, strict=True)):
            each.grad = gradient(of, step)
            other.step()
        a, b = (each.detach() - start for each in alone)
        step_of_all = (1 - a @ b / (2 * a @ a)) * a + (1 - a @ b / (2 * b @ b)) * b
        for each in alone:
            each.data = start + step_of_all
        torch.testing.assert_close(p, alone[0], rtol=0, atol=1e-3 if compression is hvd.Compression.fp16 else 1e-12)
    with pytest.raises(AssertionError, match="nothing to skip"), optimizer.skip_synchronize():
        pass


@pytest.mark.parametrize("compression", [hvd.Compression.none, hvd.Compression.fp16], ids=["none", "fp16"])
def test_adasum_combines_steps(crew: Crew, compression: Any) -> None:
    crew.run(_adasum_steps, compression)


def _adasum_alone() -> None:
    hvd.init()
    p = nn.Parameter(torch.zeros(1))
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD([p], lr=1.0), op=hvd.Adasum)
    p.sum().backward()
    optimizer.step()
    assert p.item() == -1


def test_adasum_alone(crew: Crew) -> None:
    crew.run(_adasum_alone, size=1)


def _misuse() -> None:
    hvd.init()
    p, q = nn.Parameter(torch.zeros(2)), nn.Parameter(torch.zeros(2))
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD([p, q], lr=1.0), groups=[[p], [q]])
    (p + q).sum().backward()
    with pytest.raises(AssertionError, match="zero_grad"):
        optimizer.zero_grad()
    with pytest.raises(AssertionError, match="computed again"):
        (p + q).sum().backward()
    optimizer.synchronize()
    with pytest.warns(UserWarning, match=r"step\(\) called without optimizer\.skip_synchronize\(\)"):
        optimizer.step()
    (p + q).sum().backward()
    optimizer.synchronize()
    with optimizer.skip_synchronize():
        optimizer.step()
    optimizer.zero_grad()
    (p + q).sum().backward()
    optimizer.step()

    def make(**options: Any) -> Any:
        return hvd.DistributedOptimizer(torch.optim.SGD([p, q], lr=1.0), **options)

    for options, words in (
        ({"backward_passes_per_step": 0}, "1 or more"),
        ({"groups": 0}, "from 1 on"),
        ({"groups": "all"}, "from 1 on"),
        ({"groups": [["p"]]}, "not a tensor"),
        ({"groups": [[p], [p]]}, "more than once"),
        ({"named_parameters": [("p", p)]}, "lacks 1"),
        ({"named_parameters": [("p", p), ("p", q)]}, "more than once"),
        ({"named_parameters": [p, q]}, "pairs"),
        ({"op": hvd.Sum, "gradient_predivide_factor": 2.0}, "op=Average"),
        ({"op": hvd.Max}, "Average, Sum or Adasum"),
    ):
        with pytest.raises(ValueError, match=words):
            make(**options)


def test_errors_and_warnings_are_horovods(crew: Crew) -> None:
    crew.run(_misuse)


def _state() -> None:
    """Gradients of zeros where there was no state: scripts read `.grad` afterwards."""
    hvd.init()
    rank = hvd.rank()
    for is_distributed in (False, True):
        p, frozen = nn.Parameter(torch.zeros(3)), nn.Parameter(torch.zeros(3), requires_grad=False)
        optimizer: torch.optim.Optimizer = torch.optim.Adam([p, frozen], lr=1.0 + rank)
        if is_distributed:
            optimizer = hvd.DistributedOptimizer(optimizer)
        hvd.broadcast_optimizer_state(optimizer, root_rank=1)
        assert p.grad is not None
        assert not p.grad.any()
        assert frozen.grad is None
        assert optimizer.param_groups[0]["lr"] == 2
        p.sum().backward()
        optimizer.step()
        assert p.tolist() == pytest.approx([-2.0] * 3)
        p.grad.fill_(7)
        hvd.broadcast_optimizer_state(optimizer, root_rank=1)
        assert p.grad.tolist() == [7] * 3, "with a state, nothing is left to be made"
    table = nn.Embedding(3, 2, sparse=True)
    sparse = torch.optim.SparseAdam(table.parameters())
    hvd.broadcast_optimizer_state(sparse, root_rank=0)
    assert table.weight.grad is not None
    assert table.weight.grad.is_sparse
    hvd.broadcast_parameters(list(table.parameters()), root_rank=0)


def test_gradients_after_the_state_has_been_broadcast(crew: Crew) -> None:
    crew.run(_state)
