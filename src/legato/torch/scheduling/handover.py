"""The handover: what those who train have, for ranks of an elastic job that lack it.

At once, while everybody waits: when a job begins, and where a script does what a learner cannot repeat. Otherwise the
newcomer is a learner, and gets it batch by batch while the others train (`Lesson`).

Note: state of several steps. An optimizer that steps every parameter by itself makes the next state of a parameter from
its last one, the average of its gradient and the hyper-parameters, whatever the other parameters are. A learner gets
the averages as everybody does. So each batch may be of another step: the learner updates what it has.

    step           s                 s + 1             s + 2
    rank 0 sends   batch 0, rates    batch 1, rates    batch 2, rates      as they are before the step's update
    learner        updates 0         updates 0, 1      updates 0, 1, 2     with the step's averages and rates

After the last step it has everything; what is left (buffers, rates, what else a script gives) is small, and is given at
once at the boundary where it becomes a worker.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from enum import IntEnum
from typing import Any

import numpy as np
import torch
from torch import nn

from legato.errors import InputError
from legato.torch.scheduling.update import Hyperparameters, step_narrowed
from legato.torch.sync import tree
from legato.torch.sync.broadcast import (
    Stateful,
    broadcast_bytes,
    broadcast_module,
    broadcast_optimizer,
    broadcast_states,
    broadcast_value,
)
from legato.torch.sync.state_stream import StateStream
from legato.transports.buffer import Array
from legato.transports.native.group import NativeGroup
from legato.transports.native.handle import TaskHandle

SHARE = 0.08
"""What a step carries of state, by what its gradients put on rank 0's link: where the link is the limit, steps take so
much longer."""
LEAST_BYTES = 256 << 10
"""Of a batch: smaller ones would only be more of them."""
_SLACK_BYTES = 4096
"""What a message may need beyond what it would be now: numbers that grow, as an optimizer's steps."""


class Lack(IntEnum):
    """What a rank does not have."""

    NOTHING = 0
    ALL = 1
    REST = 2
    """Of what does not come in lessons."""


class Handover:
    """One rank's side. `agree` is what ranks compare before anything travels."""

    def __init__(
        self,
        name: str,
        module: nn.Module,
        optimizer: torch.optim.Optimizer,
        state: Sequence[Stateful] = (),
        agree: Callable[[NativeGroup], None] = lambda _: None,
    ) -> None:
        self._name = name
        self._module = module
        self._optimizer = optimizer
        self._state = state
        self._agree = agree
        self._lack = Lack.ALL
        """Until it was there once: those who have trained together have the same."""

    def meet(self, group: NativeGroup, *, teaches: bool) -> "Lesson | None":
        """Give what is lacking, or begin to, where the last rank is a learner. Every rank calls it, and waits for the
        slowest."""
        self._agree(group)
        if teaches:
            return self._begin_lesson(group)
        lacks = group.allgather(f"{self._name}/lacking", np.array([self._lack], np.uint8))
        if lacks[0]:  # the job begins
            broadcast_module(group, self._name, self._module)
            broadcast_optimizer(group, self._name, self._optimizer)
        elif lacks.any():
            self._give(group, np.flatnonzero(lacks).tolist(), Lack.ALL if Lack.ALL in lacks else Lack.REST)
        if lacks.any():
            broadcast_states(group, f"{self._name}/states", self._state)
        self._lack = Lack.NOTHING
        return None

    def can_teach(self) -> bool:
        """Whether all of it can travel in lessons."""
        try:
            tree.num_bytes((Hyperparameters(self._optimizer).groups, list(self._pieces())))
        except InputError:
            return False
        return True

    def forget(self) -> None:
        """As a learner whose lesson has ended early: what it has is of a step that the others have left."""
        self._lack = Lack.ALL

    def has_learnt(self) -> None:
        """A lesson is over."""
        self._lack = Lack.REST

    @torch.no_grad()
    def _give(self, group: NativeGroup, lacking: Sequence[int], lack: Lack) -> None:
        data = tree.dump(self._get(lack)) if group.rank == 0 else b""
        if len(lacking) == 1:
            received = _send_to_one(group, self._name, data, lacking[0])
        else:
            received = memoryview(broadcast_bytes(group, self._name, data or None))
        if group.rank in lacking:
            self._set(lack, tree.load(received))

    def _get(self, lack: Lack) -> Any:
        buffers = list(self._module.buffers())
        if lack is Lack.REST:
            return buffers, Hyperparameters(self._optimizer).groups
        return [*self._module.parameters(), *buffers], self._optimizer.state_dict()

    def _set(self, lack: Lack, given: Any) -> None:
        tensors = list(self._module.buffers())
        if lack is Lack.REST:
            for group, values in zip(self._optimizer.param_groups, given[1], strict=True):
                group.update(values)
        else:
            tensors = [*self._module.parameters(), *tensors]
            self._optimizer.load_state_dict(given[1])
        for tensor, value in zip(tensors, given[0], strict=True):
            tensor.copy_(value)

    def _begin_lesson(self, group: NativeGroup) -> "Lesson":
        pieces = list(self._pieces())
        batches: list[list[int]] | None = None
        sizes: list[int] | None = None
        if group.rank == 0:
            trained = (each for entry in self._optimizer.param_groups for each in entry["params"])
            step_bytes = 2 * (group.size - 1) / group.size * sum(each.nbytes for each in trained)
            batches = cut([tree.num_bytes(piece) for piece in pieces], max(LEAST_BYTES, SHARE * step_bytes))
            rates = Hyperparameters(self._optimizer).groups
            sizes = [tree.num_bytes((rates, [pieces[place] for place in batch])) + _SLACK_BYTES for batch in batches]
        batches, sizes = broadcast_value(group, f"{self._name}/batches", (batches, sizes))
        stream = StateStream(group, f"{self._name}/lesson", sizes)
        return Lesson(self._module, self._optimizer, stream, batches, self.has_learnt)

    def _pieces(self) -> Iterator[Any]:
        return (_piece(self._optimizer, parameter) for parameter in self._module.parameters())


