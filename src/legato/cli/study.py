"""`legato study`: the papers' figures, made again. The recipes are in bench/, which only a checkout has."""

import importlib
import sys
from pathlib import Path
from types import ModuleType
from typing import Annotated

import typer

from legato.errors import InputError

CHECKOUT = Path(__file__).resolve().parents[3]


def study(
    names: Annotated[list[str] | None, typer.Argument(help="recipes; none: all of them")] = None,
    *,
    out: Annotated[Path | None, typer.Option(help="folder for the report; else build/study")] = None,
    publish: Annotated[bool, typer.Option("--publish", help="also write docs/study.md and bench/results")] = False,
) -> None:
    """Simulate the published figures and put ours beside them, in one report."""
    _recipes(CHECKOUT).study(names or [], out, publish=publish, say=_say)


def _say(line: str) -> None:
    print(line, flush=True)


def _recipes(checkout: Path) -> ModuleType:
    if not (checkout / "bench" / "study").is_dir():
        raise InputError("study: the recipes are in bench/ of a checkout of legato; this installation has none")
    if str(checkout) not in sys.path:
        sys.path.insert(0, str(checkout))
    try:
        return importlib.import_module("bench.study.main")
    except ModuleNotFoundError as error:
        if not (error.name or "").startswith("plotly"):
            raise
        raise InputError("study: drawing needs plotly; pip install 'legato[bench]'") from None
