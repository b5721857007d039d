"""Gain against bandwidth: the axis on which every paper's figure is one point."""

from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise
from math import exp, log
from typing import NamedTuple

from bench.study.recipe import gain, percent
from bench.study.runs import Outcome, Runs
from bench.study.settings import at, baseline, scheduled
from legato.core import Plan, Workload
from legato.sim import Cluster


class Point(NamedTuple):
    """Two ways to train at one bandwidth."""

    gbps: float
    before: Outcome
    after: Outcome

    @property
    def gain(self) -> float:
        return gain(self.before.iteration_s, self.after.iteration_s)


def sweep(
    runs: Runs,
    task: Workload,
    cluster: Cluster,
    gbps: Sequence[float],
    before: Callable[[Workload, Cluster], Plan] = baseline,
    after: Callable[[Workload, Cluster], Iterable[Plan]] = scheduled,
) -> list[Point]:
    """The same comparison at every bandwidth."""
    points = []
    for each in gbps:
        links = at(cluster, each)
        points.append(
            Point(each, runs.run(task, links, before(task, links)), runs.best(task, links, after(task, links)))
        )
    return points


def crossing(points: Sequence[Point], level: float) -> float | None:
    """The highest bandwidth at which the gain is that much, between the points if need be."""
    falling = sorted(points, key=lambda point: -point.gbps)
    for fast, slow in pairwise(falling):
        if fast.gain < level <= slow.gain:
            part = (level - fast.gain) / (slow.gain - fast.gain)
            return exp(log(fast.gbps) + part * (log(slow.gbps) - log(fast.gbps)))
    return None


def gain_at(points: Sequence[Point], gbps: float) -> float:
    """The gain at one of the bandwidths that were simulated."""
    return next(point.gain for point in points if point.gbps == gbps)


def why(points: Sequence[Point], published: float, nominal_gbps: float) -> str:
    """One sentence on a published gain, from the whole curve: where it lies on it, or that it lies above it."""
    peak = max(points, key=lambda point: point.gain)
    where = crossing(points, published)
    nominal = f"at the nominal {nominal_gbps:g} Gbit/s the gain is {percent(gain_at(points, nominal_gbps))}."
    if where is not None:
        return (
            f"The curve passes {percent(published)} at {where:.3g} Gbit/s, {where / nominal_gbps * 100:.0f} % of the "
            f"links' rate; {nominal}"
        )
    return (
        f"Order and partition gain at most {percent(peak.gain)} at any bandwidth (at {peak.gbps:g} Gbit/s, with "
        f"{peak.after.bound_s / peak.after.iteration_s * 100:.0f} % of the bound's speed), so the published baseline "
        f"must have lost more than they can give; {nominal}"
    )
