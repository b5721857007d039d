"""The collector: buckets leave when they are whole, from any thread, and native code hears what became of them."""

import ctypes
import threading
import weakref
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from legato._native import Collector, GradientHook, PlainPass, StepGate, collector_api
from tests.engine.lone import Lone
from tests.engine.mesh import EVERYONE, TIMEOUT_S, Array, Mesh, eventually

PART = 4096
Buckets = list[tuple[list[int], int, int]]


_kept: list[Collector] = []
"""They own the memory that engines read, so they outlive them."""


def collector_of(engine: object, num_tensors: int, buckets: Buckets, gate: StepGate | None = None) -> Collector:
    members = [(tensor, f"t{tensor}", PART, None) for tensor in range(num_tensors)]
    made = Collector(engine, gate, members)  # type: ignore[arg-type]
    made.follow(0, buckets)
    _kept.append(made)
    return made


def add(collector: Collector, place: int, array: Array, *, absent: bool = False) -> int:
    return collector.add(place, array.ctypes.data, array.nbytes, absent, array)


@pytest.fixture(autouse=True)
def kept() -> Iterator[None]:
    yield
    _kept.clear()


@pytest.fixture
def worker(kept: None) -> Iterator[Lone]:  # noqa: ARG001 - what is kept goes after it
    """A worker beside a server that does not answer, so that what leaves can be read in its order."""
    with Lone(num_workers=1, num_members=2, chunk_bytes=PART) as lone:
        for tensor in range(4):
            lone.declare(tensor, PART, [(0, PART, 1, EVERYONE, EVERYONE)])
        yield lone


