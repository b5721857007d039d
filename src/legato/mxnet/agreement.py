"""What every rank says, on every rank: over the KVStore that they all have, before any optimizer runs on it."""

import json
import threading
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import mxnet as mx
import numpy as np

from legato.core.plan import Plan
from legato.errors import DeadlineError, MismatchError, PlanError
from legato.mxnet import engine_ops
from legato.transports.declaration import Declaration

ROW_BYTES = 512
"""What a rank says in one turn; longer texts take several."""
_MORE = 1


class Agreement:
    """One array with a row for each rank: everybody pushes its own, and the sum is what all have said.

    A byte travels as a float32: servers of MXNet's take floating point only.
    """

    def __init__(self, kv: Any, key: int, timeout_s: float) -> None:
        self._kv = kv
        self._key = key
        self._timeout_s = timeout_s
        kv.init(key, mx.nd.zeros((kv.num_workers, ROW_BYTES)))

    def on_tensors(self, tensors: Sequence[Declaration]) -> None:
        """Raise on every rank unless all declare the same tensors."""
        said = [json.loads(text) for text in self._exchange(json.dumps([asdict(each) for each in tensors]))]
        if all(each == said[0] for each in said):
            return
        if len(Counter(len(each) for each in said)) > 1:
            words = ", ".join(f"rank {rank} has {len(each)}" for rank, each in enumerate(said))
            raise MismatchError(f"the ranks have different numbers of tensors: {words}")
        place = next(place for place, each in enumerate(said[0]) if any(other[place] != each for other in said))
        words = "; ".join(f"rank {rank} says {_words(each[place])}" for rank, each in enumerate(said))
        name = said[0][place]["name"]
        raise MismatchError(f"tensor {name!r} differs between ranks: {words}", tensor=name)

    def on_plan(self, plan: Plan, from_step: int, latest_step: int) -> None:
        """Raise on every rank unless all follow the same plan from the same step, which none has begun."""
        said = [json.loads(text) for text in self._exchange(json.dumps([plan.digest(), from_step, latest_step]))]
        if len({(digest, step) for digest, step, _ in said}) > 1:
            plans = "; ".join(f"rank {rank} has {each[0]} from step {each[1]}" for rank, each in enumerate(said))
            raise MismatchError(f"the ranks have different plans: {plans}")
        for rank, (_, _, latest) in enumerate(said):
            if from_step <= latest:
                raise PlanError(f"rank {rank} has begun step {latest} already; choose a later one")

    def _exchange(self, text: str) -> list[str]:
        said = [b""] * self._kv.num_workers
        rest, more = text.encode(), True
        while more:
            rows = self._sum(rest[: ROW_BYTES - 1], len(rest) >= ROW_BYTES)
            rest = rest[ROW_BYTES - 1 :]
            more = bool((rows[:, 0] == _MORE).any())
            said = [before + row[1:].tobytes().rstrip(b"\0") for before, row in zip(said, rows, strict=True)]
        return [each.decode() for each in said]

    def _sum(self, mine: bytes, more: bool) -> Any:
        rows = np.zeros((self._kv.num_workers, ROW_BYTES), np.uint8)
        rows[self._kv.rank, 0] = _MORE if more else 0
        rows[self._kv.rank, 1 : 1 + len(mine)] = np.frombuffer(mine, np.uint8)
        array = mx.nd.array(rows, dtype="float32")
        self._kv.push(self._key, array)
        self._kv.pull(self._key, out=array)
        arrived = threading.Event()
        engine_ops.when_readable([array], arrived.set, name="legato agreement")
        if not arrived.wait(self._timeout_s):
            raise DeadlineError(
                f"rank {self._kv.rank} waited {self._timeout_s:g} s for the other {self._kv.num_workers - 1} workers "
                "to say which arrays they initialise: one of them is gone, or initialises others",
                rank=self._kv.rank,
            )
        return array.asnumpy().astype(np.uint8)


def _words(said: dict[str, Any]) -> str:
    return f"{said['name']!r} is {said['dtype']} {tuple(said['shape'])}"
