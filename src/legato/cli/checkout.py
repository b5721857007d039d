"""Commands whose work is done in bench/, which only a checkout of legato has: `legato bench` and `legato study`."""

import importlib
import math
import sys
from pathlib import Path
from types import ModuleType
from typing import Annotated

import typer
from rich.console import Console

from legato.errors import InputError

CHECKOUT = Path(__file__).resolve().parents[3]
_EXTRAS = {"plotly": "bench", "pyroute2": "bench", "torch": "bench", "optuna": "tune"}
"""Which extra brings a package that bench/ needs."""


def from_checkout(module: str, *, command: str, checkout: Path = CHECKOUT) -> ModuleType:
    """A module of bench/; what is missing for it is said in one line."""
    if not (checkout / "bench").is_dir():
        raise InputError(f"{command}: the recipes are in bench/ of a checkout of legato; this installation has none")
    if str(checkout) not in sys.path:
        sys.path.insert(0, str(checkout))
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        missing = (error.name or "").partition(".")[0]
        if missing not in _EXTRAS:
            raise
        raise InputError(f"{command}: it needs {missing}; pip install 'legato[{_EXTRAS[missing]}]'") from None


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


def bench(
    recipe: Annotated[
        str | None, typer.Argument(help="a .toml file, a built-in recipe, or clean: remove what killed runs left")
    ] = None,
    *,
    out: Annotated[Path | None, typer.Option(help="rows, a JSON object a line; else build/bench/RECIPE.jsonl")] = None,
    fresh: Annotated[bool, typer.Option("--fresh", help="measure again what is there already")] = False,
    seconds: Annotated[float, typer.Option(help="set up no more hosts after so long; the next run goes on")] = math.inf,
    compare: Annotated[
        tuple[Path, Path] | None, typer.Option(help="two files of rows: what is faster, what slower, beyond noise")
    ] = None,
) -> int:
    """Measure systems against each other and against T* over the grid of a recipe; a rerun goes on where it stopped."""
    grid = from_checkout("bench.grid.main", command="bench")
    console = Console()
    if compare is not None:
        if recipe is not None:
            raise InputError("bench: --compare takes two files and no recipe")
        code: int = grid.show_comparison(*compare, console)
    elif recipe == "clean":
        code = grid.clean(console)
    elif recipe is None:
        raise InputError(f"bench: which recipe? accepted: {', '.join(grid.recipe.built_in())}, a .toml file, or clean")
    else:
        code = grid.bench(recipe, out, fresh=fresh, seconds=seconds, console=console)
    return code
