"""Opening an exchange as a user has asked for it: arguments first, then the environment."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypedDict, Unpack

from legato.compression import select
from legato.core import Plan, Policy
from legato.errors import InputError, PlanError
from legato.exchange.exchange import Exchange, TensorSpec
from legato.exchange.planner import NativePlanner
from legato.job import Job
from legato.units import parse_bytes


class ExchangeOptions(TypedDict, total=False):
    """How gradients travel, as `legato.torch.schedule` takes it; what is left out is the environment's choice."""

    policy: str | Policy | None
    """`auto`, the name of a policy, or one of your own (docs/policies.md)."""
    partition_bytes: int | str | None
    """The largest part."""
    credit_bytes: int | str | None
    """What may be in flight at once."""
    plan: str | os.PathLike[str] | Plan | None
    """A whole plan, or the file of one; then without the three above."""
    compression: str | Mapping[str, Any] | None
    """A codec on the wire (docs/compression.md)."""
    min_compress_bytes: int | None
    """Smaller tensors travel as they are."""
    backups: int
    """Ranks that a step need not wait for (docs/asynchrony.md); not with codecs."""


_ONLY_TORCH = frozenset({"tuner", "transport", "staleness", "local_steps", "outer", "passes_per_step", "state"})
"""What `legato.torch.schedule` takes, and no exchange does."""


def open_exchange(
    job: Job,
    tensors: Sequence[TensorSpec],
    *,
    name: str | None = None,
    follows_plans: bool = True,
    urgency: int = 0,
    **options: Unpack[ExchangeOptions],
) -> Exchange:
    """The tensors of a model, as a user has asked for it. On every rank, with the same tensors.

    `name` goes before theirs; ranks that open the same exchanges in the same order need none. `follows_plans` and
    `urgency` are as `Exchange` has them.
    """
    check_options(options)
    asked = [options.get(key) for key in ("policy", "partition_bytes", "credit_bytes")]
    check_alone(options.get("plan"), *asked)
    settings = job.settings
    if follows_plans and settings.staleness:
        raise InputError(
            f"LEGATO_STALENESS or BYTEPS_ENABLE_ASYNC asks for a staleness of {settings.staleness}, which legato.torch "
            "alone has; accepted here is 0"
        )
    planner = NativePlanner(
        policy=options.get("policy") or settings.policy,
        partition_bytes=size_of("partition_bytes", options.get("partition_bytes"), settings.partition_bytes),
        credit_bytes=size_of("credit_bytes", options.get("credit_bytes"), settings.credit_bytes),
        fusion_bytes=settings.fusion_bytes,
        given=plan_of(options.get("plan")),
    )
    min_compress_bytes = options.get("min_compress_bytes")
    selection = select(
        options.get("compression") or "none",
        settings.min_compress_bytes if min_compress_bytes is None else min_compress_bytes,
    )
    backups = options.get("backups", 0)
    if backups and options.get("compression") not in (None, "none"):
        raise InputError(f"backups={backups} do not go with codecs; give one of them")
    if isinstance(backups, bool) or not isinstance(backups, int) or not 0 <= backups < job.size:
        raise InputError(f"backups is {backups!r}; accepted is 0 to {job.size - 1} in a job of {job.size}")
    return Exchange(
        job.group,
        job.name("gradients") if name is None else name,
        tensors,
        planner=planner,
        selection=selection,
        backups=backups,
        follows_plans=follows_plans,
        urgency=urgency,
    )


def check_options(options: Mapping[str, object]) -> None:
    """An InputError for what no exchange takes. Where a user says it is earlier than where an exchange is opened."""
    for name in options:
        if name not in ExchangeOptions.__annotations__:
            why = "works in legato.torch alone" if name in _ONLY_TORCH else "is unknown"
            raise InputError(f"{name} {why}; accepted here: {', '.join(ExchangeOptions.__annotations__)}")


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
