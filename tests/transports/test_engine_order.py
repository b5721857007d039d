"""The engine starts parts in the order of the core's scheduler."""

from dataclasses import replace

import numpy as np
import pytest

from legato.core.part import Part, Stage
from legato.core.policies import ByteScheduler
from legato.core.scheduler import Finished, Ready, Scheduler, Sent, Start
from legato.core.shards import Deployment
from legato.core.task import Task, Tensor
from legato.testing.native_job import job_configs, run_job
from legato.transports.buffer import Array
from legato.transports.declaration import Declaration
from legato.transports.native.group import NativeGroup
from legato.transports.native.handle import Handle

SIZES = [40_000, 12, 0, 65_536, 100_000, 4, 30_000, 250_000]


def trace_of_a_run(partition_bytes: int, credit_bytes: int) -> list[tuple[int, str, int, int, int, int]]:
    """What rank 0's engine did in five steps whose gradients come last layer first."""
    configs = job_configs(Deployment(num_workers=2))
    configs = [replace(config, partition_bytes=partition_bytes, credit_bytes=credit_bytes) for config in configs]

    def body(group: NativeGroup) -> list[tuple[int, str, int, int, int, int]]:
        group.session.engine.set_trace(0, 4, 100_000)
        arrays: list[Array] = [np.ones(size // 4, np.float32) for size in SIZES]
        group.declare([Declaration(name=f"t{i}", shape=array.shape, dtype="float32") for i, array in enumerate(arrays)])
        for step in range(5):
            handles: dict[int, Handle[object]] = {}
            for index in reversed(range(len(SIZES))):
                handles[index] = group.push_pull_async(f"t{index}", arrays[index], priority=index, step=step)
            for handle in handles.values():
                handle.wait()
        return group.session.engine.take_events()

    return run_job(configs, body)[0]


@pytest.mark.parametrize(("partition_bytes", "credit_bytes"), [(8192, 16384), (4096, 100_000), (1 << 20, 1)])
def test_the_engine_starts_parts_in_the_order_of_the_core(partition_bytes: int, credit_bytes: int) -> None:
    """Differential: replay what became ready, was sent and finished; the core must start the same parts."""
    tensors = [Tensor(name=f"t{i}", num_bytes=size, priority=i) for i, size in enumerate(SIZES)]
    plan = ByteScheduler().plan(tensors, partition_bytes=partition_bytes, credit_bytes=credit_bytes)
    scheduler = Scheduler(tensors, plan)
    started: list[tuple[int, int, int, int]] = []
    expected: list[tuple[int, int, int, int]] = []
    seen: set[Task] = set()

    def take(event: Ready | Sent | Finished) -> None:
        for command in scheduler.handle(0.0, event):
            if isinstance(command, Start):
                part = command.part
                if part.length:
                    expected.append((part.bucket, part.step, part.offset, part.length))
                else:
                    take(Finished(part))  # the engine has nothing to do for an empty tensor

    for _, what, tensor, step, offset, length in trace_of_a_run(partition_bytes, credit_bytes):
        if what == "start":
            started.append((tensor, step, offset, length))
        elif what == "sent":
            take(Sent(Part(step, tensor, Stage.SYNC, offset, length)))
        elif what == "finish":
            take(Finished(Part(step, tensor, Stage.SYNC, offset, length)))
        elif what in ("ready", "done") and Task(step, tensor) not in seen:
            seen.add(Task(step, tensor))
            take(Ready(Task(step, tensor)))
    assert len(started) == 5 * sum(-(-size // partition_bytes) for size in SIZES)
    assert started == expected
    assert scheduler.idle
