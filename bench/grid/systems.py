"""The systems that can be measured side by side: each trains the same model over the same links in its own way.

Their names are in lineup.py, what is measured of each in turns.py, how the simulator stands for them in prediction.py.
"""

import math
import statistics
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import bf16_compress_hook
from torch.nn.parallel import DistributedDataParallel

import legato.torch as lg
from bench.grid.calls import Call
from bench.grid.lineup import System
from bench.sleeper import Clip, sleeping_model, step_times_s
from bench.testbed.launch import Launch
from legato.core import Workload
from legato.torch.sync.c10d import REGULAR_ROUND
from legato.tuning.candidate import C10D

TIMEOUT_S = 60.0
MIB = 1 << 20
_TUNING_STEPS = 2


@dataclass(frozen=True, kw_only=True)
class Place:
    """Where one rank of one system stands; torch's process group of all ranks is open there."""

    rank: int
    launch: Launch
    """The job of this system alone, for legato's ranks."""


class Trainer:
    """One rank of a system at work; this one trains alone, and the others are made of it."""

    warm_up_steps = 2
    """Before anything is measured, and one more: DDP lays its buckets out after the first, and before the third legato
    compares the ranks' weights for the last time."""

    def __init__(self, place: Place, workload: Workload) -> None:
        self.place = place
        self.workload = workload
        self.chosen = ""
        """What the system decided by itself, or the sizes it was asked for."""
        self._tolerance = 1e-5
        self._clip: Clip | None = None
        self._coefficient = 1.0
        self._rebuild()

    def clip(self, clip: Callable[..., torch.Tensor]) -> None:
        """From now on by this function, to half of the norm that averages have."""
        self._coefficient = 0.5
        self._tolerance = 0.05  # torch adds up squares in float32: with 15 million equal numbers it is 1.7 % off
        num_items = sum(parameter.numel() for parameter in self.model.parameters())
        self._clip = partial(clip, max_norm=self._coefficient * self._average * math.sqrt(num_items))

    @property
    def _average(self) -> float:
        """Of the ranks' gradients, everywhere."""
        return (self.place.launch.num_workers + 1) / 2

    def _rebuild(self) -> None:
        """A model that nothing has been attached to, all weights 0."""
        self.model: nn.Module = sleeping_model(self.workload, self.place.rank + 1.0)
        self._optimizer = torch.optim.SGD(self.model.parameters(), lr=1.0)
        self._num_steps = 0

    def turn(self, num_steps: int) -> list[float]:
        """Seconds of each step; nothing is under way when it returns."""
        steps_s = step_times_s(self.model, self._optimizer, num_steps, self._clip)
        self._num_steps += num_steps + 1
        self.flush()
        return steps_s

    def flush(self) -> None:
        """Leave nothing under way: the next turn has the links for itself."""

    def close(self) -> None:
        """Leave what this rank has joined."""

    def check(self) -> None:
        """Every step went down by the average of the ranks' gradients, clipped or not, everywhere."""
        expected = torch.tensor(-self._average * self._coefficient * self._num_steps)
        for name, weight in self.model.named_parameters():
            if not torch.allclose(weight, expected, rtol=self._tolerance):
                raise AssertionError(f"the weights {name} of rank {self.place.rank} are wrong after training")


class Alone(Trainer):
    """Without communication: how long the computation of a step takes."""

    def check(self) -> None:
        """Its weights follow its own gradients."""


class NoOverlap(Trainer):
    """Backward, then one all-reduce of everything, then the update."""

    def __init__(self, place: Place, workload: Workload) -> None:
        super().__init__(place, workload)
        self._optimizer.register_step_pre_hook(self._average_all)

    def _average_all(self, *_: Any) -> None:
        gradients = [each.grad for each in self.model.parameters() if each.grad is not None]
        flat = torch.cat(gradients)
        dist.all_reduce(flat)
        flat /= self.place.launch.num_workers
        for gradient, average in zip(gradients, flat.split([each.numel() for each in gradients]), strict=True):
            gradient.copy_(average)


class Ddp(Trainer):
    """torch's DistributedDataParallel over Gloo: as it comes, or with another bucket size, or with a bf16 hook."""

    def __init__(
        self, place: Place, workload: Workload, bucket_bytes: int | None = None, *, bf16: bool = False
    ) -> None:
        super().__init__(place, workload)
        self._wrap(bucket_bytes)
        if bf16:
            assert isinstance(self.model, DistributedDataParallel)
            # Not the hook itself: DDP refuses it by its name where there is no NCCL.
            hook = lambda state, bucket: bf16_compress_hook(state, bucket)  # noqa: E731, PLW0108
            self.model.register_comm_hook(None, hook)
            self._tolerance = 1e-2

    def _wrap(self, bucket_bytes: int | None) -> None:
        # Only None is DDP's default: a size, even the same one, switches its small first bucket off.
        bucket_cap_mb = None if bucket_bytes is None else bucket_bytes / MIB
        self.model = DistributedDataParallel(self.model, bucket_cap_mb=bucket_cap_mb)


class TunedDdp(Ddp):
    """DDP with the bucket size that was fastest when it was tried, on these links and this model."""

    FRACTIONS = (6, 12, 25, 50)
    """Of all bytes, for a bucket. DDP's default is a fifth to a fiftieth of the models it was chosen for."""

    def __init__(self, place: Place, workload: Workload) -> None:
        sizes = [max(workload.num_bytes // fraction, 1) for fraction in self.FRACTIONS]
        super().__init__(place, workload, sizes[0])
        seconds = torch.tensor([self._try(size) for size in sizes])
        dist.all_reduce(seconds)  # all ranks must choose the same
        best = sizes[int(seconds.argmin())]
        self._rebuild()
        self._wrap(best)
        self.chosen = f"{best / 1e6:.2g} MB"

    def _try(self, bucket_bytes: int) -> float:
        self._rebuild()
        self._wrap(bucket_bytes)
        step_times_s(self.model, self._optimizer, 1)  # DDP lays its buckets out anew after a step
        return statistics.median(step_times_s(self.model, self._optimizer, _TUNING_STEPS))


class Legato(Trainer):
    """A model that `legato.torch.schedule` has taken, in a job of its own: only a job's first schedule has sizes."""

    def __init__(self, place: Place, workload: Workload, call: Call) -> None:
        super().__init__(place, workload)
        if call.transport == C10D:
            self.warm_up_steps = REGULAR_ROUND + 1  # by then its plans are what they will be
        self.job = place.launch.job(place.rank)
        lg.schedule(self.model, self._optimizer, **asdict(call), job=self.job)
        self.chosen = call.words()

    def flush(self) -> None:
        lg.flush(self.model)

    def close(self) -> None:
        self.job.close()


def make(system: System, call: Call | None, place: Place, workload: Workload) -> Trainer:
    """One rank of a system, ready to train; legato's by its call."""
    trainer = _make(system, call, place, workload)
    if system.clip:
        own = call is not None and system.clip == "clip"
        trainer.clip(lg.clip_grad_norm_ if own else nn.utils.clip_grad_norm_)
    return trainer


def _make(system: System, call: Call | None, place: Place, workload: Workload) -> Trainer:
    if call is not None:
        return Legato(place, workload, call)
    match system.family:
        case "no-overlap":
            return NoOverlap(place, workload)
        case "ddp" if system.variation == "tuned":
            return TunedDdp(place, workload)
        case "ddp":
            return Ddp(place, workload, system.bucket_bytes, bf16=system.variation == "bf16")
        case _:
            return Alone(place, workload)
