"""A worker that is killed, interrupted or fails in backward: every process ends, and the others name its rank."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from legato.testing.ports import free_port

TIMEOUT_S = 60
SCRIPT = """
import signal
import sys
import torch
from torch import nn
import legato.torch as lg

class Failing(torch.autograd.Function):
    @staticmethod
    def forward(ctx, value):
        return value.clone()
    @staticmethod
    def backward(ctx, gradient):
        if fails and step == 5:
            raise ArithmeticError("this backward fails")
        return gradient

signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored where tests run in the background of a shell
lg.init()
fails = sys.argv[1] == "fail" and lg.rank() == 1
model = nn.Sequential(nn.Linear(64, 64), nn.Linear(64, 64))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
lg.schedule(model, optimizer)
step = 0
while True:
    optimizer.zero_grad()
    Failing.apply(model(torch.ones(4, 64))).sum().backward()
    optimizer.step()
    step += 1
    if step == 3:
        print("training", flush=True)
"""


@contextmanager
def two_workers(how: str) -> Iterator[list["subprocess.Popen[str]"]]:
    """Workers in the middle of training, without a launcher that would end the one when the other ends."""
    port = free_port()
    workers = [
        subprocess.Popen(
            [sys.executable, "-c", SCRIPT, how],
            env={
                **os.environ,
                "RANK": str(rank),
                "LOCAL_RANK": str(rank),
                "WORLD_SIZE": "2",
                "LOCAL_WORLD_SIZE": "2",
                "MASTER_ADDR": "127.0.0.1",
                "MASTER_PORT": str(port),
                "LEGATO_HEARTBEAT_S": "5",
            },
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    try:
        for worker in workers:
            assert worker.stdout is not None
            assert worker.stdout.readline() == "training\n"
        yield workers
    finally:
        for worker in workers:
            worker.kill()
            worker.communicate()


@pytest.mark.parametrize(
    ("how", "what", "its_code"),
    [
        (signal.SIGKILL, "killed", -signal.SIGKILL),
        (signal.SIGINT, "interrupted", -signal.SIGINT),
        (None, "fail", 1),
    ],
    ids=["kill -9", "Ctrl-C", "exception in backward"],
)
def test_everybody_ends_and_names_the_rank(how: signal.Signals | None, what: str, its_code: int) -> None:
    with two_workers(what) as (other, victim):
        if how is not None:
            victim.send_signal(how)
        _, its_errors = victim.communicate(timeout=TIMEOUT_S)
        _, errors = other.communicate(timeout=TIMEOUT_S)
        assert victim.returncode == its_code, its_errors
        assert other.returncode == 1, errors
        assert "rank 1" in errors.splitlines()[-1]
    if what == "fail":
        assert "this backward fails" in its_errors
