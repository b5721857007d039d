"""What scripts call: the KVStore that MXNet's `Trainer` and `Module` are given."""

import os
from typing import Any

import mxnet as mx

from legato.core import Policy
from legato.core.policies import POLICIES, by_name
from legato.environment import Environment
from legato.errors import InputError
from legato.mxnet.kvstore import Staged, pairs
from legato.mxnet.sizes import Sizes
from legato.mxnet.transport import KVStoreTransport
from legato.runtime import Observer
from legato.units import parse_bytes

KINDS = ("dist_sync", "dist_device_sync", "dist_sync_device")
MERGING = frozenset({"mgwfbp"})
"""Policies that are nothing without buckets of several tensors; a KVStore moves every key by itself."""
_SPREAD_ELEMENTS = 1_000_000
"""MXNet's default for MXNET_KVSTORE_BIGARRAY_BOUND."""


class ScheduledKVStore(mx.kvstore.KVStoreBase):  # type: ignore[misc] # mxnet ships no types
    """MXNet's distributed KVStore with its arrays cut into parts that leave by priority, within a credit.

        kv = legato.mxnet.ScheduledKVStore(mx.kv.create("dist_sync"))
        trainer = gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 0.1}, kvstore=kv)

    Every worker wraps its KVStore, with the same arguments. `partition_bytes` ("4MB") is the largest part,
    `credit_bytes` what may be on its way to the servers at once; None leaves them to the policy, and with
    `bytescheduler` to what the links carry.
    """

    def __init__(
        self,
        kv: Any,
        policy: str | Policy = "bytescheduler",
        partition_bytes: int | str | None = None,
        credit_bytes: int | str | None = None,
        *,
        timeout_s: float = 60.0,
        observer: Observer | None = None,
    ) -> None:
        chosen = _policy(policy)
        if not isinstance(kv, mx.kvstore.KVStore) or kv.type not in KINDS:
            what = kv.type if isinstance(kv, mx.kvstore.KVStoreBase) else type(kv).__name__
            raise InputError(f"kv is {what!r}; accepted are KVStores of MXNet's of type {', '.join(KINDS)}")
        if not timeout_s > 0:
            raise InputError(f"timeout_s is {timeout_s}; accepted is a number of seconds above 0")
        sizes = Sizes(_size("partition_bytes", partition_bytes), _size("credit_bytes", credit_bytes))
        read = Environment(os.environ)
        transport = KVStoreTransport(
            kv,
            num_servers=read.number("DMLC_NUM_SERVER", at_least=1),
            spread_elements=read.number("MXNET_KVSTORE_BIGARRAY_BOUND", _SPREAD_ELEMENTS, at_least=1),
            timeout_s=timeout_s,
        )
        self._kv = kv
        self._staged = Staged(kv, transport, chosen, sizes=sizes, timeout_s=timeout_s, observer=observer)

    # ---- as MXNet's own ----

    def init(self, key: Any, value: Any) -> None:
        """Give keys their first values; rank 0's are everybody's."""
        for one, [array, *_] in pairs(key, value):
            self._staged.init(one, array)

    def broadcast(self, key: Any, value: Any, out: Any, priority: int = 0) -> None:
        """`init`, then `pull`."""
        self.init(key, value)
        self.pull(key, out, priority)

    def push(self, key: Any, value: Any, priority: int = 0) -> None:
        """Sum arrays with the other workers', or have the servers' optimizer apply the sum. Returns at once."""
        for one, arrays in pairs(key, value):
            self._staged.push(one, arrays, priority)

    def pull(self, key: Any, out: Any = None, priority: int = 0, ignore_sparse: bool = True) -> None:  # noqa: ARG002
        """Fill arrays with what the last push has come to. Returns at once; whoever reads them waits for that key."""
        if out is None:
            raise InputError("out is None; give the arrays that are to be filled")
        for one, arrays in pairs(key, out):
            self._staged.pull(one, arrays)

    def pushpull(self, key: Any, value: Any, out: Any = None, priority: int = 0) -> None:
        """`push`, then `pull`, into the same arrays where no others are given."""
        self.push(key, value, priority)
        self.pull(key, value if out is None else out, priority)

    def set_optimizer(self, optimizer: Any) -> None:
        """Have the servers apply sums with this optimizer, from the first push on."""
        if not isinstance(optimizer, mx.optimizer.Optimizer):
            raise InputError(f"optimizer is a {type(optimizer).__name__}; accepted are optimizers of MXNet's")
        self._staged.set_optimizer(optimizer)

    @staticmethod
    def is_capable(capability: str) -> bool:
        """Whether it can do what MXNet asks for: an optimizer on the servers."""
        return bool(capability.lower() == mx.kvstore.KVStoreBase.OPTIMIZER)

    @property
    def type(self) -> str:
        return str(self._kv.type)

    @property
    def rank(self) -> int:
        return int(self._kv.rank)

    @property
    def num_workers(self) -> int:
        return int(self._kv.num_workers)

    def close(self) -> None:
        """Wait for what is under way, then stop. Can be called twice."""
        self._staged.close()

    # ---- what MXNet's has and this has not ----

    def row_sparse_pull(self, key: Any, *_: Any, **__: Any) -> None:
        raise InputError(f"key {key!r}: row_sparse arrays are not scheduled; use dense ones, or the KVStore itself")

    def set_gradient_compression(self, compression_params: Any) -> None:
        raise InputError(f"compression {compression_params!r} is not for a ScheduledKVStore; leave it out")

    def save_optimizer_states(self, fname: str, dump_optimizer: bool = False) -> None:  # noqa: ARG002
        raise InputError(f"{fname}: the optimizer's state is on the servers; set update_on_kvstore=False to save it")

    def load_optimizer_states(self, fname: str) -> None:
        raise InputError(f"{fname}: the optimizer's state is on the servers; set update_on_kvstore=False to load it")


def _policy(policy: str | Policy) -> Policy:
    chosen = by_name(policy) if isinstance(policy, str) else policy
    if not isinstance(chosen, Policy):
        raise InputError(f"policy is a {type(policy).__name__}; accepted are names and policies of legato.core")
    if chosen.name in MERGING:
        accepted = ", ".join(name for name in POLICIES if name not in MERGING)
        raise InputError(f"policy {chosen.name!r} merges tensors, and a KVStore moves each key; accepted: {accepted}")
    return chosen


def _size(name: str, given: int | str | None) -> int | None:
    if given is None:
        return None
    num_bytes = parse_bytes(given) if isinstance(given, str) else given
    if num_bytes < 1:
        raise InputError(f"{name} is {given!r}; accepted is a size of at least 1 byte, such as 4MB")
    return num_bytes
