"""The scheduled KVStore: MXNet's own, whose arrays leave in parts, in the order of a plan.

Note: dependencies. Every key has a staging array, and MXNet's engine does the waiting, so that nobody else does:

    backward writes grad ─► copy grad → staging ─► gate: holds staging ─────────────► copy staging → weight ─► forward
                                                    │ begins: the task is ready           ▲
                                                    ▼                                     │ ends: the task is complete
                                                  runtime ── parts, by the plan, over arrays of their own ──┘

`push` puts the copy and the gate on the engine and returns, `pull` the other copy. The weight waits for its own key
and for no other, so the next forward begins layer by layer; what is read before it is there waits on the engine.
"""

import atexit
import copy
import ctypes
import logging
import os
import queue
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import mxnet as mx
import numpy as np
from mxnet.base import _LIB, check_call

from legato.core import Command, Complete, Event, Plan, Policy, Task, Tensor
from legato.core.fusion import one_per_tensor
from legato.errors import ClosedError, InputError, LegatoError
from legato.mxnet import engine_ops
from legato.mxnet.sizes import Sizes, fitted, needs_link
from legato.mxnet.transport import KVStoreTransport
from legato.runtime import Observer, Runtime
from legato.transports.buffer import Buffer
from legato.transports.declaration import Declaration

_log = logging.getLogger(__name__)

Key = int | str

_CLOSE_S = 5.0
"""How long a thread that has nothing left to do may take to end."""

NOT_BY_ELEMENT = frozenset({"GroupAdaGrad", "LAMB", "LANS", "LARS", "LBSGD", "Nadam"})
"""Optimizers that look at more of an array than one element at a time: on a server they would see parts of it."""


@dataclass(slots=True)
class _Slot:
    """One key."""

    index: int
    """Its place among all keys: its number in plans."""
    optimizer_index: int
    """What optimizers know it by: the key itself, or its place where keys are names."""
    memory: Buffer
    staging: Any
    """The array over that memory."""
    shape: tuple[int, ...]
    dtype: Any
    """Of staging: asking MXNet takes longer than remembering."""
    priority: int
    """As the framework gives it: the higher, the more urgent."""
    next_step: int = 0


