"""`legato bench`: systems side by side on a testbed. Recipes and testbed are in bench/, which only a checkout has."""

import math
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from legato.cli.checkout import from_checkout
from legato.errors import InputError


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
