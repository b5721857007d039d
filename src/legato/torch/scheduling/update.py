"""The update: a user's optimizer, stepped for some parameters at a time.

An optimizer keeps its state by parameter, so stepping it with `param_groups` narrowed to a few parameters does for
them exactly what a whole step does, provided that it treats parameters independently. `is_separable` tries that on
the user's own optimizer instead of believing it.
"""

import copy
import math
from collections.abc import Iterable
from typing import Any, Self

import torch

from legato.torch.sync.synchronizer import is_shard, local_of

Group = dict[str, Any]


class Hyperparameters:
    """The values of every group at the time of the user's `step()`, whatever a scheduler does to them later."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self._groups = [
            {key: _own(value) for key, value in group.items() if key != "params"} for group in optimizer.param_groups
        ]

    @property
    def groups(self) -> list[Group]:
        """By group, without its parameters."""
        return self._groups

    def moving(self) -> Self:
        """Itself, with a learning rate where that is 0, as a warm-up may begin: a step would show nothing."""
        for group in self._groups:
            if "lr" in group and not group["lr"]:
                group["lr"] = group["lr"] + 0.1
        return self

    def narrowed(self, members: Iterable[tuple[int, torch.nn.Parameter]]) -> list[Group]:
        """Groups that hold only these (group index, parameter)s."""
        chosen: dict[int, Group] = {}
        for index, parameter in members:
            group = chosen.setdefault(index, {**self._groups[index], "params": []})
            group["params"].append(parameter)
        return list(chosen.values())


def step_narrowed(optimizer: torch.optim.Optimizer, groups: list[Group]) -> None:
    """Step the optimizer as if it had only these groups."""
    everything = optimizer.param_groups
    optimizer.param_groups = groups
    try:
        type(optimizer).step(optimizer)  # the class's: the instance's is covered
    finally:
        optimizer.param_groups = everything


def is_separable(optimizer: torch.optim.Optimizer) -> bool:
    """Whether stepping one parameter alone gives it what a whole step gives it.

    Tries one parameter that has a gradient, twice, then undoes it, takes the whole step for real and compares. Called
    instead of a whole step. An optimizer that counts its calls, or looks at all gradients together, differs.
    """
    candidates = [
        (index, parameter)
        for index, group in enumerate(optimizer.param_groups)
        for parameter in group["params"]
        if parameter.grad is not None
    ]
    index, parameter = next((each for each in candidates if _is_everywhere(each[1])), candidates[0])
    here, gradient_here = local_of(parameter).detach(), local_of(parameter.grad)
    value, gradient = here.clone(), gradient_here.clone()
    state = copy.deepcopy(optimizer.state[parameter]) if parameter in optimizer.state else None
    attributes = _plain_attributes(optimizer)
    narrowed = Hyperparameters(optimizer).narrowed([(index, parameter)])
    before = [dict(group) for group in narrowed]
    step_narrowed(optimizer, narrowed)
    alone = here.clone()
    after_first = _plain_attributes(optimizer)  # a first step may have something to note for itself
    step_narrowed(optimizer, narrowed)
    kept_to_itself = _same(before, narrowed) and _plain_attributes(optimizer) == after_first
    with torch.no_grad():
        here.copy_(value)
        gradient_here.copy_(gradient)
    for key in _plain_attributes(optimizer).keys() - attributes.keys():
        delattr(optimizer, key)
    vars(optimizer).update(attributes)
    if state is None:
        optimizer.state.pop(parameter, None)
    else:
        optimizer.state[parameter] = state
    type(optimizer).step(optimizer)
    return kept_to_itself and torch.allclose(here, alone, rtol=0, atol=0, equal_nan=True)


def _is_everywhere(parameter: torch.Tensor) -> bool:
    """Whether every rank has some of it; where it is sharded, all of them try the same one, and see something."""
    if not is_shard(parameter):
        return True
    dim, num_ranks = parameter.placements[0].dim, parameter.device_mesh.size()  # type: ignore[attr-defined]
    num_rows = parameter.shape[dim]
    rows_per_rank = math.ceil(num_rows / num_ranks)
    return rows_per_rank * (num_ranks - 1) < num_rows and parameter.numel() > 0


def _plain_attributes(optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    return {key: value for key, value in vars(optimizer).items() if isinstance(value, int | float | str)}


def _own(value: Any) -> Any:
    return value.clone() if isinstance(value, torch.Tensor) else value


def _same(before: list[Group], after: list[Group]) -> bool:
    return all(
        old.keys() == new.keys()
        and all(old[key] is new[key] or bool(torch.all(torch.as_tensor(old[key] == new[key]))) for key in old)
        for old, new in zip(before, after, strict=True)
    )