class Staged:
    """Keys, their staging and the runtime between them. Arrays are dense; one thread calls it."""

    def __init__(
        self,
        kv: Any,
        transport: KVStoreTransport,
        policy: Policy,
        *,
        sizes: Sizes,
        timeout_s: float,
        observer: Observer | None,
    ) -> None:
        self._kv = kv
        self._transport = transport
        self._policy = policy
        self._sizes = sizes
        self._timeout_s = timeout_s
        self._observer = observer
        self._slots: dict[Key, _Slot] = {}
        self._tensors: list[Tensor] = []
        self._optimizer: Any = None
        self._runtime: Runtime | None = None
        self._round = 0
        self._gates = _Gates()
        atexit.register(self._end)

    # ---- before the first step ----

    def init(self, key: Key, value: Any) -> None:
        if key in self._slots:
            raise InputError(f"key {key!r} has been initialised before; each key is initialised once")
        if self._runtime is not None:
            raise InputError(f"key {key!r} comes after the first push; initialise all keys before it")
        value = _dense(key, value)
        if not self._slots:
            self._fit_sizes()
        name, dtype = str(key), np.dtype(value.dtype).name
        memory = value.asnumpy().reshape(-1).copy()
        index = len(self._slots)
        self._transport.declare([Declaration(name=name, shape=value.shape, dtype=dtype)], [memory])
        self._tensors.append(Tensor(name=name, num_bytes=memory.nbytes, priority=index, item_bytes=memory.itemsize))
        self._transport.set_plan(self._plan(), 0)
        if self._transport.rank != 0:
            self._transport.fetch(index, memory)
        staging = mx.nd.from_numpy(memory[:]).reshape(value.shape)
        optimizer_index = key if isinstance(key, int) else index
        self._slots[key] = _Slot(
            index, optimizer_index, Buffer.of(memory, name), staging, staging.shape, staging.dtype, priority=-index
        )

    def _fit_sizes(self) -> None:
        needed = needs_link(self._policy, self._sizes)
        bytes_per_s = self._transport.link_bytes_per_s(asked=needed)
        if needed and bytes_per_s is not None:
            self._sizes = fitted(self._sizes, bytes_per_s)
            _log.info(
                "links carry %.3g Gbit/s: parts of %d bytes, a credit of %d bytes", bytes_per_s * 8e-9, *self._sizes
            )

    def set_optimizer(self, optimizer: Any) -> None:
        """It goes to the servers with the first push, when all keys are known."""
        kind = type(optimizer).__name__
        if self._runtime is not None:
            raise InputError("the optimizer comes after the first push; set it before")
        if kind in NOT_BY_ELEMENT:
            raise InputError(f"{kind} looks at whole arrays, servers have parts; set update_on_kvstore=False")
        if optimizer.multi_precision:
            raise InputError("multi_precision is for optimizers on the workers; set update_on_kvstore=False")
        self._optimizer = optimizer

    def _plan(self) -> Plan:
        return self._policy.plan(
            self._tensors,
            partition_bytes=self._sizes.partition_bytes,
            credit_bytes=self._sizes.credit_bytes,
            buckets=one_per_tensor(self._tensors),
        )

    def _begin(self) -> Runtime:
        if self._optimizer is not None:
            self._kv.set_optimizer(self._optimizer_by_part())
        self._runtime = Runtime(
            self._transport, self._tensors, self._plan(), timeout_s=self._timeout_s, observer=self._observe
        )
        self._gates.watch(self._runtime, self._timeout_s, self._kv)
        return self._runtime

    def _optimizer_by_part(self) -> Any:
        """The optimizer, for the keys of the parts: each has the multipliers of its whole."""
        given = self._optimizer
        by_part = copy.copy(given)
        by_part.lr_mult, by_part.wd_mult = dict(given.lr_mult), dict(given.wd_mult)
        for slot in self._slots.values():
            for part_key in self._transport.keys_of(slot.index):
                for kind in ("lr_mult", "wd_mult"):
                    getattr(by_part, kind)[part_key] = _multiplier(given, kind, slot.optimizer_index)
        return by_part

    # ---- steps ----

    def push(self, key: Key, values: Sequence[Any], priority: int) -> None:
        """Sum the values of this worker's devices into staging, and have that summed with the other workers'."""
        slot = self.slot(key)
        for value in values:
            _same_shape(key, _dense(key, value), slot)
        self._gates.check()
        runtime = self._begin() if self._runtime is None else self._runtime
        if slot.next_step > self._round:
            self._close_round(runtime)
        slot.priority = priority
        if len(values) == 1:
            engine_ops.copy(values[0], slot.staging)
        else:
            mx.nd.add_n(*(value.as_in_context(mx.cpu()) for value in values), out=slot.staging)
        self._gate(slot, runtime, absent=False)

    def pull(self, key: Key, outs: Sequence[Any]) -> None:
        slot = self.slot(key)
        self._gates.check()
        for out in outs:
            engine_ops.copy(slot.staging, _same_shape(key, _dense(key, out), slot))

    def slot(self, key: Key) -> _Slot:
        try:
            return self._slots[key]
        except KeyError:
            raise InputError(f"key {key!r} has not been initialised; call init first") from None

    def close(self) -> None:
        """Wait for what is under way, then stop. Can be called twice."""
        atexit.unregister(self._end)
        if self._gates.error is None:
            for slot in self._slots.values():
                slot.staging.wait_to_read()
        self._gates.close()
        self._transport.close()
        if self._runtime is not None:
            self._runtime.close()
            # It knows this object as its observer. Without the circle the KVStore, whose end all workers wait for, is
            # freed with the last reference to it, while the interpreter is whole.
            self._runtime = None

    def _end(self) -> None:
        """The process ends. MXNet drops what has not begun by then, and waits for what has: for ever, for pushes to
        workers that are gone."""
        if not self._gates.failed:
            with suppress(mx.MXNetError):
                self.close()
        if self._gates.failed:
            _log.error("MXNet's engine waits for workers that are gone; this process ends without it")
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(1)

    def _close_round(self, runtime: Runtime) -> None:
        """A key comes again: whoever has not come this time takes no part in the step."""
        for slot in self._slots.values():
            if slot.next_step == self._round:
                self._gate(slot, runtime, absent=True)
        if self._round == 0:
            self._learn_order(runtime)
        self._round += 1

    def _learn_order(self, runtime: Runtime) -> None:
        """The first step has shown the framework's priorities; where keys were initialised in another order, replan."""
        slots = sorted(self._slots.values(), key=lambda slot: (-slot.priority, slot.index))
        if [slot.index for slot in slots] == list(range(len(slots))):
            return
        for priority, slot in enumerate(slots):
            old = self._tensors[slot.index]
            self._tensors[slot.index] = Tensor(
                name=old.name, num_bytes=old.num_bytes, priority=priority, item_bytes=old.item_bytes
            )
        runtime.replan(1, self._plan())

    def _gate(self, slot: _Slot, runtime: Runtime, *, absent: bool) -> None:
        task = Task(slot.next_step, slot.index)
        slot.next_step += 1

        def opened(complete: engine_ops.Completion) -> None:
            if not self._gates.hold(task, complete):
                return
            try:
                if absent:
                    self._transport.leave_out(task.step, slot.index)
                else:
                    self._transport.offer(task.step, slot.index, slot.memory, slot.memory)
                runtime.ready(task)
            except LegatoError as error:
                self._gates.fail(error)

        engine_ops.push(opened, writes=[slot.staging], name="legato gate")

    def _observe(self, now: float, what: Event | Command) -> None:
        if isinstance(what, Complete):
            self._gates.release(what.task)
        if self._observer is not None:
            self._observer(now, what)


