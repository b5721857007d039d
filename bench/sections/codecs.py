"""What compression gains on slow links: VGG16's shape by every codec, in turns without one.

Each is a call of `legato.torch.schedule(..., compression=)` on a sleeping model (bench/sleeper.py), whose gradients are
by chance: as far as a codec can tell, like real ones.
"""

import math
import statistics
from collections.abc import Iterator
from dataclasses import dataclass

import torch

from bench.grid.calls import Call
from bench.grid.systems import Legato, Place
from bench.report import Figure
from bench.sections.steps import Setting, balanced
from bench.sleeper import SleepingLayer
from bench.testbed import crew, goodput
from bench.testbed.launch import PORT, Launch
from bench.testbed.surroundings import surroundings
from bench.testbed.testbed import Testbed
from legato.core import Workload

SCHEMES = ("fp16", "int8+ef", "dithering:7+ef", "topk:0.01+ef", "randomk:0.01+ef", "onebit+ef")
COMPUTE_SHARE = 0.25
"""Computation over plain communication: where a link is the bottleneck, as it is for whoever compresses."""
SETTINGS = (
    Setting(
        num_hosts=4, gbps=1, num_bytes=50_000_000, num_steps=3, num_rounds=2, partition_bytes=262144, at_most=math.inf
    ),
    Setting(
        num_hosts=4, gbps=0.1, num_bytes=12_500_000, num_steps=2, num_rounds=1, partition_bytes=65536, at_most=math.inf
    ),
)


@dataclass(frozen=True, kw_only=True)
class Run:
    """Of one rank and scheme."""

    steps_s: list[float]
    bytes_per_step: float


def measure() -> Iterator[Figure]:
    for setting in SETTINGS:
        with Testbed(hosts=setting.num_hosts, gbps=setting.gbps) as testbed:
            links = goodput.measure(testbed)
            workload = balanced("vgg16", setting, links.bytes_per_s).scaled(time_by=COMPUTE_SHARE)
            with surroundings():
                ranks = crew.run(testbed, range(setting.num_hosts), train, testbed.address(0), workload, setting)
            yield from figures(setting, workload, ranks)


def train(station: crew.Station, address: str, workload: Workload, setting: Setting) -> dict[str | None, Run]:
    """One rank: every scheme in turn, over and over."""
    torch.set_num_threads(1)
    torch.manual_seed(station.rank)
    trainers = {}
    for number, scheme in enumerate((None, *SCHEMES)):
        launch = Launch(num_workers=setting.num_hosts, conductor=address, port=PORT + number)
        call = Call(transport="native", partition_bytes=setting.partition_bytes, compression=scheme)
        trainers[scheme] = Legato(Place(rank=station.rank, launch=launch), workload, call)
        for layer in trainers[scheme].model.modules():
            if isinstance(layer, SleepingLayer):
                layer.gradient.normal_()
    for trainer in trainers.values():
        station.meet()
        trainer.turn(trainer.warm_up_steps)
    runs: dict[str | None, Run] = {}
    for _ in range(setting.num_rounds):
        for scheme, trainer in trainers.items():
            station.meet()
            before = _bytes_sent(trainer)
            steps_s = trainer.turn(setting.num_steps)
            earlier = runs[scheme].steps_s if scheme in runs else []
            # One step more is run than measured.
            sent = (_bytes_sent(trainer) - before) / (setting.num_steps + 1)
            runs[scheme] = Run(steps_s=earlier + steps_s, bytes_per_step=sent)
    for trainer in trainers.values():
        trainer.close()
    return runs


def _bytes_sent(trainer: Legato) -> int:
    return trainer.job.group.session.engine.statistics()["bytes_sent"]


def figures(setting: Setting, workload: Workload, ranks: list[dict[str | None, Run]]) -> Iterator[Figure]:
    plain_s, plain_bytes = _medians(ranks, None)
    for scheme in SCHEMES:
        step_s, num_bytes = _medians(ranks, scheme)
        yield Figure(
            section="codecs",
            case=f"vgg16, {setting.num_hosts} × {setting.gbps:g} Gbit/s, {scheme}",
            value=plain_s / step_s,
            unit="× plain",
            at_least=1.0,
            details={
                "step ms": step_s * 1e3,
                "plain ms": plain_s * 1e3,
                "compute ms": workload.compute_s * 1e3,
                "bytes over plain": num_bytes / plain_bytes,
            },
        )


def _medians(ranks: list[dict[str | None, Run]], scheme: str | None) -> tuple[float, float]:
    return (
        statistics.median(second for rank in ranks for second in rank[scheme].steps_s),
        statistics.median(rank[scheme].bytes_per_step for rank in ranks),
    )
