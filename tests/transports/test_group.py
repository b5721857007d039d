"""Collective operations: every deployment, exact results, typed errors."""

import random
import threading
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest

from legato.core.policies import Fifo
from legato.core.shards import Deployment
from legato.core.task import Tensor
from legato.errors import ClosedError, DeadlineError, InputError, MismatchError, PlanError
from legato.testing.native_job import job_configs, run_job
from legato.testing.ranks import run_ranks
from legato.transports.buffer import Buffer
from legato.transports.declaration import Declaration
from legato.transports.native.group import NativeGroup

JOINT = Deployment(num_workers=3)
DEPLOYMENTS = {
    "alone": Deployment(num_workers=1),
    "joint": JOINT,
    "separate": Deployment(num_workers=3, num_servers=2, workers_serve=False),
    "mixed": Deployment(num_workers=3, num_servers=1),
    "more servers than workers": Deployment(num_workers=2, num_servers=3),
}
everywhere = pytest.mark.parametrize("deployment", DEPLOYMENTS.values(), ids=DEPLOYMENTS)


def on_each(deployment: Deployment, body: Callable[[NativeGroup], Any], **member: object) -> list[Any]:
    return run_job(job_configs(deployment, **member), body)


@everywhere
def test_every_operation(deployment: Deployment) -> None:
    size = deployment.num_workers

    def body(group: NativeGroup) -> None:
        rank = group.rank
        values = np.arange(100_000, dtype=np.float32) % 7 + rank
        expected = np.arange(100_000, dtype=np.float32) % 7 * size + sum(range(size))
        np.testing.assert_array_equal(group.push_pull("sum", values), expected)

        weights = np.full((300, 7), rank, np.float64)
        group.broadcast("weights", weights, root=size - 1)
        assert (weights == size - 1).all()

        rows = np.full((rank, 2), rank, np.int32)
        gathered = group.allgather("rows", rows)
        assert gathered.tolist() == [[r, r] for r in range(size) for _ in range(r)]

        share = group.reducescatter("share", np.arange(10, dtype=np.int64).reshape(5, 2), reduction="max")
        assert share.tolist() == np.array_split(np.arange(10).reshape(5, 2), size)[rank].tolist()

        sent = np.repeat(np.arange(size, dtype=np.int32), range(1, size + 1)) + 10 * rank
        got, splits = group.alltoall("exchange", sent, list(range(1, size + 1)))
        assert splits == (rank + 1,) * size
        assert got.tolist() == [rank + 10 * r for r in range(size) for _ in range(rank + 1)]
        group.barrier()

    on_each(deployment, body)


@pytest.mark.parametrize(
    ("reduction", "expected"), [("sum", 9), ("average", 3), ("min", 2), ("max", 4), ("product", 24)]
)
@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "int8", "uint8", "int32", "int64", "int16"])
def test_reductions(reduction: str, expected: int, dtype: str) -> None:
    def body(group: NativeGroup) -> Any:
        return group.push_pull("t", np.full(5, 2 + group.rank, dtype), reduction=reduction).tolist()

    assert on_each(JOINT, body) == [[expected] * 5] * 3


def test_raw_memory_and_other_buffers() -> None:
    def body(group: NativeGroup) -> None:
        array = np.ones(10, np.float32)
        group.push_pull("triple", (array.ctypes.data, array.nbytes, "float32"))
        assert array.tolist() == [2.0] * 10
        brain = np.full(4, 0x3F80, np.uint16)  # 1.0 as bfloat16
        group.push_pull("brain", (brain.ctypes.data, brain.nbytes, "bfloat16"))
        assert brain.tolist() == [0x4000] * 4
        raw = bytearray(b"\1\2\3")
        group.push_pull("bytes", raw)
        assert raw == b"\2\4\6"
        buffer = Buffer(address=array.ctypes.data, shape=(2, 5), dtype="float32", owner=array)
        out = np.zeros((2, 5), np.float32)
        assert group.push_pull("shaped", buffer, out=out) is out
        assert out.tolist() == [[4.0] * 5] * 2
        assert array.tolist() == [2.0] * 10
        gathered = group.allgather("brains", (brain.ctypes.data, brain.nbytes, "bfloat16"))
        assert gathered.tolist() == [0x4000] * 8

    on_each(Deployment(num_workers=2), body)