class _Gates:
    """Held operations of the engine, by task. A thread sees to it that none is held for ever."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._held: dict[Task, engine_ops.Completion] = {}
        self._watched: queue.SimpleQueue[Task | None] = queue.SimpleQueue()
        self.error: LegatoError | None = None
        self.failed = False
        self._thread: threading.Thread | None = None

    def watch(self, runtime: Runtime, timeout_s: float, kv: Any) -> None:
        def wait_for_each() -> None:
            try:
                while (task := self._watched.get()) is not None:
                    runtime.wait(task, timeout_s)
            except LegatoError as error:
                # The end of the process must not wait for workers that are gone.
                self.failed = True
                check_call(_LIB.MXKVStoreSetBarrierBeforeExit(kv.handle, ctypes.c_int(0)))
                self.fail(error)

        self._thread = threading.Thread(target=wait_for_each, name="legato-deadline", daemon=True)
        self._thread.start()

    def hold(self, task: Task, complete: engine_ops.Completion) -> bool:
        with self._lock:
            error = self.error
            if error is None:
                self._held[task] = complete
        if error is not None:
            complete(str(error))
            return False
        self._watched.put(task)
        return True

    def release(self, task: Task) -> None:
        with self._lock:
            complete = self._held.pop(task, None)
        if complete is not None:
            complete()

    def fail(self, error: LegatoError) -> None:
        """Let everybody who waits have the error."""
        with self._lock:
            if self.error is None:
                self.error = error
            held, self._held = self._held, {}
        for complete in held.values():
            complete(str(error))

    def check(self) -> None:
        if self.error is not None:
            raise self.error

    def close(self) -> None:
        self._watched.put(None)
        with self._lock:
            if self.error is None:
                self.error = ClosedError("the KVStore is closed; make a new one to go on")
        if self._thread is not None:
            self._thread.join(_CLOSE_S)
            self._thread = None


def pairs(key: Any, values: Any) -> Iterator[tuple[Key, list[Any]]]:
    """Keys and the arrays of each, however MXNet lets them be written: one or a list, an array or one per device."""
    if not isinstance(key, list | tuple):
        yield key, list(values) if isinstance(values, list | tuple) else [values]
        return
    if not isinstance(values, list | tuple) or len(values) != len(key):
        raise InputError(f"{len(key)} keys need as many values; each is an array, or a list with one for each device")
    for one, value in zip(key, values, strict=True):
        yield from pairs(one, value)


def _dense(key: Key, value: Any) -> Any:
    stype = getattr(value, "stype", None)
    if stype != "default":
        what = type(value).__name__ if stype is None else f"{stype} array"
        raise InputError(f"key {key!r} is a {what}; accepted are dense NDArrays")
    return value


def _same_shape(key: Key, value: Any, slot: _Slot) -> Any:
    if value.shape != slot.shape or value.dtype != slot.dtype:
        raise InputError(
            f"key {key!r} was initialised as {np.dtype(slot.dtype).name} {slot.shape}; "
            f"this array is {np.dtype(value.dtype).name} {value.shape}"
        )
    return value


def _multiplier(optimizer: Any, kind: str, index: int) -> float:
    parameter = optimizer.param_dict.get(index)
    if parameter is not None:
        return float(getattr(parameter, kind))
    by_name = getattr(optimizer, kind)
    return float(by_name.get(index, by_name.get(optimizer.idx2name.get(index), 1.0)))
