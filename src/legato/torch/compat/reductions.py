"""Reductions: how the values of all ranks become one, under the names that Horovod's users know."""

from enum import StrEnum

from legato.errors import InputError


class ReduceOp(StrEnum):
    """A reduction; its value is the transports' name for it."""

    AVERAGE = "average"
    SUM = "sum"
    MIN = "min"
    MAX = "max"
    PRODUCT = "product"


Average = ReduceOp.AVERAGE
Sum = ReduceOp.SUM
Min = ReduceOp.MIN
Max = ReduceOp.MAX
Product = ReduceOp.PRODUCT


def chosen(op: ReduceOp | None, average: bool | None = None) -> ReduceOp:
    """What is meant by `op`, or by `average`, which came before it: one of them, or the average."""
    if op is not None and average is not None:
        raise InputError(f"op={op!s} and average={average}: give op alone, it says the same and more")
    if average is not None:
        return Average if average else Sum
    if op is None:
        return Average
    if op not in tuple(ReduceOp):
        raise InputError(f"op is {op!r}, accepted are {', '.join(each.name.title() for each in ReduceOp)}")
    return ReduceOp(op)
