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
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path

import torch
from torch import nn

import legato.torch as lg
from legato.errors import JobError

NUM_LAYERS = 6
SIDE = 192
TOLD_STEPS = 3


class Constant(nn.Module):
    """Its gradient is the same number everywhere."""

    def __init__(self, value: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(SIDE, SIDE))
        self._value = value

    def forward(self, total: torch.Tensor) -> torch.Tensor:
        return total + (self.weight * self._value).sum()


def break_link(*_: object) -> None:
    """End one of this process's connections, as a network that drops it would."""
    for entry in Path("/proc/self/fd").iterdir():
        with suppress(OSError):
            connection = socket.socket(fileno=os.dup(int(entry.name)))
            with connection:
                if connection.family == socket.AF_INET and connection.getpeername():
                    connection.shutdown(socket.SHUT_RDWR)
                    return


def run(identity: int, num_steps: int, environ: dict[str, str], link: Connection, log: str) -> None:
    """In a process of its own; `link` leads to the test, and `log` is the file for what it would show."""
    with Path(log).open("ab") as file:
        os.dup2(file.fileno(), sys.stderr.fileno())
    os.environ.update(environ)
    signal.signal(signal.SIGUSR1, break_link)
    last_step = [num_steps]
    threading.Thread(target=_listen, args=(link, last_step), daemon=True).start()
    try:
        _train(identity, last_step, lambda **words: link.send_bytes(json.dumps(words).encode()))
    except JobError as error:
        link.send_bytes(json.dumps({"error": type(error).__name__, "words": str(error)}).encode())
        lg.shutdown(now=True)
        sys.exit(3)


def _listen(link: Connection, last_step: list[int]) -> None:
    with suppress(EOFError, OSError):
        while True:
            last_step.append(int(link.recv_bytes()))


def _train(identity: int, last_step: list[int], say: Callable[..., None]) -> None:
    torch.set_num_threads(1)
    lg.init()
    changes: list[tuple[int, int, int, tuple[int, ...]]] = []
    lg.on_membership(lambda *change: changes.append(change))
    layers = [Constant(2.0**identity) for _ in range(NUM_LAYERS)]
    model = nn.Sequential(*layers)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    lg.schedule(model, optimizer)

    def tell() -> None:
        lg.flush(model)
        values = [[layer.weight.min().item(), layer.weight.max().item()] for layer in layers]
        say(step=lg.num_steps(model), size=lg.size(), values=values, changes=changes)
        changes.clear()

    tell()
    while lg.num_steps(model) < last_step[-1]:
        optimizer.zero_grad()
        model(torch.zeros(())).backward()
        optimizer.step()
        if lg.num_steps(model) % TOLD_STEPS == 0:
            tell()
    lg.shutdown()
