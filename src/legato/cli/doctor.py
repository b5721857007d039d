"""`legato doctor`: what a job would find on its hosts and between them, and what a step of a model would take there."""

import importlib.util
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer

from legato.cli.config import lines, records
from legato.cli.options import Batch, Tflops, given, read_workload
from legato.cli.profile import load_callable, profiled
from legato.doctor.checks import Check, Status
from legato.doctor.examination import Diagnosis, Profiler, diagnose, examine
from legato.doctor.forecast import Prognosis
from legato.doctor.links import Links, given_links
from legato.errors import InputError
from legato.job import job_of
from legato.launch.host import Part, launch_part
from legato.launch.signals import ended_by_signals
from legato.settings import Level, Settings, read_settings
from legato.sim.zoo import DEFAULT_TFLOPS, ZOO
from legato.tuning.twin.forecast import Outlook
from legato.units import parse_gbps, parse_seconds

_ALONE = 2
"""Ranks on the loopback, where nobody has started any."""


def doctor(
    model: Annotated[
        str | None,
        typer.Argument(
            help=f"What to forecast: a workload's JSON file, MODULE:CALLABLE to profile here, or {', '.join(ZOO)}."
        ),
    ] = None,
    *,
    workers: Annotated[int | None, typer.Option(min=2, help="Forecast for so many hosts, with --gbps.")] = None,
    gbps: Annotated[str | None, typer.Option(help="The rate of their links: 10, 10Gbps, 500Mbps.")] = None,
    latency: Annotated[str, typer.Option(help="Of one hop between them: 20us, 1ms.")] = "0",
    servers: Annotated[int | None, typer.Option(min=1, help="Forecast with so many servers.")] = None,
    device: Annotated[str, typer.Option(help="To profile on: cpu, cuda; auto takes an accelerator.")] = "auto",
    batch: Batch = None,
    tflops: Tflops = DEFAULT_TFLOPS,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead.")] = False,
) -> int:
    """Examine the hosts of a job and the links between them, and forecast a model's step.

    On several hosts: legato run --hosts a:4,b:4 -m legato.cli doctor mine.json
    """
    settings = read_settings(os.environ)
    profiler = None if model is None else _profiler(model, device, batch, tflops, settings.local_rank)
    links = _links(workers, gbps, latency)
    if settings.launcher == "none" and links is None and importlib.util.find_spec("torch") is not None:
        options = {"--servers": servers, "--device": device, "--batch": batch, "--tflops": tflops}
        words = [str(word) for option in options.items() if option[1] is not None for word in option]
        command = ["-m", "legato.cli", "doctor", *words, *(["--json"] if as_json else []), *([model] if model else [])]
        with ended_by_signals():
            return launch_part(Part(command=tuple(command), nproc_per_node=str(_ALONE)))
    with job_of(settings) as job:
        examination = examine(job, profiler)
    if settings.rank == 0:
        tried = None if servers is None else (servers,)
        diagnosis = diagnose(examination, settings, given=links, servers=tried)
        print(_json(diagnosis, settings) if as_json else "\n".join(_page(diagnosis, settings)))
    return 0


def _profiler(model: str, device: str, batch: int | None, tflops: float, local_rank: int) -> Profiler:
    """What is wrong with the model is said before anything is measured."""
    if ":" in model and Path(model).suffix != ".json":
        load_callable(model)
        return lambda: profiled(model, device, local_rank=local_rank)[0]
    workload = read_workload(model, batch, tflops)
    return lambda: workload


def _links(workers: int | None, gbps: str | None, latency: str) -> Links | None:
    if (workers is None) != (gbps is None):
        raise InputError("--workers and --gbps describe links together; give both, or neither to measure them")
    if workers is None or gbps is None:
        return None
    rate = given("--gbps", parse_gbps, gbps)
    if not rate > 0:
        raise InputError(f"--gbps: {gbps!r} is not more than 0")
    return given_links(workers, rate, given("--latency", parse_seconds, latency))


def _json(diagnosis: Diagnosis, settings: Settings) -> str:
    return json.dumps({**diagnosis.as_dict(), "settings": records(settings.found)}, indent=1)


def _page(diagnosis: Diagnosis, settings: Settings) -> Iterator[str]:
    num_hosts = len({facts.identity for facts in diagnosis.ranks})
    yield (
        f"{len(diagnosis.ranks)} {_plural('rank', len(diagnosis.ranks))} on {num_hosts} {_plural('host', num_hosts)}, "
        f"examined in {diagnosis.took_s:.1f} s"
    )
    yield ""
    width = max(len(check.name) for check in diagnosis.checks)
    for check in diagnosis.checks:
        yield from _check(check, width)
    yield ""
    found = [each for each in settings.found if each.level is not Level.DEFAULT]
    yield from lines(found) if found else ["every setting has its default (`legato config show` lists them)"]
    yield ""
    if diagnosis.prognosis is not None:
        yield from _prognosis(diagnosis.prognosis)
    elif diagnosis.links is None:
        yield "no forecast: one rank alone; give --workers and --gbps, or run it on several hosts by `legato run`"
    else:
        yield "no forecast: name a model, such as a workload that `legato profile` wrote"


def _check(check: Check, width: int) -> Iterator[str]:
    mark = {Status.OK: "ok", Status.NOTE: "note", Status.WARNING: "WARNING"}[check.status]
    yield f"{mark:7}  {check.name:{width}}  {check.found}"
    if check.advice:
        yield f"{'':7}  {'':{width}}  → {check.advice}"


def _prognosis(prognosis: Prognosis) -> Iterator[str]:
    yield (
        f"a step of {prognosis.model}: {prognosis.num_bytes / 1e6:.1f} MB of gradients, "
        f"{prognosis.compute_s * 1e3:.1f} ms of computation"
    )
    width = max(len(each.change) for each in prognosis.outlooks)
    now_s = prognosis.outlooks[0].step_s
    for each in prognosis.outlooks:
        yield f"  {each.change:{width}}  {each.step_s * 1e3:8.1f} ms {_doubt(each, now_s)}"
    yield f"recommended: {prognosis.advice.use}: {prognosis.advice.why}"


def _doubt(outlook: Outlook, now_s: float) -> str:
    if outlook.error is None:
        return "(the least, without servers or fp16)"
    shorter = 1 - outlook.step_s / now_s
    change = f", {abs(shorter):.0%} {'shorter' if shorter > 0 else 'longer'}" if shorter else ""
    return f"± {outlook.error:.0%}{change}"


def _plural(noun: str, count: int) -> str:
    return noun if count == 1 else f"{noun}s"
