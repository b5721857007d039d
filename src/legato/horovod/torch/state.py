"""An optimizer's state on all ranks, as Horovod leaves it."""

import torch

from legato.torch.compat import objects
from legato.torch.compat.process_sets import ProcessSet, global_process_set


def broadcast_optimizer_state(
    optimizer: torch.optim.Optimizer,
    root_rank: int,
    model: torch.nn.Module | None = None,
    process_set: ProcessSet = global_process_set,
) -> None:
    """Make the optimizer's state and hyper-parameters those of the root.

    Where it had no state, parameters have gradients of zeros afterwards: Horovod takes a step with them to make one.
    """
    is_new = not optimizer.state_dict()["state"]
    objects.broadcast_optimizer_state(optimizer, root_rank, model, process_set)
    if is_new:
        for parameter in (each for group in optimizer.param_groups for each in group["params"]):
            if parameter.requires_grad:
                zeros = torch.zeros_like(parameter, requires_grad=False)
                parameter.grad = zeros.to_sparse() if isinstance(optimizer, torch.optim.SparseAdam) else zeros
