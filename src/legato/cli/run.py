"""`legato run`: starts a script on the ranks of a job, by torchrun."""

import os
import sys
from enum import StrEnum
from typing import Annotated, Never

import typer


class Predecessor(StrEnum):
    """Whose modules a script imports."""

    HOROVOD = "horovod"
    BYTEPS = "byteps"
    BYTESCHEDULER = "bytescheduler"


def run(
    context: typer.Context,
    written_for: Annotated[
        Predecessor | None, typer.Option("--as", help="Run a script that was written for this one, as it is.")
    ] = None,
) -> Never:
    """Start a script as torchrun does: legato run [--as horovod] [torchrun's options] train.py [argument ...]"""
    arguments = context.args
    if written_for is not None:
        from legato.torch.torchrun import run_by  # torch takes seconds to load

        arguments = run_by("legato.compat", arguments)
    os.execv(sys.executable, [sys.executable, "-m", "torch.distributed.run", *arguments])
