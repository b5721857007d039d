"""Buffers: from an array's memory to the engine and back, by operations of our own on MXNet's engine (native/mxnet).

backward writes grad ─► operation: holds grad ─────────────────────► update reads grad ─► next forward
                          │ begins: its address       ends: average ▲
                          ▼                                         │
                        collector ─ parts, in the plan's order, between the workers' engines
"""

import ctypes
from collections.abc import Sequence
from typing import Any

import mxnet as mx
import numpy as np
from mxnet.base import _LIB, check_call

from legato import _native
from legato.errors import ClosedError, InputError
from legato.exchange import ExchangeOptions, TensorSpec, open_exchange
from legato.job import Job
from legato.mxnet import engine_ops
from legato.transports.declaration import ITEM_BYTES


class _Mxnet(ctypes.Structure):
    """Functions of libmxnet, as native/mxnet/operation.cpp takes them."""

    _fields_ = (
        ("to_dlpack", ctypes.c_void_p),
        ("release_dlpack", ctypes.c_void_p),
        ("free_array", ctypes.c_void_p),
    )


_mxnet = _Mxnet(
    *(
        ctypes.cast(function, ctypes.c_void_p)
        for function in (_LIB.MXNDArrayToDLPack, _LIB.MXNDArrayCallDLPackDeleter, _LIB.MXNDArrayFree)
    )
)
_reorder = _LIB["_ZNK5mxnet7NDArray20Reorder2DefaultAsyncEv"]
_reorder.argtypes = (ctypes.c_void_p,)
_reorder.restype = None


def spec_of(name: str, array: Any) -> TensorSpec:
    """What all ranks must say of an array before it travels."""
    stype = getattr(array, "stype", None)
    if stype != "default":
        what = type(array).__name__ if stype is None else f"{stype} array"
        raise InputError(f"{name} is a {what}; accepted are dense NDArrays")
    if array.context.device_type != "cpu":
        raise InputError(f"{name} is on {array.context}; accepted are arrays in the memory of the host")
    dtype = np.dtype(array.dtype).name
    if dtype not in ITEM_BYTES:
        raise InputError(f"{name} is {dtype}; accepted are {', '.join(ITEM_BYTES)}")
    return TensorSpec(name, array.shape, dtype)


def put_in_order(array: Any) -> None:
    """Have MXNet lay the elements out plainly, where oneDNN has not: activations and weights of convolutions.

    Gradients of parameters are so by themselves. Returns at once.
    """
    if len(array.shape) > 2:
        _reorder(array.handle)


class Slots:
    """The arrays of one exchange, each with a place of its own. Every rank makes the same ones."""

    def __init__(
        self,
        job: Job,
        name: str,
        specs: Sequence[TensorSpec],
        options: ExchangeOptions,
        *,
        follows_plans: bool = True,
        urgency: int = 0,
    ) -> None:
        self._specs = specs
        self._exchange = open_exchange(job, specs, name=name, follows_plans=follows_plans, urgency=urgency, **options)
        self._api = _native.collector_api()
        self._closed = False
        self._turns = [mx.nd.zeros((1,)) for _ in specs]
        """What every operation of a place writes, so that they follow each other, whatever their arrays are."""

    def start(self, place: int, array: Any) -> None:
        """Put on MXNet's engine: as soon as the array is there, it becomes the average over all workers."""
        spec = self._specs[place]
        if self._closed:
            raise ClosedError(f"{spec.name}: the job has been closed; make a new trainer after init()")
        given = spec_of(spec.name, array)
        if given != spec:
            raise InputError(
                f"{spec.name} was {spec.dtype} {spec.shape} at first; this array is {given.dtype} {given.shape}"
            )
        if not array.size:
            return
        copy = ctypes.c_void_p()
        check_call(_LIB.MXShallowCopyNDArray(array.handle, ctypes.byref(copy)))
        operation = engine_ops.native.legato_mxnet_make(
            ctypes.addressof(_mxnet),
            self._api,
            self._exchange.address,
            place,
            copy,
            self._exchange.num_bytes[place],
        )
        engine_ops.push_native(
            engine_ops.native.legato_mxnet_begin,
            operation,
            engine_ops.native.legato_mxnet_free,
            writes=[array, self._turns[place]],
            name=f"legato push_pull {spec.name}",
        )

    def check(self) -> None:
        """Raise the job's error, if it has failed."""
        self._exchange.check()

    def close(self) -> None:
        """Nothing may be under way."""
        self._closed = True
        self._exchange.close()
