"""Opening an exchange as a user has asked for it: arguments first, then the environment."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from legato.compression import select
from legato.core import Plan, Policy
from legato.errors import InputError, PlanError
from legato.exchange.exchange import Exchange, TensorSpec
from legato.exchange.planner import NativePlanner
from legato.job import Job
from legato.units import parse_bytes


def open_exchange(
    job: Job,
    tensors: Sequence[TensorSpec],
    *,
    policy: str | Policy | None = None,
    partition_bytes: int | str | None = None,
    credit_bytes: int | str | None = None,
    plan: str | os.PathLike[str] | Plan | None = None,
    compression: str | Mapping[str, Any] | None = None,
    min_compress_bytes: int | None = None,
    bytes_per_s: float | None = None,
) -> Exchange:
    """The gradients of a model, with the arguments of `legato.torch.schedule`. On every rank, with the same tensors."""
    check_alone(plan, policy, partition_bytes, credit_bytes)
    settings = job.settings
    planner = NativePlanner(
        policy=settings.policy if policy is None else policy,
        partition_bytes=size_of("partition_bytes", partition_bytes, settings.partition_bytes),
        credit_bytes=size_of("credit_bytes", credit_bytes, settings.credit_bytes),
        fusion_bytes=settings.fusion_bytes,
        given=plan_of(plan),
        bytes_per_s=bytes_per_s,
    )
    if min_compress_bytes is None:
        min_compress_bytes = settings.min_compress_bytes
    selection = select("none" if compression is None else compression, min_compress_bytes)
    return Exchange(job.group, job.name("gradients"), tensors, planner=planner, selection=selection)


def check_alone(plan: object, *others: object) -> None:
    if plan is not None and any(each is not None for each in others):
        raise InputError("plan says it all; give it alone, without policy, partition_bytes and credit_bytes")


def plan_of(plan: str | os.PathLike[str] | Plan | None) -> Plan | None:
    """A plan, or the file of one."""
    if plan is None or isinstance(plan, Plan):
        return plan
    try:
        return Plan.from_json(Path(plan).read_text())
    except (OSError, UnicodeDecodeError, PlanError) as error:
        raise InputError(f"plan {os.fspath(plan)}: {error}") from None


def size_of(name: str, given: int | str | None, default: int | None) -> int | None:
    """A size that the code, or else the environment, asks for."""
    if given is None:
        return default
    try:
        num_bytes = parse_bytes(given) if isinstance(given, str) else given
    except InputError as error:
        raise InputError(f"{name}: {error}") from None
    if isinstance(num_bytes, bool) or not isinstance(num_bytes, int) or num_bytes < 1:
        raise InputError(f"{name} is {given!r}; accepted is a size such as 262144, 256KiB or 4MB")
    return num_bytes