def test_empty_tensors() -> None:
    def body(group: NativeGroup) -> None:
        empty = np.empty((0, 3), np.float32)
        assert group.push_pull("p", empty) is empty
        group.broadcast("b", empty, root=0)
        assert group.allgather("g", empty).shape == (0, 3)
        assert group.reducescatter("r", empty).shape == (0, 3)
        assert group.alltoall("a", empty)[1] == (0, 0)

    on_each(Deployment(num_workers=2), body)


@everywhere
def test_ranks_submit_in_different_orders(deployment: Deployment) -> None:
    """Undeclared names, another random order on each rank and in each step: nobody waits for an order."""
    names = [f"t{index}" for index in range(20)]

    def body(group: NativeGroup) -> None:
        order = random.Random(group.rank)
        for step in range(10):
            arrays = {name: np.full(1000 + 37 * i, i + step, np.float32) for i, name in enumerate(names)}
            handles = {
                name: group.push_pull_async(name, arrays[name], priority=i, step=step)
                for i, name in order.sample(list(enumerate(names)), len(names))
            }
            for i, name in order.sample(list(enumerate(names)), len(names)):
                handles[name].wait()
                assert handles[name].poll()
                assert (arrays[name] == (i + step) * group.size).all()

    on_each(deployment, body)


def test_asynchronous_gathers_may_be_awaited_in_any_order() -> None:
    def body(group: NativeGroup) -> None:
        first = group.allgather_async("x", np.full(group.rank + 1, group.rank, np.int64))
        second = group.alltoall_async("y", np.arange(group.size, dtype=np.int64))
        handles: list[Any] = [first, second] if group.rank else [second, first]
        for handle in handles:
            handle.wait()
        assert first.wait().tolist() == [0, 1, 1]
        assert second.wait()[0].tolist() == [group.rank] * 2

    on_each(Deployment(num_workers=2), body)