def arrays(count: int) -> list[Array]:
    return [np.full(PART // 4, tensor, np.float32) for tensor in range(count)]


def pushed(worker: Lone, count: int) -> list[tuple[int, int]]:
    """The tensors of the next pushes, and their steps."""
    headers = [worker.peers[1].receive().header for _ in range(count)]
    return [(header.tensor, header.step) for header in headers]


def test_a_bucket_leaves_when_its_last_tensor_comes_in_the_order_of_the_plan(worker: Lone) -> None:
    collector = collector_of(worker.engine, 4, [([0, 1, 2], 5, 5), ([3], 1, 1)])
    memory = arrays(4)
    assert [add(collector, place, memory[place]) for place in (2, 0)] == [0, 0]
    assert collector.sent(0, 0.0) is None
    assert not collector.poll(2)
    add(collector, 3, memory[3])
    assert pushed(worker, 1) == [(3, 0)]
    add(collector, 1, memory[1])
    assert pushed(worker, 3) == [(0, 0), (1, 0), (2, 0)]
    assert collector.sent(1, 0.0) is not None
    assert collector.latest_steps == [0, 0, 0, 0]


@pytest.fixture(scope="module")
def torch() -> Any:
    """Imported before a worker begins, who would be heard of meanwhile."""
    return pytest.importorskip("torch")


def test_a_tensor_is_taken_as_it_is_if_it_is_like_what_was_said(torch: Any, worker: Lone) -> None:
    if not hasattr(torch.Tensor, "__dlpack_c_exchange_api__"):
        pytest.skip("this torch tells native code nothing of its tensors")
    collector = collector_of(worker.engine, 4, [([0], 0, 0), ([1], 1, 1), ([2], 2, 2), ([3], 3, 3)])
    shape = (1, 32, 32)
    collector.set_like(0, torch.empty(shape))
    whole = torch.ones(2, 32, 32)
    sparse = torch.ones(shape).to_sparse()
    others = [torch.ones(32, 32), torch.ones(shape).mT, torch.ones(shape, dtype=torch.int32), torch.nn.Parameter(whole)]
    assert not any(collector.add_like(0, other) for other in [*others, sparse, whole[:, ::2], "no tensor"])
    assert not collector.add_like(1, torch.ones(shape))  # nothing was said of it
    assert collector.latest_step == -1
    assert collector.add_like(0, whole[1:].as_strided(shape, (7, 32, 1)))  # one place has any stride
    assert pushed(worker, 1) == [(0, 0)]
    with pytest.raises(ValueError, match="tensor 't0': step 0 is still under way"):
        collector.add_like(0, torch.ones(shape))
    collector.set_like(2, torch.empty(2, 32, 32))
    with pytest.raises(ValueError, match="is declared with 4096 bytes, but its memory has 8192"):
        collector.add_like(2, whole)


def test_a_hook_hands_over_what_is_plain_and_calls_python_for_the_rest(torch: Any, worker: Lone) -> None:
    if not hasattr(torch.Tensor, "__dlpack_c_exchange_api__"):
        pytest.skip("this torch tells native code nothing of its tensors")

    class Pending(torch.Tensor):  # type: ignore[misc]
        pass

    collector = collector_of(worker.engine, 4, [([0], 0, 0), ([1], 1, 1), ([2], 2, 2), ([3], 3, 3)])
    collector.set_like(2, torch.empty(1024))
    plain = PlainPass(lambda: 7, torch.Tensor, Pending, "in flight")
    each = SimpleNamespace(state="local", due=None, gradient=None, had_none=True, backward=-1)
    passages: list[Any] = [None, None]
    heard: list[Any] = []
    hook = GradientHook(plain, each, 1, object, lambda *_: heard.append("before"), lambda *_: heard.append("after"))

    def accumulate(gradient: Any) -> list[Any]:
        heard.clear()
        hook.before(gradient)
        hook.after(SimpleNamespace(grad=gradient))
        return list(heard)

    def refusal(place: int, error: Exception) -> Exception:
        return LookupError(f"{place}: {error}")

    assert accumulate(torch.ones(1024)) == ["after"]  # it has no aim
    hook.aim(collector, 2, passages, refusal, heard.append)
    assert accumulate(torch.ones(1024)) == ["after"]  # the pass has not begun
    plain.number = 7
    negative = torch.complex(torch.zeros(1024), torch.ones(1024)).conj().imag.view(-1)
    for other in (torch.ones(1023), torch.nn.Parameter(torch.ones(1024)), negative, torch.ones(2048)[::2]):
        assert accumulate(other) == ["after"]
    assert (collector.latest_step, each.state) == (-1, "local")

    gradient = torch.ones(1024)
    assert accumulate(gradient) == [1]
    assert (type(gradient), gradient._settle, passages[1] is gradient) == (Pending, object, True)
    assert (each.state, each.backward, each.had_none, each.gradient is gradient) == ("in flight", 7, False, True)
    assert (collector.latest_step, collector.is_measured(2)) == (0, False)
    assert pushed(worker, 1) == [(2, 0)]
    assert accumulate(torch.ones(1024)) == ["before", "after"]
    each.state, each.due = "local", "an update"
    with pytest.raises(LookupError, match="2: tensor 't2': step 0 is still under way"):
        accumulate(torch.ones(1024))
    assert heard == ["before", 1]
    hook.rest()
    assert accumulate(torch.ones(1024)) == ["before", "after"]


def test_whoever_waits_gets_what_is_there_and_the_rest_comes_later(worker: Lone) -> None:
    collector = collector_of(worker.engine, 4, [([0, 1, 2, 3], 0, 0)])
    memory = arrays(4)
    add(collector, 3, memory[3])
    collector.send(3)
    assert pushed(worker, 1) == [(3, 0)]
    for place in (0, 1):
        add(collector, place, memory[place])
        assert collector.sent(place, 0.0) is None
    add(collector, 2, memory[2])
    assert pushed(worker, 3) == [(0, 0), (1, 0), (2, 0)]


def test_a_step_that_a_plan_round_is_about_waits_and_follows_the_new_plan(worker: Lone) -> None:
    gate = StepGate()
    collector = collector_of(worker.engine, 4, [([0, 1], 0, 0), ([2, 3], 1, 1)], gate)
    memory = arrays(4)
    assert gate.close_from(0)
    for place in (0, 1, 2):
        add(collector, place, memory[place])
    assert collector.sent(0, 0.0) is None  # whole, but held
    assert gate.latest_step == -1
    collector.follow(0, [([3], 9, 9), ([2], 8, 8), ([1], 7, 7), ([0], 6, 6)])
    with ThreadPoolExecutor(1) as pool:
        sent = pool.submit(collector.sent, 0, TIMEOUT_S)
        gate.open()
        assert sent.result(TIMEOUT_S) is not None
    add(collector, 3, memory[3])
    assert sorted(pushed(worker, 4)) == [(0, 0), (1, 0), (2, 0), (3, 0)]
    assert gate.latest_step == 0
    assert not gate.close_from(0)


def test_held_tensors_take_the_ranks_of_the_plan_that_then_governs(worker: Lone) -> None:
    gate = StepGate()
    collector = collector_of(worker.engine, 4, [([place], place, place) for place in range(4)], gate)
    worker.declare(9, 64 * PART, [(0, 64 * PART, 1, EVERYONE, EVERYONE)])
    worker.submit(9, np.zeros(16 * PART, np.float32), rank=-1)
    eventually(lambda: worker.is_stuck(1), "the link is stuck")
    assert gate.close_from(0)
    memory = arrays(4)
    for place in range(4):
        add(collector, place, memory[place])
    collector.follow(0, [([place], -place, -place) for place in range(4)])
    gate.open()
    order: list[int] = []
    while len(order) < 4:
        header = worker.peers[1].receive().header
        order += [header.tensor] * (header.tensor != 9)
    assert order == [3, 2, 1, 0]


def test_what_cannot_be_taken(worker: Lone) -> None:
    collector = collector_of(worker.engine, 3, [([0, 1], 0, 0), ([2], 0, 0)])
    memory = arrays(3)
    with pytest.raises(ValueError, match="'t0' is declared with 4096 bytes, but its memory has 8"):
        collector.add(0, memory[0].ctypes.data, 8, False, memory)
    with pytest.raises(ValueError, match="none at place 7"):
        collector.add(7, memory[0].ctypes.data, PART, False, memory)
    add(collector, 0, memory[0])
    with pytest.raises(ValueError, match="'t0': step 0 is still under way"):
        add(collector, 0, memory[0])
    with pytest.raises(ValueError, match="address 0"):
        collector.add(1, 0, PART, False, memory)
    with pytest.raises(ValueError, match="address 0"):  # nothing of its bucket has been sent
        collector.sent(0, 0.0)
    assert collector.poll(0)
    for wrong in ([([0, 1], 0, 0)], [([0, 1, 2, 2], 0, 0)], [([0, 1, 3], 0, 0)]):
        with pytest.raises(ValueError, match="a plan names"):
            collector.follow(1, wrong)


class Held(np.ndarray):
    """An array that can be watched."""


def test_memory_lives_until_its_step_is_over() -> None:
    with Mesh(2) as mesh:
        first, second = collectors(mesh, 1, [([0], 0, 0)])
        memory = np.zeros(PART // 4, np.float32).view(Held)
        alive = weakref.ref(memory)
        add(first, 0, memory)
        del memory
        first.forget(0)  # not yet
        assert alive() is not None
        add(second, 0, np.zeros(PART // 4, np.float32))
        task = first.sent(0, TIMEOUT_S)
        assert task is not None
        assert task.wait(TIMEOUT_S)
        first.forget(0)
        assert alive() is None


def test_what_is_late_is_told_with_its_step(worker: Lone) -> None:
    collector = collector_of(worker.engine, 2, [([0], 0, 0), ([1], 0, 0)])
    assert collector.overdue(0.0) == []
    add(collector, 1, arrays(2)[1])
    assert collector.overdue(0.0) == [(1, 0, [])]
    assert collector.overdue(1000.0) == []


# ---- from many threads, and from native code ----

DONE = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_char_p)
START = ctypes.CFUNCTYPE(
    None,
    ctypes.c_void_p,
    ctypes.c_uint32,
    ctypes.c_void_p,
    ctypes.c_void_p,
    ctypes.c_uint64,
    DONE,
    ctypes.c_void_p,
)

SEND = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_uint32)


class Api(ctypes.Structure):
    _fields_ = (("version", ctypes.c_uint32), ("start", START), ("send", SEND))


class Native:
    """Calls the collector as native code does, and notes what it is told."""

    def __init__(self, collector: Collector) -> None:
        self._collector = collector
        self._api = Api.from_address(collector_api())
        assert self._api.version == 1
        self.told: list[tuple[int, str | None]] = []
        self._changed = threading.Condition()
        self._done = DONE(self._note)

    def start(self, place: int, source: Array | None, destination: Array, num_bytes: int = PART) -> None:
        address = None if source is None else source.ctypes.data
        self._api.start(self._collector.address, place, address, destination.ctypes.data, num_bytes, self._done, place)

    def send(self, place: int) -> None:
        self._api.send(self._collector.address, place)

    def _note(self, context: int | None, error: bytes | None) -> None:
        with self._changed:
            self.told.append((context or 0, None if error is None else error.decode()))
            self._changed.notify_all()

    def wait(self, count: int) -> list[tuple[int, str | None]]:
        with self._changed:
            assert self._changed.wait_for(lambda: len(self.told) >= count, TIMEOUT_S)
            return list(self.told)


def collectors(mesh: Mesh, num_tensors: int, buckets: Buckets) -> list[Collector]:
    for tensor in range(num_tensors):
        parts = [(0, PART // 2, 0, EVERYONE, EVERYONE), (PART // 2, PART // 2, 1, EVERYONE, EVERYONE)]
        mesh.declare(tensor, PART, "float32", parts)
    return [collector_of(engine, num_tensors, buckets, StepGate()) for engine in mesh.workers]


def test_native_code_starts_tensors_and_hears_that_they_are_done() -> None:
    with Mesh(2) as mesh:
        natives = [Native(each) for each in collectors(mesh, 3, [([0, 1], 0, 0), ([2], 1, 1)])]
        for step in range(3):
            results = [[np.zeros(PART // 4, np.float32) for _ in range(3)] for _ in natives]
            for rank, native in enumerate(natives):
                for place in range(3):
                    source = np.full(PART // 4, step + place + 2 * rank, np.float32)
                    native.start(place, source if place or rank else None, results[rank][place])
                    results[rank].append(source)  # alive until it is done
            for native in natives:
                assert sorted(native.wait(3)) == [(0, None), (1, None), (2, None)]
                native.told.clear()
            for mine in results:
                assert [float(mine[place][0]) for place in range(3)] == [(step + 2) / 2, step + 2, step + 3]


def test_native_code_hears_why_nothing_comes() -> None:
    with Mesh(2) as mesh:
        first, second = collectors(mesh, 2, [([0], 0, 0), ([1], 0, 0)])
        native = Native(first)
        memory = arrays(2)
        native.start(0, memory[0], memory[0], 8)
        assert native.told == [(0, "tensor 't0' is declared with 4096 bytes, but its memory has 8")]
        native.start(0, memory[0], memory[0])
        first.set_reason("rank 1 is late")
        mesh.engines[0].close()
        assert native.wait(2)[1:] == [(0, "rank 1 is late")]
        native.start(1, memory[1], memory[1])  # after the end, at once
        assert native.told[2:] == [(1, "rank 1 is late")]
        del second


def test_what_native_code_waits_for_goes_without_the_rest_of_its_bucket() -> None:
    with Mesh(2) as mesh:
        natives = [Native(each) for each in collectors(mesh, 2, [([0, 1], 0, 0)])]
        memory = [arrays(2) for _ in natives]
        for native, mine in zip(natives, memory, strict=True):
            native.start(0, mine[0], mine[0])
            assert native.told == []
            native.send(0)
        for native in natives:
            assert native.wait(1) == [(0, None)]


def test_native_code_hears_it_of_what_waits_for_its_bucket() -> None:
    with Mesh(2) as mesh:
        first, second = collectors(mesh, 3, [([0, 1, 2], 0, 0)])
        native = Native(first)
        memory = arrays(3)
        native.start(0, memory[0], memory[0])
        assert native.told == []
        first.set_reason("rank 1 is late")
        mesh.engines[0].close()
        assert native.wait(1) == [(0, "rank 1 is late")]
        native.start(1, memory[1], memory[1])  # the bucket is still not whole
        assert native.told[1:] == [(1, "rank 1 is late")]
        del second


def _many(collector: Collector, memory: Sequence[Array], pool: ThreadPoolExecutor) -> None:
    list(pool.map(lambda place: add(collector, place, memory[place]), range(len(memory))))


def test_tensors_of_one_bucket_come_from_many_threads_and_several_wait() -> None:
    """Autograd has a thread for each device, and every framework a pool."""
    with Mesh(2) as mesh, ThreadPoolExecutor(4) as pool, ThreadPoolExecutor(4) as others:
        both = collectors(mesh, 8, [([*range(6)], 0, 0), ([6, 7], 1, 1)])
        for step in range(20):
            memory = [[np.full(PART // 4, step + place + rank, np.float32) for place in range(8)] for rank in range(2)]
            for collector, mine, threads in zip(both, memory, (pool, others), strict=True):
                _many(collector, mine, threads)
                assert [collector.step(place) for place in range(8)] == [step] * 8

            def wait(place: int, collector: Collector) -> bool:
                collector.send(place)
                task = collector.sent(place, TIMEOUT_S)
                return task is not None and task.wait(TIMEOUT_S) and task.failure is None

            for collector in both:
                assert all(pool.map(wait, [*range(8), *range(8)], [collector] * 16))
            for mine in memory:
                assert [float(array[-1]) for array in mine] == [step + place + 0.5 for place in range(8)]
