"""A recording of DDP's steps: the same notes of its layers and buckets as legato takes of its own, in the same file.

forward, layer by layer ── backward, layer by layer ── wait for the last bucket ── update
                                │ bucket full ────────────────── all-reduced
"""

import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from legato.observe import Timeline, TimelineConfig
from legato.observe.notes import Moment, What
from legato.torch.scheduling.layers import LayerNotes
from legato.torch.scheduling.modules import Owners

_PREFIX = "ddp"


class DdpRecording:
    """Watches one model's training; each rank writes a file of its own, and all of them share a clock."""

    def __init__(self, model: DistributedDataParallel, path: Path) -> None:
        """Before the model's first step: DDP takes a hook only then."""
        self._timeline = Timeline(dist.get_rank(), dist.get_world_size())
        self._timeline.start(TimelineConfig(path=path))
        self._step = 0
        self._names = {parameter: name for name, parameter in model.module.named_parameters()}
        self._came: list[tuple[int, int]] = []
        """Index and time of each gradient of this step."""
        parameters = list(model.module.parameters())
        layers = Owners(model.module, parameters).layers()
        self._layers = LayerNotes(self._timeline, _PREFIX, layers, parameters, step=0)
        for index, parameter in enumerate(parameters):
            parameter.register_post_accumulate_grad_hook(partial(self._gradient, index))
        # DDP wants its own annotation there, or none.
        model.register_comm_hook(None, lambda _, bucket: self._reduce(bucket))

    def step(self, forward: Callable[[], torch.Tensor], optimizer: torch.optim.Optimizer) -> None:
        """One step of training."""
        self._layers.begin_step(self._step)
        loss = forward()
        loss.backward()
        self._layers.end_backward(self._came)
        self._timeline.stretch("wait", "all gradients", self._came[-1][1], self._step)
        self._came.clear()
        begin_ns = time.monotonic_ns()
        optimizer.step()
        self._step += 1
        # The update belongs to the step that it makes possible, as in legato's timelines.
        self._timeline.stretch("update", "everything", begin_ns, self._step)

    def stop(self) -> None:
        """Write what was seen."""
        self._layers.detach()
        self._timeline.stop(together=False)

    def _gradient(self, index: int, parameter: torch.Tensor) -> None:
        assert isinstance(parameter, nn.Parameter)
        self._came.append((index, time.monotonic_ns()))
        self._note(What.READY, f"{_PREFIX}/{self._names[parameter]}", num_bytes=parameter.nbytes)

    def _note(self, what: What, *tensors: str, num_bytes: int) -> None:
        """Backward ends with the last bucket, so all of them are of its step."""
        self._timeline.moment(Moment(time.monotonic_ns(), what, tensors, self._step, 0, num_bytes))

    def _reduce(self, bucket: Any) -> torch.futures.Future[torch.Tensor]:
        """What DDP does by itself, with notes."""
        buffer = bucket.buffer()
        tensors = [(f"{_PREFIX}/{self._names[each]}", each.nbytes) for each in bucket.parameters()]
        names = tuple(name for name, _ in tensors)

        self._note(What.START, *names, num_bytes=buffer.nbytes)

        def finished(future: torch.futures.Future[list[torch.Tensor]]) -> torch.Tensor:
            self._note(What.FINISH, *names, num_bytes=buffer.nbytes)
            for name, num_bytes in tensors:
                self._note(What.DONE, name, num_bytes=num_bytes)
            return future.value()[0]

        work = dist.all_reduce(buffer.div_(dist.get_world_size()), async_op=True)
        assert work is not None
        summed: torch.futures.Future[torch.Tensor] = work.get_future().then(finished)
        return summed
