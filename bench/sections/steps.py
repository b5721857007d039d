"""A whole step of a replayed model against its bound, by priority and first come first served, on the same links.

Both are calls of `legato.torch.schedule` on the same sleeping model (bench/sleeper.py).
"""

import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch

from bench import crew, goodput
from bench.grid.calls import Call
from bench.grid.measure import shortest_s
from bench.grid.systems import Alone, Legato, Place, Trainer
from bench.launch import PORT, Launch
from bench.report import Figure
from bench.surroundings import surroundings
from bench.testbed import Testbed
from legato.core import Workload
from legato.sim import Cluster, zoo

MODELS = ("vgg16", "resnet50", "bert-large", "gpt2")
ALONE = "alone"
POLICIES = {"priority": "auto", "fifo": "fifo"}
"""As figures name them, and as `schedule` does."""


@dataclass(frozen=True, kw_only=True)
class Setting:
    """Hosts, links, and how much a model is shrunk to keep a step short on them."""

    num_hosts: int
    gbps: float
    num_bytes: int
    """What the model is scaled to."""
    num_steps: int
    """Measured in each of the rounds, after one that is not."""
    num_rounds: int
    """How often every policy has its turn."""
    partition_bytes: int
    """Largest part: about half a millisecond of the line."""
    at_most: float
    """What priority should stay below, over T*."""


SETTINGS = (
    Setting(num_hosts=4, gbps=1, num_bytes=50_000_000, num_steps=4, num_rounds=3, partition_bytes=65536, at_most=1.03),
    Setting(num_hosts=4, gbps=4, num_bytes=50_000_000, num_steps=8, num_rounds=4, partition_bytes=262144, at_most=1.1),
    Setting(num_hosts=8, gbps=0.5, num_bytes=50_000_000, num_steps=3, num_rounds=2, partition_bytes=65536, at_most=1.1),
    Setting(num_hosts=4, gbps=0.1, num_bytes=12_500_000, num_steps=3, num_rounds=2, partition_bytes=16384, at_most=1.1),
)

StepTimes = dict[str, list[float]]
"""Seconds of each measured step on one rank, by policy and alone."""


def measure() -> Iterator[Figure]:
    for setting in SETTINGS:
        with Testbed(hosts=setting.num_hosts, gbps=setting.gbps) as testbed:
            for model in MODELS:
                yield from measure_model(testbed, setting, model)


def measure_model(testbed: Testbed, setting: Setting, model: str) -> Iterator[Figure]:
    """One model on one testbed; goodput is measured right before, because it drifts with the machine."""
    links = goodput.measure(testbed)
    workload = balanced(model, setting, links.bytes_per_s)
    with surroundings():
        times = crew.run(testbed, range(setting.num_hosts), train, testbed.address(0), workload, setting)
    alone_s = _median_s(times, ALONE)
    best_s = shortest_s(workload, alone_s, Cluster(workers=setting.num_hosts, gbps=links.bytes_per_s * 8e-9))
    for policy in POLICIES:
        step_s = _median_s(times, policy)
        yield Figure(
            section="steps",
            case=f"{model}, {setting.num_hosts} × {setting.gbps:g} Gbit/s, {policy}",
            value=step_s / best_s,
            unit="T*",
            at_most=setting.at_most if policy == "priority" else None,
            details={
                "step ms": step_s * 1e3,
                "T* ms": best_s * 1e3,
                "alone ms": alone_s * 1e3,
                "goodput": links.one_to_one * 8e-9 / setting.gbps,
                "all-to-all": links.all_to_all * 8e-9 / setting.gbps,
            },
        )


def train(station: crew.Station, address: str, workload: Workload, setting: Setting) -> StepTimes:
    """One rank: without communication and with each policy, in turns, so that drift hits all."""
    torch.set_num_threads(1)
    places = [
        Place(rank=station.rank, launch=Launch(num_workers=setting.num_hosts, conductor=address, port=PORT + number))
        for number in range(1 + len(POLICIES))
    ]
    trainers: dict[str, Trainer] = {ALONE: Alone(places[0], workload)}
    for (name, policy), place in zip(POLICIES.items(), places[1:], strict=True):
        call = Call(transport="native", policy=policy, partition_bytes=setting.partition_bytes)
        trainers[name] = Legato(place, workload, call)
    for trainer in trainers.values():
        station.meet()
        trainer.turn(trainer.warm_up_steps)
    times: StepTimes = {name: [] for name in trainers}
    for _ in range(setting.num_rounds):
        for name, trainer in trainers.items():
            station.meet()
            times[name] += trainer.turn(1 if name == ALONE else setting.num_steps)
    for trainer in trainers.values():
        trainer.check()
        trainer.close()
    return times


def _median_s(times: Sequence[StepTimes], name: str) -> float:
    return statistics.median(second for rank in times for second in rank[name])


def balanced(model: str, setting: Setting, bytes_per_s: float) -> Workload:
    """The model's shape, with as much communication as computation: where scheduling matters most."""
    shape = zoo.workload(model)
    scaled = shape.scaled(bytes_by=setting.num_bytes / shape.num_bytes)
    communication_s = 2 * (setting.num_hosts - 1) / setting.num_hosts * scaled.num_bytes / bytes_per_s
    return scaled.scaled(time_by=communication_s / scaled.compute_s)
