"""Recipes: a small TOML file says which cells of a grid to measure, and how."""

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, fields
from itertools import product
from pathlib import Path
from typing import Any

from bench.grid.cell import Cell
from bench.grid.lineup import system
from bench.testbed.link import MAX_GBPS
from bench.testbed.testbed import MAX_HOSTS
from legato.cli.options import read_workload
from legato.errors import InputError
from legato.sim.zoo import DEFAULT_TFLOPS
from legato.units import parse_bytes

BUILT_IN = Path(__file__).resolve().parents[1] / "recipes"


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """Lists make the grid: a cell for each combination. All systems of a cell are measured in turns."""

    name: str
    """The file's, without its ending."""
    models: tuple[str, ...]
    """Of the zoo, or profiles that `legato profile` wrote."""
    systems: tuple[str, ...]
    """What to measure side by side (lineup.py)."""
    gbps: tuple[float, ...] = (1.0,)
    """Bandwidth of a host's link."""
    hosts: tuple[int, ...] = (4,)
    """Hosts that train."""
    servers: tuple[int, ...] = (0,)
    """Extra hosts that only sum, for `legato:servers`."""
    rounds: int = 4
    """How often every system has its turn."""
    steps: int = 3
    """Measured steps of a turn, after one that is not."""
    communication_over_computation: float | None = None
    """Stretches computation until the ratio is this; else the model computes as long as it does."""
    at_most_gbps: float = 1.0
    """Faster links are emulated by links of this rate and as much fewer bytes: a scaled run."""
    at_most_bytes: int = 50_000_000
    """Larger models lose bytes and computation alike, so that a step is shorter: a scaled run, too."""
    at_least_s: float = 0.0
    """Shorter steps gain bytes and computation alike until they are so long; it comes before `at_most_bytes`."""

    def __post_init__(self) -> None:
        for name in ("rounds", "steps", "at_most_bytes", "at_most_gbps", "communication_over_computation"):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise InputError(f"{self.name}: {name} is {value}; accepted is more than 0")
        if not 0 <= self.at_least_s < 3600:
            raise InputError(f"{self.name}: at_least_s is {self.at_least_s:g}; accepted is 0 or more seconds")
        for name in ("models", "systems", "gbps", "hosts", "servers"):
            values = getattr(self, name)
            if not values or len(set(values)) < len(values):
                raise InputError(f"{self.name}: {name} must hold something, and nothing twice")
        for value in self.gbps:
            if not value > 0:
                raise InputError(f"{self.name}: gbps is {value:g}; accepted is more than 0")
        if self.at_most_gbps > MAX_GBPS:
            raise InputError(f"{self.name}: at_most_gbps is {self.at_most_gbps:g}; accepted is {MAX_GBPS} at most")
        for hosts, servers in product(self.hosts, self.servers):
            if hosts < 2 or servers < 0 or hosts + servers > MAX_HOSTS:
                raise InputError(
                    f"{self.name}: {hosts} hosts and {servers} servers; accepted are 2 hosts and 0 servers or more, "
                    f"together {MAX_HOSTS} at most"
                )
        self._check_names()

    def _check_names(self) -> None:
        try:
            for model in self.models:
                read_workload(model, None, DEFAULT_TFLOPS)
            systems = [system(name) for name in self.systems]
        except InputError as error:
            raise InputError(f"{self.name}: {error}") from None
        for each in systems:
            if each.uses_servers and 0 in self.servers:
                raise InputError(f"{self.name}: {each.name} needs servers in every cell; servers has 0")

    def cells(self) -> list[Cell]:
        """Models change fastest: cells that differ in nothing else are measured in one go."""
        return [
            Cell(
                model=model,
                gbps=gbps,
                hosts=hosts,
                servers=servers,
                systems=self.systems,
                rounds=self.rounds,
                steps=self.steps,
                communication_over_computation=self.communication_over_computation,
                at_most_gbps=self.at_most_gbps,
                at_most_bytes=self.at_most_bytes,
                at_least_s=self.at_least_s,
            )
            for hosts, servers, gbps, model in product(self.hosts, self.servers, self.gbps, self.models)
        ]


def built_in() -> list[str]:
    """The names of the recipes that come with legato."""
    return sorted(path.stem for path in BUILT_IN.glob("*.toml"))


def read(name: str) -> Recipe:
    """The recipe in a file, or the built-in one of that name."""
    path = Path(name)
    if path.suffix != ".toml":
        if name not in built_in():
            raise InputError(f"recipe {name!r} is unknown; accepted: {', '.join(built_in())}, or a .toml file")
        path = BUILT_IN / f"{name}.toml"
    try:
        text = path.read_text()
    except OSError as error:
        raise InputError(f"{name}: {error.strerror}") from None
    try:
        return parse(path.stem, tomllib.loads(text))
    except tomllib.TOMLDecodeError as error:
        raise InputError(f"{name}: not TOML: {error}") from None


def parse(name: str, document: Mapping[str, Any]) -> Recipe:
    """A recipe from what its file says."""
    kinds = {field.name: _KINDS[field.name] for field in fields(Recipe) if field.name != "name"}
    unknown = [key for key in document if key not in kinds]
    if unknown:
        raise InputError(f"{name}: key {unknown[0]!r} is unknown; accepted: {', '.join(kinds)}")
    missing = [key for key in ("models", "systems") if key not in document]
    if missing:
        raise InputError(f"{name}: key {missing[0]!r} is missing")
    return Recipe(name=name, **{key: kinds[key](f"{name}: {key}", value) for key, value in document.items()})


def _list_of(kind: type) -> Any:
    def read_list(where: str, value: Any) -> tuple[Any, ...]:
        if not isinstance(value, list):
            raise InputError(f"{where} is {value!r}; accepted is a list")
        return tuple(_one(kind)(where, each) for each in value)

    return read_list


def _one(kind: type) -> Any:
    def read_one(where: str, value: Any) -> Any:
        if isinstance(value, bool) or not isinstance(value, (int, float) if kind is float else kind):
            accepted = {float: "a number", int: "a whole number", str: "a text"}[kind]
            raise InputError(f"{where} is {value!r}; accepted is {accepted}")
        return kind(value)

    return read_one


def _size(where: str, value: Any) -> int:
    try:
        return parse_bytes(str(value))
    except InputError as error:
        raise InputError(f"{where}: {error}") from None


_KINDS: dict[str, Any] = {
    "models": _list_of(str),
    "systems": _list_of(str),
    "gbps": _list_of(float),
    "hosts": _list_of(int),
    "servers": _list_of(int),
    "rounds": _one(int),
    "steps": _one(int),
    "communication_over_computation": _one(float),
    "at_most_gbps": _one(float),
    "at_most_bytes": _size,
    "at_least_s": _one(float),
}
