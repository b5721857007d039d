"""A worker of an elastic job whose every average can be checked: python -m legato.testing.elastic_worker ID STEPS.

Each worker's gradients are its own power of two, in every element of every layer. So the change of a weight in one step
says whose gradients are in it; that all elements of a layer change alike says that no step was averaged in two ways.
A line of JSON says where it is after every third step. It ends after STEPS, or when it reads a line.
"""

import json
import os
import signal
import socket
import sys
import threading
from contextlib import suppress
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


def main() -> None:
    identity, num_steps = int(sys.argv[1]), int(sys.argv[2])
    signal.signal(signal.SIGUSR1, break_link)
    stopping = threading.Event()
    threading.Thread(target=lambda: (sys.stdin.readline(), stopping.set()), daemon=True).start()
    torch.set_num_threads(1)
    lg.init()
    changes: list[tuple[int, int, int, tuple[int, ...]]] = []
    lg.on_membership(lambda *change: changes.append(change))
    model = nn.Sequential(*(Constant(2.0**identity) for _ in range(NUM_LAYERS)))
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    lg.schedule(model, optimizer)

    def tell(**more: object) -> None:
        lg.flush(model)
        values = [[float(layer.weight.min()), float(layer.weight.max())] for layer in model]
        print(json.dumps({"step": lg.num_steps(model), "size": lg.size(), "values": values, **more}), flush=True)

    tell(joined=True)
    try:
        while lg.num_steps(model) < num_steps and not stopping.is_set():
            optimizer.zero_grad()
            model(torch.zeros(())).backward()
            optimizer.step()
            if lg.num_steps(model) % TOLD_STEPS == 0:
                tell(changes=changes)
                changes.clear()
        lg.shutdown()
    except JobError as error:
        print(json.dumps({"error": type(error).__name__, "words": str(error)}), flush=True)
        lg.shutdown(now=True)
        sys.exit(3)


if __name__ == "__main__":
    main()
