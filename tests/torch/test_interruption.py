"""A worker that is killed, interrupted, fails or exits early: every process ends, and the others name its rank."""

import os
import re
import signal
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager

import pytest

from legato.testing.ports import free_port
from tests.crew import place_of
from tests.programs import Program, Programs

TIMEOUT_S = 60
SCRIPT = """
import atexit
import signal
import sys
import torch
from torch import nn
import legato.torch as lg

how, status = sys.argv[1:]  # the status of who exits
if how == "end":  # runs after what init registers
    atexit.register(lambda: print((model[1].bias - begun).mean().item(), flush=True))

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
is_last = lg.rank() == lg.size() - 1
fails = how == "fail" and is_last
model = nn.Sequential(nn.Linear(64, 64), nn.Linear(64, 64))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
lg.schedule(model, optimizer)
begun = model[1].bias.detach().clone()
step = 0
while not (how == "end" and step == 5):
    optimizer.zero_grad()
    Failing.apply(model(torch.ones(4, 64))).sum().backward()
    optimizer.step()
    step += 1
    if step == 3:
        print("training", flush=True)
    if how == "exit" and is_last and step == 5:
        sys.exit(int(status))
"""


@contextmanager
def workers(programs: Programs, command: Sequence[str], said: Sequence[str]) -> Iterator[list[Program]]:
    """Workers that have said their lines, without a launcher that would end the one when the other ends."""
    port = free_port()
    size = len(said)
    environs = [{**os.environ, **place_of(rank, size, port), "LEGATO_HEARTBEAT_S": "5"} for rank in range(size)]
    started = [programs.start(*command, env=environ) for environ in environs]
    try:
        for worker, line in zip(started, said, strict=True):
            assert worker.stdout.readline() == line
        yield started
    finally:
        for worker in started:
            worker.kill()
            worker.communicate()


def training(programs: Programs, how: str, status: int = 0, size: int = 2) -> AbstractContextManager[list[Program]]:
    """Workers in the middle of training."""
    return workers(programs, ["-c", SCRIPT, how, str(status)], ["training\n"] * size)


@pytest.mark.parametrize(
    ("how", "what", "its_code"),
    [
        (signal.SIGKILL, "killed", -signal.SIGKILL),
        (signal.SIGINT, "interrupted", -signal.SIGINT),
        (signal.SIGTERM, "terminated", -signal.SIGTERM),
        (None, "fail", 1),
    ],
    ids=["kill -9", "Ctrl-C", "SIGTERM", "exception in backward"],
)
def test_everybody_ends_and_names_the_rank(
    programs: Programs, how: signal.Signals | None, what: str, its_code: int
) -> None:
    with training(programs, what) as (other, victim):
        if how is not None:
            victim.send_signal(how)
        _, its_errors = victim.communicate(timeout=TIMEOUT_S)
        _, errors = other.communicate(timeout=TIMEOUT_S)
        assert victim.returncode == its_code, its_errors
        assert other.returncode == 1, errors
        assert "rank 1" in errors.splitlines()[-1]
    if what == "fail":
        assert "this backward fails" in its_errors


@pytest.mark.parametrize(("status", "size"), [(3, 2), (3, 3), (0, 2)])
def test_a_rank_that_exits_early_ends_the_others_at_once(programs: Programs, status: int, size: int) -> None:
    """Well before the deadline of a wait: that is as long as this test gives all of them."""
    with training(programs, "exit", status, size) as (*others, leaver):
        _, its_errors = leaver.communicate(timeout=TIMEOUT_S)
        assert leaver.returncode == status, its_errors
        for other in others:
            _, errors = other.communicate(timeout=TIMEOUT_S)
            assert other.returncode == 1, errors
            said = rf"ClosedError: tensor 'gradients\.\d+/0\.weight', step 5: rank {size - 1} left the job"
            assert re.search(said, errors), errors


def test_ranks_that_end_together_have_applied_their_last_step(programs: Programs) -> None:
    with training(programs, "end") as both:
        outputs = [worker.communicate(timeout=TIMEOUT_S) for worker in both]
        assert [worker.returncode for worker in both] == [0, 0], outputs
    moved = [float(output.splitlines()[-1]) for output, _ in outputs]
    # A gradient of 4, the size of the batch, in each of 5 steps, at a rate of 0.01.
    assert moved == pytest.approx([-0.2, -0.2])
