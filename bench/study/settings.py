"""What the papers ran on, as workloads, clusters and plans of the simulator.

Assumptions, where a paper is silent: what an accelerator reaches, and what an operation costs. They move the place on
the bandwidth axis at which something happens, not what happens, so every recipe that depends on them shows the axis.
"""

from collections.abc import Iterator
from dataclasses import replace
from typing import TypedDict

from legato.core import Plan, Policy, Workload
from legato.core.policies import ByteScheduler, Fifo, MergedWaitFree, WaitFree
from legato.sim import Architecture, Cluster
from legato.sim.zoo import DEFAULT_TFLOPS, workload

MB = 1_000_000
MIB = 1 << 20

V100_TFLOPS = {"vgg16": 21.0, "densenet121": 4.5, "transformer-big": 12.0, "bert-base": 12.0, "bert-large": 12.0}
"""What a V100 reaches in float32, where it differs from the zoo's: Winograd needs fewer operations than are counted
for VGG's 3 × 3 convolutions (225 images a second), DenseNet waits for memory (260), transformers are one product
after the other."""

TITLES = {
    "alexnet": "AlexNet",
    "vgg16": "VGG16",
    "resnet50": "ResNet50",
    "densenet121": "DenseNet121",
    "transformer-big": "Transformer",
    "bert-base": "BERT-base",
    "bert-large": "BERT-large",
    "gpt2": "GPT-2",
}


class Cost(TypedDict):
    """What an operation costs beside its bytes."""

    latency_s: float
    overhead_s: float


FREE = Cost(latency_s=0.0, overhead_s=0.0)
RDMA = Cost(latency_s=5e-6, overhead_s=10e-6)
"""One hop, and what an operation costs the sender, where the network card does the work."""
TCP = Cost(latency_s=30e-6, overhead_s=50e-6)
"""The same over TCP: system calls, copies and wake-ups."""


def on_v100(model: str, *, batch: int | None = None, classes: int = 1000) -> Workload:
    """A model of the zoo at a V100's speed; `classes` widens the last layer, as ByteScheduler's evaluation does."""
    task = workload(model, batch=batch, tflops=V100_TFLOPS.get(model, DEFAULT_TFLOPS))
    last = task.layers[-1]
    by = classes / 1000
    wider = replace(
        last, num_bytes=round(last.num_bytes * by), forward_s=last.forward_s * by, backward_s=last.backward_s * by
    )
    return task if classes == 1000 else Workload(task.name, (*task.layers[:-1], wider))


def baseline(task: Workload, cluster: Cluster) -> Plan:
    """A framework without a scheduler: MXNet's engine over a parameter server, DDP's or Horovod's buckets in a ring."""
    policy: Policy = Fifo() if cluster.architecture is Architecture.PS else WaitFree()
    return policy.plan(task.tensors)


def scheduled(task: Workload, cluster: Cluster) -> Iterator[Plan]:
    """ByteScheduler's plans that a tuner would try: partition × credit; in a ring small tensors are merged as well."""
    for partition_bytes in (1 * MB, 2 * MB, 4 * MB, 8 * MB, 16 * MB):
        for parts in (1, 4):
            yield priority(task, cluster, partition_bytes, parts)


def priority(task: Workload, cluster: Cluster, partition_bytes: int, parts: int) -> Plan:
    """ByteScheduler with that partition and a credit of that many parts."""
    fusion_bytes = 0 if cluster.architecture is Architecture.PS else partition_bytes
    policy = ByteScheduler(fusion_bytes=fusion_bytes)
    return policy.plan(task.tensors, partition_bytes=partition_bytes, credit_bytes=parts * partition_bytes)


def no_overlap(task: Workload) -> Plan:
    """Everything as one bucket after backward, and forward after everything."""
    return MergedWaitFree().plan(task.tensors, buckets=(tuple(range(len(task.tensors))),))


def at(cluster: Cluster, gbps: float) -> Cluster:
    """The same cluster with other links."""
    return replace(cluster, gbps=gbps)
