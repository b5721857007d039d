"""Lightning's trainer over legato: `Trainer(strategy=LegatoStrategy())`, or by its name, `Trainer(strategy="legato")`.

Lightning asks its strategy for ranks and sizes, for a sampler, for what is averaged beside gradients, and for what to
do around training. Gradients are `legato.torch.schedule`'s, so updates overlap with the next `training_step`.
"""

from collections.abc import Generator
from contextlib import contextmanager
from typing import Any, TypeVar

import torch
from lightning.pytorch import Trainer
from lightning.pytorch.strategies import ParallelStrategy, StrategyRegistry
from lightning.pytorch.utilities import rank_zero_only

import legato.torch as lg
from legato.errors import InputError

T = TypeVar("T")

_OPERATIONS = {"mean": lg.Average, "avg": lg.Average, "sum": lg.Sum, "min": lg.Min, "max": lg.Max}


class LegatoStrategy(ParallelStrategy):
    """One process, one device, one rank of the job; every optimizer of the module is scheduled."""

    def __init__(self, **options: Any) -> None:
        """`options` are those of `legato.torch.schedule`."""
        super().__init__()
        self._job = lg.init()
        self._options = options
        self._failed = False

    # ---- where this process is ----

    def set_world_ranks(self) -> None:
        """Lightning calls this before anything else."""
        rank_zero_only.rank = self.global_rank  # type: ignore[attr-defined]  # it is a function

    @property
    def global_rank(self) -> int:
        return self._job.rank

    @property
    def local_rank(self) -> int:
        return self._job.settings.local_rank

    @property
    def node_rank(self) -> int:
        return self._job.rank // self._job.settings.local_size

    @property
    def world_size(self) -> int:
        return self._job.size

    @property
    def is_distributed(self) -> bool:
        """So that Lightning gives every rank its own share of the data."""
        return self._job.size > 1

    @property
    def distributed_sampler_kwargs(self) -> dict[str, Any]:
        return {"num_replicas": self.world_size, "rank": self.global_rank}

    @property
    def root_device(self) -> torch.device:
        """With `devices=1` the only one; where the trainer has all of this host, the one of this rank."""
        devices = self.parallel_devices or [torch.device("cpu")]
        return devices[self.local_rank % len(devices)]

    def model_to_device(self) -> None:
        assert self.model is not None
        self.model.to(self.root_device)

    # ---- training ----

    def setup_optimizers(self, trainer: Trainer) -> None:
        super().setup_optimizers(trainer)
        assert self.lightning_module is not None
        for optimizer in self.optimizers:
            lg.schedule(self.lightning_module, optimizer, job=self._job, **self._options)

    @contextmanager
    def block_backward_sync(self) -> Generator[None]:
        """Gradients that are only accumulated do not travel."""
        assert self.lightning_module is not None
        if self._job.size == 1:
            yield
            return
        with lg.no_sync(self.lightning_module):
            yield

    def on_exception(self, exception: BaseException) -> None:
        self._failed = True
        super().on_exception(exception)

    def teardown(self) -> None:
        """Lightning moves the module to the host now: it must not owe an update any more, unless there are none."""
        if self._job.size > 1 and self.optimizers and not self._failed:
            assert self.lightning_module is not None
            lg.unschedule(self.lightning_module, job=self._job)
        super(ParallelStrategy, self).teardown()  # the process group that its own would end is not here

    # ---- what else ranks share ----

    def reduce(self, tensor: Any, group: Any = None, reduce_op: Any = "mean") -> Any:
        """Lightning's metrics: `self.log(..., sync_dist=True)`."""
        _refuse_groups(group)
        name = str(reduce_op).rpartition(".")[2].lower()
        if name not in _OPERATIONS:
            raise InputError(f"reduce_op is {reduce_op!r}; accepted are {', '.join(_OPERATIONS)}")
        return lg.allreduce(tensor, op=_OPERATIONS[name]) if isinstance(tensor, torch.Tensor) else tensor

    def all_gather(self, tensor: torch.Tensor, group: Any = None, sync_grads: bool = False) -> torch.Tensor:
        _refuse_groups(group)
        return lg.allgather((tensor if sync_grads else tensor.detach()).unsqueeze(0))

    def barrier(self, name: str | None = None) -> None:
        del name
        lg.barrier()

    def broadcast(self, obj: T, src: int = 0) -> T:
        value: T = lg.broadcast_object(obj, src)
        return value


# Lightning knows no entry points for strategies: it finds the name when this module has been imported.
StrategyRegistry.register(
    "legato", LegatoStrategy, description="legato.torch.schedule in place of DistributedDataParallel", override=True
)


def _refuse_groups(group: Any) -> None:
    if group is not None and not str(group).endswith("WORLD"):
        raise InputError(f"group is {group!r}; legato's ranks are those of the job, and there are no others")
