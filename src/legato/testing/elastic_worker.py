"""A worker of an elastic job whose every average can be checked.

Each worker's gradients are its own power of two, in every element of every layer. So the change of a weight in one step
says whose gradients are in it; that all elements of a layer change alike says that no step was averaged in two ways.
It says where it is after every third step, as JSON, and ends after as many steps as it is told.
"""

import json
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
from torch import nn

import legato.torch as lg
from legato.errors import LegatoError
from legato.torch.api import current
from legato.torch.scheduling.handover import Lesson

NUM_LAYERS = 6
SIDE = 192
TOLD_STEPS = 3
NUM_ITEMS = NUM_LAYERS * SIDE * SIDE
MAX_NORM = NUM_ITEMS**0.5
"""Gradients that are clipped to it are 1 everywhere: no average is smaller."""
RATES = tuple(1 - number / 64 for number in range(32))
"""Learning rates, in turns: only by chance has a worker the right one that does not know the step."""
_ESTABLISHED = 1
"""Of a connection, in the kernel's words: the other end has not closed it."""
LARGEST_SCALE = 2.0**126
"""In float32 the sum of two gradients of this size is not finite."""


@dataclass(frozen=True, slots=True)
class Death:
    """Where a worker ends itself, as kill -9 would."""

    identity: int
    step: int
    point: str


class Constant(nn.Module):
    """Its gradient is the same number everywhere."""

    def __init__(self, value: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(SIDE, SIDE))
        self.value = value

    def forward(self, total: torch.Tensor) -> torch.Tensor:
        return total + (self.weight * self.value).sum()


class Loop:
    """One step of a script after the other, and what it says of each besides the weights."""

    state: Sequence[Any] = ()
    """What newcomers take over besides the model and its optimizer."""

    def __init__(self, model: nn.Sequential, optimizer: torch.optim.Optimizer, reach: Callable[[str], None]) -> None:
        """`reach` is told of the points of a step at which a worker may end."""
        self.model = model
        self.optimizer = optimizer
        self.reach = reach

    def step(self) -> dict[str, float]:
        self.optimizer.zero_grad()
        self.loss().backward()
        self.reach("backward")
        self.optimizer.step()
        return {}

    def loss(self) -> torch.Tensor:
        loss: torch.Tensor = self.model(torch.zeros(()))
        return loss


class Clipped(Loop):
    """By torch, after a look at half of the gradients."""

    clip: Callable[..., torch.Tensor] = staticmethod(nn.utils.clip_grad_norm_)

    def step(self) -> dict[str, float]:
        self.optimizer.zero_grad()
        self.loss().backward()
        self.reach("backward")
        parameters = list(self.model.parameters())
        for parameter in parameters[: NUM_LAYERS // 2]:
            assert parameter.grad is not None
            assert parameter.grad.isfinite().all()
        self.reach("look")
        norm = self.clip(parameters, MAX_NORM)
        self.reach("clip")
        self.optimizer.step()
        return {"norm": norm.item()}


class ClippedByLegato(Clipped):
    clip = staticmethod(lg.clip_grad_norm_)


class Scaled(Loop):
    """With a scale that grows beyond what float32 holds: steps are skipped again and again."""

    make: Callable[..., torch.amp.GradScaler] = lg.GradScaler

    def __init__(self, model: nn.Sequential, optimizer: torch.optim.Optimizer, reach: Callable[[str], None]) -> None:
        super().__init__(model, optimizer, reach)
        self.scaler = self.make("cpu", init_scale=LARGEST_SCALE / 4, growth_interval=2)
        self.state = [self.scaler]

    def step(self) -> dict[str, float]:
        self.optimizer.zero_grad()
        self.scaler.scale(self.loss()).backward()
        self.reach("backward")
        self.scaler.unscale_(self.optimizer)
        self.reach("unscale")
        self.scaler.step(self.optimizer)
        self.reach("step")
        self.scaler.update()
        return {"scale": self.scaler.get_scale()}


class ScaledByTorch(Scaled):
    make = torch.amp.GradScaler


class ScaledAlone(Scaled):
    """Newcomers would begin with a scale of their own."""

    def __init__(self, model: nn.Sequential, optimizer: torch.optim.Optimizer, reach: Callable[[str], None]) -> None:
        super().__init__(model, optimizer, reach)
        self.state = ()


class Accumulated(Loop):
    """Three backward passes in a step, two of them under no_sync."""

    def step(self) -> dict[str, float]:
        self.optimizer.zero_grad()
        for number, share in enumerate((0.5, 0.25, 0.25)):
            with lg.no_sync(self.model) if number < 2 else nullcontext():
                (self.loss() * share).backward()
            self.reach(f"pass {number}")
        self.optimizer.step()
        return {}


class SentTwice(Loop):
    """Two backward passes in a step, both of which send."""

    def step(self) -> dict[str, float]:
        self.optimizer.zero_grad()
        for number in range(2):
            (self.loss() * 0.5).backward()
            self.reach(f"pass {number}")
        self.optimizer.step()
        return {}


class InTurns(Loop):
    """With a learning rate that is another one in every step."""

    def __init__(self, model: nn.Sequential, optimizer: torch.optim.Optimizer, reach: Callable[[str], None]) -> None:
        super().__init__(model, optimizer, reach)
        self.scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: RATES[step % len(RATES)])
        self.state = [self.scheduler]

    def step(self) -> dict[str, float]:
        super().step()
        self.scheduler.step()
        return {"rate": self.optimizer.param_groups[0]["lr"]}


