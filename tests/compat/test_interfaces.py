"""Names, arguments and defaults of BytePS's and ByteScheduler's interfaces, against those recorded."""

import importlib
import inspect
from functools import reduce
from pathlib import Path
from typing import Any

import pytest

from legato.compat import MODULES
from legato.torch import Compression
from tests.compat.recorded import BYTEPS, BYTESCHEDULER, MISSING, REQUIRED

FUNCTIONS = [
    (module, name, arguments)
    for interface in (BYTEPS, BYTESCHEDULER)
    for module, names in interface.items()
    for name, arguments in names.items()
]


def found(module: str, name: str) -> Any:
    return reduce(getattr, name.split("."), importlib.import_module(module))


@pytest.mark.parametrize(("module", "name", "arguments"), FUNCTIONS)
def test_signature(module: str, name: str, arguments: dict[str, Any]) -> None:
    ours = list(inspect.signature(found(module, name)).parameters.values())
    assert [parameter.name for parameter in ours][: len(arguments)] == list(arguments)
    for parameter, default in zip(ours, arguments.values(), strict=False):
        if default == "Compression.none":
            assert parameter.default is Compression.none
        elif default != REQUIRED:
            assert parameter.default == default
    # A call that is complete there is complete here.
    extra = [parameter for parameter in ours[len(arguments) :] if parameter.kind is not parameter.VAR_KEYWORD]
    assert all(parameter.default is not parameter.empty for parameter in extra)


@pytest.mark.parametrize("name", sorted(MISSING))
def test_what_is_said_to_be_missing_is(name: str) -> None:
    path, _, leaf = name.partition("(")[0].rpartition(".")
    if "(" in name:
        known = inspect.signature(found(MODULES[path], leaf)).parameters
        assert not known.keys() & set(name.partition("(")[2].rstrip(")").split(", "))
    elif path in MODULES:
        assert not hasattr(importlib.import_module(MODULES[path]), leaf)
    else:
        assert f"{path}.{leaf}" not in MODULES


def test_the_page_names_what_is_missing() -> None:
    page = (Path(__file__).parent.parent.parent / "docs" / "compatibility.md").read_text()
    for name in MISSING:
        names = name.partition("(")[2].rstrip(")").split(", ") if "(" in name else [name.rpartition(".")[2]]
        assert all(f"`{each}`" in page or f".{each}`" in page for each in names), name
