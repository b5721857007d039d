"""Plans of a job: rank 0 writes or reads them, and every rank follows them."""

from collections.abc import Callable, Sequence
from dataclasses import replace

from legato.core import Plan, Tensor
from legato.errors import PlanError


def agree_on_plan(rank: int, write: Callable[[], Plan], broadcast: Callable[[str | None], str]) -> Plan:
    """What rank 0 writes. Where it cannot, it raises its own error, and the others a PlanError that quotes it.

    `broadcast` gives every rank what rank 0 says; the others give None.
    """
    if rank == 0:
        try:
            text = write().to_json()
        except Exception as error:
            broadcast(f"{type(error).__name__}: {error}")
            raise
        return Plan.from_json(broadcast(text))
    text = broadcast(None)
    if not text.startswith("{"):
        raise PlanError(f"rank 0 cannot write a plan: {text}")
    return Plan.from_json(text)


def fitted(plan: Plan, tensors: Sequence[Tensor]) -> Plan:
    """A plan for tensors in the order of their first use, as one for these.

    Its tensors may also be layers, all parameters of a module, as profiles have them.
    """
    units: list[list[int]] = []
    layer: str | None = None
    is_by_layer = len(plan.bucket_of) < len(tensors)
    for place in sorted(range(len(tensors)), key=lambda place: tensors[place].priority):
        module = tensors[place].name.rpartition(".")[0]
        if is_by_layer and module == layer:
            units[-1].append(place)
        else:
            units.append([place])
        layer = module
    if sorted(plan.bucket_of) != list(range(len(units))):
        plan.check(tensors)  # raises: it says what the plan is for
    buckets = tuple(tuple(place for unit in bucket for place in units[unit]) for bucket in plan.buckets)
    return replace(plan, buckets=buckets)
