"""`legato config`: every setting and where its value comes from."""

import json
import os
from collections.abc import Sequence
from typing import Annotated

import typer

from legato.cli.environment_page import environment_page
from legato.settings import Found, read_settings

app = typer.Typer(name="config", help="Show the settings, and where they come from.", no_args_is_help=True)


@app.command()
def show(
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON: name, value, origin, where.")] = False,
) -> None:
    """Print each setting of this folder and environment with its value and its origin."""
    settings = read_settings(os.environ)
    warnings = [*settings.translated, *settings.without_effect]
    if as_json:
        values = records(settings.found)
        print(json.dumps({"settings": values, "told_by": settings.told_by, "warnings": warnings}, indent=1))
        return
    print(*lines(settings.found), sep="\n")
    print("", *warnings, f"rank {settings.rank} of {settings.num_workers}, told by {settings.told_by}", sep="\n")


@app.command(hidden=True)
def page() -> None:
    """Print docs/environment.md."""
    print(environment_page(), end="")


def records(found: Sequence[Found]) -> list[dict[str, object]]:
    """Settings for programs."""
    return [
        {
            "name": each.setting.name,
            "variable": each.setting.variable,
            "value": each.value if isinstance(each.value, int | float | None) else str(each.value),
            "origin": each.level.name.lower(),
            "where": each.where or None,
        }
        for each in found
    ]


def lines(found: Sequence[Found]) -> list[str]:
    """The same for people, in columns, below their titles."""
    rows = [("setting", "value", "origin"), *((each.setting.name, _shown(each), _origin(each)) for each in found)]
    widths = [max(len(row[column]) for row in rows) for column in range(2)]
    return [f"{name:{widths[0]}}  {value:{widths[1]}}  {origin}" for name, value, origin in rows]


def _shown(found: Found) -> str:
    if found.value is None:
        return f"({found.setting.default})"
    return str(found.value).lower() if isinstance(found.value, bool) else str(found.value)


def _origin(found: Found) -> str:
    return found.where or found.level.name.lower()
