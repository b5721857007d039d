"""What the commands that simulate have in common: options, parsed with their names in errors."""

from collections.abc import Callable
from enum import StrEnum
from pathlib import Path
from typing import Annotated, TypeVar

import typer

from legato.core import Workload
from legato.errors import InputError
from legato.sim import Architecture, Cluster, Ownership
from legato.sim.zoo import workload
from legato.units import parse_gbps, parse_seconds

Workers = Annotated[int, typer.Option(help="worker hosts")]
Gbps = Annotated[str, typer.Option(help="bandwidth of a link: 10, 10Gbps, 500Mbps")]
Arch = Annotated[str, typer.Option(help=", ".join(Architecture))]
Servers = Annotated[int, typer.Option(help="extra server hosts of a parameter server")]
Placement = Annotated[str | None, typer.Option(help="separate or mixed, with --servers")]
Latency = Annotated[str, typer.Option(help="of one hop: 20us, 1ms")]
Overhead = Annotated[str, typer.Option(help="of one operation: 50us")]
Batch = Annotated[int | None, typer.Option(help="samples per worker; else the model's own")]
Tflops = Annotated[float, typer.Option(help="speed that the accelerator reaches")]

Value = TypeVar("Value")
Choice = TypeVar("Choice", bound=StrEnum)


def given(option: str, parse: Callable[[str], Value], text: str) -> Value:
    """Parse an option's value; what is wrong with it is said with the option's name."""
    try:
        return parse(text)
    except InputError as error:
        raise InputError(f"{option}: {error}") from None


def choice(options: type[Choice]) -> Callable[[str], Choice]:
    """A parser of one of an enumeration's values."""

    def parse(text: str) -> Choice:
        if text not in list(options):
            raise InputError(f"{text!r} is unknown; accepted: {', '.join(options)}")
        return options(text)

    return parse


def read_workload(model: str, batch: int | None, tflops: float) -> Workload:
    """A model of the zoo, or a workload's JSON file."""
    path = Path(model)
    if path.suffix != ".json":
        return workload(model, batch=batch, tflops=tflops)
    try:
        return Workload.from_json(path.read_text())
    except OSError as error:
        raise InputError(f"{model}: {error.strerror}") from None


def read_cluster(
    *, workers: int, gbps: str, arch: str, servers: int, deployment: str | None, latency: str, overhead: str
) -> Cluster:
    """A cluster from what the command line says."""
    return Cluster(
        workers=workers,
        gbps=given("--gbps", parse_gbps, gbps),
        architecture=given("--arch", choice(Architecture), arch),
        servers=servers,
        deployment=given(
            "--deployment", choice(Ownership), deployment or (Ownership.MIXED if servers else Ownership.JOINT)
        ),
        latency_s=given("--latency", parse_seconds, latency),
        overhead_s=given("--overhead", parse_seconds, overhead),
    )