class BySize(Loop):
    """With a learning rate that follows the number of workers."""

    def __init__(self, model: nn.Sequential, optimizer: torch.optim.Optimizer, reach: Callable[[str], None]) -> None:
        super().__init__(model, optimizer, reach)
        self.follow(lg.size())
        lg.on_membership(lambda size, *_: self.follow(size))

    def follow(self, size: int) -> None:
        self.optimizer.param_groups[0]["lr"] = float(size)

    def step(self) -> dict[str, float]:
        super().step()
        return {"rate": self.optimizer.param_groups[0]["lr"]}


class MortalLearner(Loop):
    """Ends itself in the middle of its lesson, the first time that somebody learns on this host."""

    def __init__(self, model: nn.Sequential, optimizer: torch.optim.Optimizer, reach: Callable[[str], None]) -> None:
        super().__init__(model, optimizer, reach)
        members_file = current().settings.members_file
        assert members_file is not None
        take, marker = Lesson.take, Path(members_file).with_name("has-died")

        def take_or_die(lesson: Lesson, averages: Mapping[torch.Tensor, torch.Tensor | None]) -> None:
            take(lesson, averages)
            if not marker.exists():
                marker.touch()
                os.kill(os.getpid(), signal.SIGKILL)

        Lesson.take = take_or_die  # type: ignore[method-assign, assignment]


class MortalTeacher(Loop):
    """Worker 0 ends itself when it has taught for a step."""

    def step(self) -> dict[str, float]:
        had_learners = current().membership.has_learners
        super().step()
        if had_learners and self.model[0].value == 1.0:
            os.kill(os.getpid(), signal.SIGKILL)
        return {}


class ClippedForLearners(Loop):
    """Does what a learner cannot follow, but only once there is one."""

    def step(self) -> dict[str, float]:
        self.optimizer.zero_grad()
        self.loss().backward()
        if current().membership.has_learners:
            nn.utils.clip_grad_norm_(list(self.model.parameters()), 1e9)
        self.optimizer.step()
        return {}


class SentTwiceForLearners(Loop):
    """Averages its gradients twice in a step, but only once there is a learner."""

    def step(self) -> dict[str, float]:
        self.optimizer.zero_grad()
        share = 0.5 if current().membership.has_learners else 1.0
        for _ in range(int(1 / share)):
            (self.loss() * share).backward()
        self.optimizer.step()
        return {}


class EndingForLearners(Loop):
    """Everybody who trains ends in the first step that has a learner."""

    def step(self) -> dict[str, float]:
        has_learners = current().membership.has_learners
        super().step()
        if has_learners:
            lg.shutdown()
            sys.exit(0)
        return {}


class Straggling(Loop):
    """Everybody computes for a while, and worker 2, after some steps, for several times as long."""

    num_taken = 0

    def loss(self) -> torch.Tensor:
        loss = super().loss()
        self.num_taken += 1
        is_slow = self.num_taken > 10 and self.model[0].value == 4.0
        time.sleep(0.1 if is_slow else 0.02)
        return loss


def break_link(*_: object) -> None:
    """End one of this process's connections, as a network that drops it would."""
    for entry in Path("/proc/self/fd").iterdir():
        with suppress(OSError):
            if not entry.is_socket():
                continue
            with socket.socket(fileno=os.dup(int(entry.name))) as connection:
                state = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)[0]
                if connection.family == socket.AF_INET and state == _ESTABLISHED:
                    connection.shutdown(socket.SHUT_RDWR)
                    return


def run(
    identity: int,
    num_steps: int,
    environ: dict[str, str],
    link: Connection,
    log: str,
    loop: type[Loop],
    death: Death | None,
) -> None:
    """In a process of its own; `link` leads to the test, and `log` is the file for what it would show."""
    with Path(log).open("ab") as file:
        os.dup2(file.fileno(), sys.stderr.fileno())
    os.environ.update(environ)
    signal.signal(signal.SIGUSR1, break_link)
    last_step = [num_steps]
    threading.Thread(target=_listen, args=(link, last_step), daemon=True).start()
    try:
        _train(identity, last_step, lambda **words: link.send_bytes(json.dumps(words).encode()), loop, death)
    except LegatoError as error:
        link.send_bytes(json.dumps({"error": type(error).__name__, "words": str(error)}).encode())
        lg.shutdown(now=True)
        sys.exit(3)


def _listen(link: Connection, last_step: list[int]) -> None:
    with suppress(EOFError, OSError):
        while True:
            last_step.append(int(link.recv_bytes()))


def _train(
    identity: int, last_step: list[int], say: Callable[..., None], loop: type[Loop], death: Death | None
) -> None:
    torch.set_num_threads(1)
    lg.init()
    changes: list[tuple[int, int, int, tuple[int, ...]]] = []
    lg.on_membership(lambda *change: changes.append(change))
    layers = [Constant(2.0**identity) for _ in range(NUM_LAYERS)]
    model = nn.Sequential(*layers)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)

    def reach(point: str) -> None:
        if death == Death(identity, lg.num_steps(model), point):
            os.kill(os.getpid(), signal.SIGKILL)

    script = loop(model, optimizer, reach)
    lg.schedule(model, optimizer, state=script.state)

    def tell(**words: float) -> None:
        lg.flush(model)
        values = [[layer.weight.min().item(), layer.weight.max().item()] for layer in layers]
        servers = current().membership.num_servers
        say(step=lg.num_steps(model), size=lg.size(), servers=servers, values=values, changes=changes, **words)
        changes.clear()

    tell()
    while (step := lg.num_steps(model)) < last_step[-1]:
        words = script.step()
        if (taken := lg.num_steps(model)) > step and taken % TOLD_STEPS == 0:
            tell(**words)
    lg.shutdown()