class Lesson:
    """Of so many steps: rank 0 gives a batch in each of them, and the learner takes it."""

    def __init__(
        self,
        module: nn.Module,
        optimizer: torch.optim.Optimizer,
        stream: StateStream,
        batches: Sequence[Sequence[int]],
        done: Callable[[], None],
    ) -> None:
        self._optimizer = optimizer
        self._parameters = list(module.parameters())
        self._stream = stream
        self._batches = batches
        self._done = done
        self._coming: dict[int, TaskHandle[Array]] = {}
        self._next = 0
        """Message, on the learner."""
        self._known: set[torch.Tensor] = set()
        """What the learner will have after the step that it expects."""

    @property
    def num_steps(self) -> int:
        return len(self._batches)

    @torch.no_grad()
    def give(self, number: int, rates: Hyperparameters) -> bool:
        """On rank 0, between a step's begin and its update; False where it has become more than was foreseen."""
        batch = [_piece(self._optimizer, self._parameters[place]) for place in self._batches[number]]
        data = tree.dump((rates.groups, batch))
        if len(data) > self._stream.sizes[number]:
            return False
        self._stream.send(number, data)
        return True

    def expect(self, number: int) -> Set[torch.Tensor]:
        """On the learner, before anything of the step arrives: the parameters that `take` will update in it."""
        self._coming[number] = self._stream.receive(number)
        self._known.update(self._parameters[place] for place in self._batches[number])
        return self._known

    def has_come(self) -> bool:
        """Whether `take` would not wait."""
        return self._coming[self._next].poll()

    @torch.no_grad()
    def take(self, averages: Mapping[torch.Tensor, torch.Tensor | None]) -> None:
        """On the learner, step after step: a step's batch, and its update of all that was known in it."""
        rates, batch = tree.load(self._coming.pop(self._next).wait().data)
        for place, (weight, state) in zip(self._batches[self._next], batch, strict=True):
            parameter = self._parameters[place]
            parameter.copy_(weight)
            if state is not None:
                self._optimizer.state[parameter] = state
        groups = []
        for group, values in zip(self._optimizer.param_groups, rates, strict=True):
            members = [each for each in group["params"] if averages.get(each) is not None]
            for each in members:
                each.grad = averages[each]
            if members:
                groups.append({**values, "params": members})
        if groups:
            step_narrowed(self._optimizer, groups)
        for group in groups:
            for each in group["params"]:
                each.grad = None
        self._next += 1
        if self._next == self.num_steps:
            self._done()


def cut(sizes: Sequence[int], most_bytes: float) -> list[list[int]]:
    """Batches for one step after the other, in order. What is larger alone has as many steps to itself as it has
    shares: nothing is sent in those that follow. They are two at least (`legato.torch.sync.elastic.Lesson`)."""
    together: list[list[int]] = []
    filled = math.inf
    for place, size in enumerate(sizes):
        if filled + size > most_bytes:
            together.append([])
            filled = 0
        together[-1].append(place)
        filled += size
    batches: list[list[int]] = []
    for batch in together:
        num_steps = math.ceil(sum(sizes[place] for place in batch) / most_bytes)
        batches += [batch, *([] for _ in range(num_steps - 1))]
    return batches if len(batches) > 1 else [*batches, []]


def _piece(optimizer: torch.optim.Optimizer, parameter: torch.Tensor) -> Any:
    """A parameter, and what its optimizer keeps of it."""
    return parameter, optimizer.state.get(parameter)


def _send_to_one(group: NativeGroup, name: str, data: bytes, reader: int) -> memoryview:
    """Rank 0's bytes at one rank, and nothing at the others, whose links are not for it."""
    splits = [len(data) * (rank == reader) for rank in range(group.size)]
    received, _ = group.alltoall(name, np.frombuffer(data, np.uint8), splits)
    return received.data
