"""A whole emulated step against its bound, by priority and first come first served, on the same links.

The engine alone (bench/emulate.py); `legato bench` has such steps through `legato.torch.schedule`.
"""

import statistics
from collections.abc import Iterator
from dataclasses import dataclass

from bench import emulate
from bench.report import Figure
from bench.testbed import crew, goodput
from bench.testbed.launch import Launch
from bench.testbed.testbed import Testbed
from legato.core import Workload
from legato.sim import zoo

MODELS = ("vgg16", "resnet50", "bert-large", "gpt2")


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


def measure() -> Iterator[Figure]:
    for setting in SETTINGS:
        with Testbed(hosts=setting.num_hosts, gbps=setting.gbps) as testbed:
            for model in MODELS:
                yield from measure_model(testbed, setting, model)


def measure_model(testbed: Testbed, setting: Setting, model: str) -> Iterator[Figure]:
    """One model on one testbed; goodput is measured right before, because it drifts with the machine."""
    links = goodput.measure(testbed)
    workload = balanced(model, setting, links.bytes_per_s)
    times = crew.run(
        testbed,
        range(setting.num_hosts),
        emulate.train,
        Launch(num_workers=setting.num_hosts, conductor=testbed.address(0)),
        workload,
        partition_bytes=setting.partition_bytes,
        num_steps=setting.num_steps,
        num_rounds=setting.num_rounds,
    )
    best_s = emulate.shortest_step_s(workload, times, setting.num_hosts, links.bytes_per_s)
    for policy in emulate.POLICIES:
        steps_s = [second for rank in times for second in rank.policies[policy]]
        yield Figure(
            section="steps",
            case=f"{model}, {setting.num_hosts} × {setting.gbps:g} Gbit/s, {policy}",
            value=statistics.median(steps_s) / best_s,
            unit="T*",
            at_most=setting.at_most if policy == "priority" else None,
            details={
                "step ms": statistics.median(steps_s) * 1e3,
                "T* ms": best_s * 1e3,
                "alone ms": statistics.median(second for rank in times for second in rank.alone) * 1e3,
                "goodput": links.one_to_one * 8e-9 / setting.gbps,
                "all-to-all": links.all_to_all * 8e-9 / setting.gbps,
            },
        )


def balanced(model: str, setting: Setting, bytes_per_s: float) -> Workload:
    """The model's shape, with as much communication as computation: where scheduling matters most."""
    shape = zoo.workload(model)
    scaled = shape.scaled(bytes_by=setting.num_bytes / shape.num_bytes)
    communication_s = 2 * (setting.num_hosts - 1) / setting.num_hosts * scaled.num_bytes / bytes_per_s
    return scaled.scaled(time_by=communication_s / scaled.compute_s)
