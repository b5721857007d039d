"""What every rank says, on every rank: over the KVStore that they all have, before any optimizer runs on it."""

import json
import threading
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import mxnet as mx
import numpy as np

from legato.core.plan import Plan
from legato.errors import DeadlineError
from legato.mxnet import engine_ops
from legato.transports.base import check_plans, check_tensors
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
        said = self._exchange(json.dumps([asdict(each) for each in tensors]))
        check_tensors([json.loads(text) for text in said])

    def by_any(self, asks: bool) -> bool:
        """Whether any rank asks."""
        return any(json.loads(text) for text in self._exchange(json.dumps(asks)))

    def smallest(self, number: float) -> float:
        """Of all ranks' numbers."""
        return float(min(json.loads(text) for text in self._exchange(json.dumps(number))))

    def on_plan(self, plan: Plan, from_step: int, latest_step: int) -> None:
        """Raise on every rank unless all follow the same plan from the same step, which none has begun."""
        said = self._exchange(json.dumps([plan.digest(), from_step, latest_step]))
        check_plans([json.loads(text) for text in said])

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
        self.await_all([array])
        return array.asnumpy().astype(np.uint8)

    def await_all(self, arrays: Sequence[Any]) -> None:
        """Wait for sums that every worker takes part in."""
        arrived = threading.Event()
        engine_ops.when_readable(arrays, arrived.set, name="legato agreement")
        if not arrived.wait(self._timeout_s):
            raise DeadlineError(
                f"rank {self._kv.rank} waited {self._timeout_s:g} s for the other {self._kv.num_workers - 1} workers "
                "to say which arrays they initialise: one of them is gone, or initialises others",
                rank=self._kv.rank,
            )
