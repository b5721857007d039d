"""Measures: what norms, clipping and the search for overflows need to know of averages.

Whoever sums a part measures it before it travels home (native/kernels/measure.hpp), so a measure is there as soon as
all contributions are. Parts, and then tensors, are added up in their order, in float64: all ranks get the same bits.
"""

import math
from collections.abc import Callable, Iterable
from typing import NamedTuple


class Measure(NamedTuple):
    """Of a tensor, or of several."""

    sum_of_squares: float = 0.0
    largest: float = 0.0
    """Magnitude; NaN where an item is."""

    def scaled(self, factor: float) -> "Measure":
        """What it is when every item is multiplied."""
        return Measure(self.sum_of_squares * factor * factor, self.largest * abs(factor))

    def norm(self, norm_type: float) -> float:
        """Of type 2 or infinity."""
        return self.largest if math.isinf(norm_type) else math.sqrt(self.sum_of_squares)

    @property
    def is_finite(self) -> bool:
        """Whether every item is."""
        return math.isfinite(self.largest)


def total(measures: Iterable[Measure]) -> Measure:
    """Of all of them, in their order."""
    sum_of_squares, largest = 0.0, 0.0
    for each in measures:
        sum_of_squares += each.sum_of_squares
        if each.largest > largest or math.isnan(each.largest):
            largest = each.largest
    return Measure(sum_of_squares, largest)


REDUCTIONS: dict[str, Callable[[Measure], float]] = {
    "sum of squares": lambda measure: measure.sum_of_squares,
    "max": lambda measure: measure.largest,
    "finite": lambda measure: float(measure.is_finite),
}
"""By the names under which users ask for them."""
