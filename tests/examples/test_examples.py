"""The examples as a user starts them: the loss goes down, and is DDP's to the last digit printed."""

import os
import re
from typing import Protocol

import pytest

from legato.testing.ports import free_port
from tests.crew import place_of
from tests.programs import Program, Programs

SMALL = {
    "digits": ["--steps", "20", "--batch", "16", "--lr", "0.1"],
    "gpt": ["--steps", "10", "--batch", "4", "--length", "32", "--width", "32", "--depth", "2", "--clip", "1"],
    "images": ["--steps", "4", "--batch", "2", "--size", "32"],
}


class Launched(Protocol):
    def __call__(self, programs: Programs, *command: str) -> str: ...


def ended(*started: Program) -> str:
    """What the first has printed, when all are done."""
    said = [program.communicate() for program in started]
    for program, (_, errors) in zip(started, said, strict=True):
        assert program.returncode == 0, errors
    return said[0][0]


def torchrun(programs: Programs, *command: str) -> str:
    """On two workers, as a user starts them."""
    options = ("--nproc-per-node", "2", "--master-port", str(free_port()))
    return ended(programs.start("-m", "torch.distributed.run", *options, *command))


def told(programs: Programs, *command: str) -> str:
    """On two workers, by what torchrun would tell them."""
    port = free_port()
    environs = [{**os.environ, **place_of(rank, 2, port), "OMP_NUM_THREADS": "1"} for rank in range(2)]
    return ended(*(programs.start(*command, env=environ) for environ in environs))


def losses(output: str) -> list[float]:
    return [float(loss) for loss in re.findall(r"loss (\d+\.\d+)", output)]


@pytest.mark.parametrize(("name", "launched"), [("digits", torchrun), ("gpt", told), ("images", told)])
def test_trains_as_ddp_does(programs: Programs, name: str, launched: Launched) -> None:
    """One by torchrun, whose ranks load torch, for seconds."""
    script = [f"examples/{name}.py", *SMALL[name]]
    scheduled = launched(programs, *script)
    assert losses(scheduled)[-1] < losses(scheduled)[0]
    assert re.search(r"legato, 2 workers: .* ms a step", scheduled)
    assert losses(scheduled) == losses(told(programs, *script, "--ddp"))


def test_trains_alone(programs: Programs) -> None:
    output = ended(programs.start("examples/digits.py", "--steps", "20"))
    assert losses(output)[-1] < losses(output)[0]
    assert "legato, 1 worker: " in output
