"""A cell: one point of the grid, and the workload that is measured there.

Two kinds of scaling keep a cell within what one machine can do, and every table says which was used:

    scale       bytes and bandwidth divided by the same factor: a step takes as long as it would
    shorten     bytes and computation divided by the same factor: a step is shorter, the ratio of the two stays; below 1
                it is longer, so that what processors do for every layer and tensor does not fill it
"""

from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

from legato.cli.options import read_workload
from legato.core import Workload
from legato.sim import Cluster, Ownership
from legato.sim.zoo import DEFAULT_TFLOPS

_START_UP_S = 20.0
"""Measuring the links, starting processes, importing torch in each."""


@dataclass(frozen=True, kw_only=True)
class Cell:
    """What is measured, and how; the fields are a recipe's."""

    model: str
    gbps: float
    hosts: int
    servers: int
    systems: tuple[str, ...]
    rounds: int
    steps: int
    communication_over_computation: float | None
    at_most_gbps: float
    at_most_bytes: int
    at_least_s: float = 0.0

    @cached_property
    def whole(self) -> Workload:
        """The model as it is."""
        return read_workload(self.model, None, DEFAULT_TFLOPS)

    @property
    def scale(self) -> float:
        return max(self.gbps / self.at_most_gbps, 1.0)

    @property
    def shorten(self) -> float:
        shorten = max(self.whole.num_bytes / self.scale / self.at_most_bytes, 1.0)
        line = self.cluster(self.line_gbps * 1e9 / 8)
        communication_s = self.whole.num_bytes / self.scale * line.seconds_per_byte
        ratio = self.communication_over_computation
        computation_s = self.whole.compute_s if ratio is None else communication_s / ratio
        step_s = max(computation_s, communication_s)
        return min(shorten, step_s / self.at_least_s) if self.at_least_s else shorten

    @property
    def line_gbps(self) -> float:
        """What the links are really shaped to."""
        return self.gbps / self.scale

    def workload(self, bytes_per_s: float) -> Workload:
        """What is trained, over links that deliver so much."""
        scaled = self.whole.scaled(bytes_by=1 / (self.scale * self.shorten), time_by=1 / self.shorten)
        if self.communication_over_computation is None:
            return scaled
        communication_s = scaled.num_bytes * self.cluster(bytes_per_s).seconds_per_byte
        return scaled.scaled(time_by=communication_s / self.communication_over_computation / scaled.compute_s)

    def cluster(self, bytes_per_s: float, *, with_servers: bool = False) -> Cluster:
        """The hosts and their links, for the bound and the simulator."""
        gbps = bytes_per_s * 8e-9
        if with_servers:
            return Cluster(workers=self.hosts, gbps=gbps, servers=self.servers, deployment=Ownership.MIXED)
        return Cluster(workers=self.hosts, gbps=gbps)

    @property
    def num_turns(self) -> int:
        """Of all systems and of training alone; the first one of each warms up."""
        return (1 + len(self.systems)) * (1 + self.rounds)

    def expected_s(self) -> float:
        """About how long the turns of this cell take, for telling the time left."""
        bytes_per_s = self.line_gbps * 0.95e9 / 8
        task = self.workload(bytes_per_s)
        step_s = max(task.compute_s, task.num_bytes * self.cluster(bytes_per_s).seconds_per_byte) * 1.3
        return _START_UP_S + self.num_turns * (self.steps + 2) * step_s

    def key(self) -> dict[str, Any]:
        """What a row must have been measured with to count as this cell's."""
        return {**asdict(self), "systems": list(self.systems)}

    def __str__(self) -> str:
        servers = f" + {self.servers} servers" if self.servers else ""
        scale = f" (scaled ÷ {self.scale:g})" if self.scale > 1 else ""
        return f"{self.model}, {self.hosts} hosts{servers} × {self.gbps:g} Gbit/s{scale}"