@everywhere
def test_a_plan_changes_while_tasks_are_in_flight(deployment: Deployment) -> None:
    partitions: list[int | None] = [4096, None, 1000, 65536]
    known = [Tensor(name=f"t{i}", num_bytes=4 * (5000 + 100 * i), priority=i) for i in range(3)]

    def body(group: NativeGroup) -> None:
        for step in range(24):
            if group.rank == 0 and step % 6 == 0:
                plan = Fifo().plan(known, partition_bytes=partitions[step // 6], credit_bytes=9000)
                group.set_plan(plan, step + 3)
            arrays = [np.full(5000 + 100 * i, group.rank + step, np.float32) for i in range(3)]
            handles = [group.push_pull_async(f"t{i}", array, step=step) for i, array in enumerate(arrays)]
            for handle, array in zip(handles, arrays, strict=True):
                handle.wait()
                assert (array == group.size * step + sum(range(group.size))).all()

    on_each(deployment, body)


def test_a_plan_is_refused_when_its_step_has_begun() -> None:
    def body(group: NativeGroup) -> None:
        group.push_pull("t", np.ones(3), step=5)
        if group.rank == 0:
            with pytest.raises(PlanError, match=r"rank \d has begun step [56] already; choose a later one"):
                group.set_plan(Fifo().plan([Tensor(name="t", num_bytes=24, priority=0)]), 5)
        group.push_pull("t", np.ones(3), step=6)

    on_each(JOINT, body)


def test_steps_of_a_name_only_grow() -> None:
    def body(group: NativeGroup) -> None:
        group.push_pull("t", np.ones(3), step=5)
        with pytest.raises(InputError, match="step is 5, but step 5 has been there already"):
            group.push_pull("t", np.ones(3), step=5)
        handle = None
        if group.rank == 0:
            handle = group.push_pull_async("t", np.ones(3), step=6)
            with pytest.raises(InputError, match="step 6 is still under way; wait for its handle first"):
                group.push_pull("t", np.ones(3), step=7)
        group.barrier()
        if handle is None:
            handle = group.push_pull_async("t", np.ones(3), step=6)
        handle.wait()

    on_each(Deployment(num_workers=2), body)


@pytest.mark.parametrize(
    ("declare", "said"),
    [
        (
            lambda rank: Declaration(name="w", shape=(3, 4) if rank == 0 else (4, 3), dtype="float32"),
            r"tensor 'w': rank \d says float32 \(\d, \d\), rank \d says float32 \(\d, \d\)",
        ),
        (
            lambda rank: Declaration(name="w", shape=(3,), dtype="float32" if rank == 0 else "float64"),
            r"tensor 'w': rank \d says float\d\d \(3,\), rank \d says float\d\d \(3,\)",
        ),
    ],
    ids=["shape", "dtype"],
)
def test_a_mismatch_is_an_error_on_every_rank_at_once(declare: Callable[[int], Declaration], said: str) -> None:
    def body(group: NativeGroup) -> None:
        with pytest.raises(MismatchError, match=said) as caught:
            group.declare([declare(group.rank)])
        assert caught.value.tensor == "w"
        group.barrier()  # the job goes on

    on_each(JOINT, body)


def test_operations_and_roots_must_agree() -> None:
    def body(group: NativeGroup) -> None:
        with pytest.raises(MismatchError, match=r"with root \d, rank \d says broadcast of float64 \(3,\) with root \d"):
            group.broadcast("weights", np.ones(3), root=group.rank)
        with pytest.raises(InputError, match=r"tensor 'b': rank \d says root 7, it must be 0 to 1"):
            group.broadcast("b", np.ones(3), root=7)
        use = group.push_pull if group.rank else partial(group.broadcast, root=0)
        with pytest.raises(MismatchError, match="broadcast of float64"):
            use("op", np.ones(3))

    on_each(Deployment(num_workers=2), body)


def test_a_name_has_one_meaning() -> None:
    """Rank 1 gives a name a new meaning; rank 0 hears of it when it uses the name next."""

    def body(group: NativeGroup) -> None:
        group.push_pull("t", np.ones(3))
        if group.rank == 1:
            with pytest.raises(
                MismatchError, match=r"rank 1 declared .*before and says .* now; one name has one meaning"
            ):
                group.push_pull("t", np.ones(4))
        group.barrier()
        with pytest.raises(MismatchError, match="one name has one meaning"):
            group.push_pull("t", np.ones(3))

    on_each(Deployment(num_workers=2), body)


def test_a_rank_that_never_declares_is_named_at_the_deadline() -> None:
    heard = threading.Barrier(3, timeout=10.0)

    def body(group: NativeGroup) -> None:
        if group.rank != 2:
            with pytest.raises(DeadlineError, match=r"'lonely': ranks 2 did not declare it within 0\.3 s") as caught:
                group.declare([Declaration(name="lonely", shape=(1,), dtype="int8")])
            assert (caught.value.rank, caught.value.tensor) == (2, "lonely")
        heard.wait()

    on_each(JOINT, body, timeout_s=0.3)


def test_a_rank_that_does_not_send_is_named() -> None:
    configs = job_configs(Deployment(num_workers=2))
    configs = [replace(config, engine=replace(config.engine, heartbeat_s=0.5)) for config in configs]
    said = r"tensor 't', step 1: not done within 2 s: ranks 1 have not sent it"

    def body(group: NativeGroup) -> None:
        group.push_pull("t", np.ones(3), step=0)
        handle = None
        if group.rank == 0:
            handle = group.push_pull_async("t", np.ones(3), step=1)
            with pytest.raises(DeadlineError, match=said) as caught:
                handle.wait(2.0)
            assert (caught.value.rank, caught.value.tensor, caught.value.step) == (1, "t", 1)
        group.barrier()
        (handle or group.push_pull_async("t", np.ones(3), step=1)).wait()

    run_job(configs, body)


def test_reductions_must_agree() -> None:
    said = r"tensor 't': rank \d says .* by (sum|max), rank \d says .* by (sum|max)"

    def body(group: NativeGroup) -> None:
        with pytest.raises(MismatchError, match=said):
            group.push_pull("t", np.ones(3), reduction="sum" if group.rank else "max")

    on_each(Deployment(num_workers=2), body)


@pytest.mark.parametrize(
    ("action", "said"),
    [
        (lambda group: group.push_pull("t", np.ones(3), reduction="mean"), "reduction is 'mean', accepted are sum"),
        (lambda group: group.push_pull("t", np.ones(3), out=np.ones(4)), "out is float64 of 32 bytes"),
        (lambda group: group.push_pull("t", np.ones((4, 4))[:, 1]), "not contiguous"),
        (lambda group: group.push_pull("t", np.ones(3, np.complex64)), "has dtype complex64, accepted are float32"),
        (lambda group: group.push_pull("t", "words"), "is a str; accepted are numpy arrays"),
        (lambda group: group.push_pull("t", b"constant"), "read-only"),
        (lambda group: group.push_pull("t", (0, 8, "float32")), "has 8 bytes at 0x0"),
        (lambda group: group.push_pull("t", (1, 7, "float32")), "not a whole number"),
        (lambda group: group.push_pull("t", (1, 8, "float31")), r"a raw buffer is \(address, num_bytes, dtype\)"),
        (lambda group: group.push_pull("", np.ones(3)), "a name has 1 to"),
        (lambda group: group.allgather("t", np.float32(3)), "accepted are|no dimensions"),
        (lambda group: group.alltoall("t", np.ones(3), [1, 1]), r"splits are \[1, 1\]"),
        (lambda group: group.reducescatter("t", np.array(3.0)), "no dimensions"),
    ],
)
def test_wrong_values_are_refused(action: Callable[[NativeGroup], object], said: str) -> None:
    def body(group: NativeGroup) -> None:
        with pytest.raises(InputError, match=said):
            action(group)

    on_each(Deployment(num_workers=1), body)


def test_memory_that_does_not_fit_its_tensor_is_refused() -> None:
    """A caller that has the channel of a tensor gives an address and its bytes, which C++ compares."""

    def body(group: NativeGroup) -> None:
        value = np.ones(3, np.float32)
        group.push_pull("t", value)
        declared = group.session.member.meaning("t")
        assert declared is not None
        channel = group.channel(declared)
        with pytest.raises(InputError, match="tensor 't' is declared with 12 bytes, but its source has 8"):
            channel.launch(
                source=value.ctypes.data, destination=value.ctypes.data, num_bytes=8, memory=value, result=None
            )

    on_each(Deployment(num_workers=1), body)


def test_a_closed_group_says_so() -> None:
    def body(group: NativeGroup) -> None:
        group.close()
        group.close()
        with pytest.raises(ClosedError, match="the group is closed"):
            group.push_pull("t", np.ones(3))

    on_each(Deployment(num_workers=1), body)


def test_a_rank_that_has_left_cannot_be_waited_for() -> None:
    def body(group: NativeGroup) -> None:
        if group.rank == 0:
            with pytest.raises(ClosedError, match="tensor 't': rank 1 has left the job") as caught:
                group.push_pull("t", np.ones(3))
            assert caught.value.rank == 1

    on_each(Deployment(num_workers=2), body)


def test_several_connections_and_threads() -> None:
    configs = [
        replace(config, engine=replace(config.engine, num_io_threads=2))
        for config in job_configs(Deployment(num_workers=3), num_connections=3)
    ]

    def body(group: NativeGroup) -> None:
        array = np.full(3_000_000, group.rank, np.float32)
        assert (group.push_pull("t", array) == 3).all()

    run_job(configs, body)


def test_init_shutdown_init_again_on_the_same_port() -> None:
    configs = job_configs(Deployment(num_workers=2))
    for _ in range(5):
        assert run_job(configs, lambda group: group.push_pull("t", np.ones(2)).tolist()) == [[2.0, 2.0]] * 2


def test_two_jobs_live_in_one_process() -> None:
    outer = job_configs(Deployment(num_workers=2))
    inner = job_configs(Deployment(num_workers=2))

    def body(group: NativeGroup) -> None:
        with NativeGroup(inner[group.rank]) as other:
            one = group.push_pull_async("t", np.ones(2))
            two = other.push_pull_async("t", np.full(2, 5.0))
            assert (one.wait() == 2).all()
            assert (two.wait() == 10).all()

    run_job(outer, body)


def test_members_that_contradict_each_other_are_told() -> None:
    configs = job_configs(Deployment(num_workers=2))
    configs[1] = replace(configs[1], partition_bytes=1234)

    def join(config: Any) -> str:
        with pytest.raises(MismatchError) as caught, NativeGroup(config):
            pass
        return str(caught.value)

    said = run_ranks(2, lambda rank: join(configs[rank]))
    expected = "partition_bytes: rank 0 says 262144, rank 1 says 1234; all members must agree on it"
    assert said == [expected, expected]


def test_a_small_credit_does_not_make_ranks_wait_for_each_other() -> None:
    """Each rank begins another tensor, which fills its window: the other's must get through all the same."""
    configs = [replace(config, credit_bytes=1) for config in job_configs(Deployment(num_workers=2))]
    begun = threading.Barrier(2, timeout=10.0)

    def body(group: NativeGroup) -> None:
        names = ["a", "b"] if group.rank else ["b", "a"]
        group.declare([Declaration(name=name, shape=(10,), dtype="float64") for name in ("a", "b")])
        handles = [group.push_pull_async(names[0], np.ones(10), step=0)]
        begun.wait()
        handles.append(group.push_pull_async(names[1], np.ones(10), step=0))
        for handle in handles:
            handle.wait(1.0)

    run_job(configs, body)
