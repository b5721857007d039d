"""`legato profile`: measures a model's layers and writes them as a workload, which `legato sim` takes."""

import importlib
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from legato.core import Workload
from legato.errors import InputError
from legato.units import format_bytes


def profile(
    target: Annotated[
        str, typer.Argument(metavar="MODULE:CALLABLE", help="what returns (model, example inputs) when it is called")
    ],
    *,
    out: Annotated[Path | None, typer.Option(help="the file to write; else the callable's name with .json")] = None,
    device: Annotated[str, typer.Option(help="cpu, cuda, cuda:1; auto takes an accelerator that is there")] = "auto",
    warmup: Annotated[int, typer.Option(help="passes before those that count")] = 3,
    passes: Annotated[int, typer.Option(help="passes that count; times are their medians")] = 10,
) -> None:
    """Measure forward, backward and bytes of every layer of a PyTorch model, in the order of first use."""
    workload, place = profiled(target, device, warmup=warmup, passes=passes)
    path = out or Path(f"{workload.name}.json")
    path.write_text(workload.to_json() + "\n")
    forward_s = sum(layer.forward_s for layer in workload.layers)
    print(
        f"{path}: {len(workload.layers)} layers, {format_bytes(workload.num_bytes)}, forward {forward_s * 1e3:.1f} ms, "
        f"backward {(workload.compute_s - forward_s) * 1e3:.1f} ms on {place}"
    )


def profiled(
    target: str, device: str, *, warmup: int = 3, passes: int = 10, local_rank: int = 0
) -> tuple[Workload, str]:
    """What `module:callable` returns, measured, and where: on this rank's accelerator, where there is a choice."""
    try:
        from legato.torch.tuning import profile as measure
    except ModuleNotFoundError as error:
        raise InputError(f"profiling needs PyTorch ({error}): pip install 'legato[torch]'") from None
    config = measure.ProfileConfig(warmup=warmup, passes=passes)
    name, make = load_callable(target)
    place = measure.device_of(device)
    if place.type == "cuda" and place.index is None:
        place = measure.device_of(f"cuda:{local_rank}")
    model, inputs = measure.placed(make(), place)
    return measure.profile(name, model, inputs, config=config), str(place)


def load_callable(target: str) -> tuple[str, Callable[[], Any]]:
    module, _, name = target.partition(":")
    if not module or not name:
        raise InputError(f"{target!r} is not module:callable, such as train:make_model")
    sys.path.insert(0, str(Path.cwd()))
    try:
        found = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise InputError(f"{target}: {error}") from None
    finally:
        sys.path.pop(0)
    if not callable(found):
        raise InputError(f"{target} is not callable")
    return name, found
