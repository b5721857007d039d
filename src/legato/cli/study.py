"""`legato study`: the papers' figures, made again. The recipes are in bench/, which only a checkout has."""

from pathlib import Path
from typing import Annotated

import typer

from legato.cli.checkout import from_checkout


def study(
    names: Annotated[list[str] | None, typer.Argument(help="recipes; none: all of them")] = None,
    *,
    out: Annotated[Path | None, typer.Option(help="folder for the report; else build/study")] = None,
    publish: Annotated[bool, typer.Option("--publish", help="also write docs/study.md and bench/results")] = False,
) -> None:
    """Simulate the published figures and put ours beside them, in one report."""
    from_checkout("bench.study.main", command="study").study(names or [], out, publish=publish, say=_say)


def _say(line: str) -> None:
    print(line, flush=True)
