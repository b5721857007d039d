"""Operations on MXNet's engine, mostly our own: they wait for arrays, hold them, and end when we say so.

Note: how an operation ends. MXNet calls the function of an asynchronous operation with a callback, and the operation
lasts until that callback is called, from any thread. No header of MXNet's is needed for it; in libmxnet 1.9 it is

    struct CallbackOnComplete {
        void (*call)(Engine *, void *operation, const dmlc::Error *);
        Engine *engine;
        void *operation;
    };

on the stack of the engine's thread, so its three words are copied. A `dmlc::Error` is a `std::runtime_error`; the
engine copies it into the variables that the operation would have written, and whoever waits for those gets it raised.
Native code makes it, and calls back (native/mxnet/operation.cpp).

Note: the end of the process. MXNet waits for operations, but not for its threads to leave the Python that ended them.
The interpreter ends such a thread, and what its frames held is never freed: with a KVStore among that, MXNet aborts the
process, and the other workers wait for it for ever. So the interpreter ends when no thread is in an operation.
"""

import atexit
import ctypes
import importlib.util
import itertools
import logging
from collections.abc import Callable, Sequence
from typing import Any

from mxnet.base import _LIB, check_call

_log = logging.getLogger(__name__)

_EXIT_S = 5.0
"""How long the end of the process waits for operations: those that wait for a worker that is gone never begin."""

_PRIORITIZED = 3
"""FnProperty::kCPUPrioritized: on threads of their own, so that computation does not delay an operation's beginning."""
_CPU = 1


class _Context(ctypes.Structure):
    _fields_ = (("device_type", ctypes.c_int32), ("device_id", ctypes.c_int32))


class _OnComplete(ctypes.Structure):
    _fields_ = (("call", ctypes.c_void_p), ("engine", ctypes.c_void_p), ("operation", ctypes.c_void_p))


_Handles = ctypes.POINTER(ctypes.c_void_p)
_Stypes = ctypes.POINTER(ctypes.c_int)
_AsyncFunction = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.POINTER(_OnComplete), ctypes.c_void_p)


def _load_native() -> Any:
    found = importlib.util.find_spec("legato.mxnet._operation")
    if found is None or found.origin is None:
        raise ImportError("legato was built without its operation for MXNet; install it again from its source")
    library = ctypes.CDLL(found.origin)
    library.legato_mxnet_make.restype = ctypes.c_void_p
    library.legato_mxnet_make.argtypes = (
        ctypes.c_void_p,
        ctypes.c_void_p,
        ctypes.c_void_p,
        ctypes.c_uint32,
        ctypes.c_void_p,
        ctypes.c_uint64,
    )
    library.legato_mxnet_body.restype = ctypes.c_void_p
    library.legato_mxnet_body.argtypes = (ctypes.c_void_p, ctypes.c_uint64)
    library.legato_mxnet_wait_for_bodies.restype = ctypes.c_bool
    library.legato_mxnet_wait_for_bodies.argtypes = (ctypes.c_double,)
    library.legato_mxnet_end.restype = None
    library.legato_mxnet_end.argtypes = (ctypes.POINTER(_OnComplete), ctypes.c_char_p)
    return library


native = _load_native()
"""native/mxnet: operations that average an array or call Python, and how any operation ends."""


class Completion:
    """The end of one operation, called once."""

    def __init__(self, on_complete: _OnComplete) -> None:
        self._on_complete = _OnComplete.from_buffer_copy(on_complete)

    def __call__(self, error: str | None = None) -> None:
        """End it; with an error, whoever waits for what it writes has that error raised."""
        native.legato_mxnet_end(self._on_complete, None if error is None else error.encode())


Body = Callable[[Completion], None]
_bodies: dict[int, Body] = {}
_numbers = itertools.count(1)


def push(body: Body, *, reads: Sequence[Any] = (), writes: Sequence[Any] = (), name: str) -> None:
    """Push an operation: once its arrays are free for it, the engine calls `body`, which ends it or lets others do so.

    `body` runs on a thread of the engine's and must not wait for the engine.
    """
    number = next(_numbers)
    _bodies[number] = body
    body_of = native.legato_mxnet_body(_run, number)
    push_native(native.legato_mxnet_call, body_of, native.legato_mxnet_free_body, reads=reads, writes=writes, name=name)


def push_native(
    function: Any, parameter: int, deleter: Any, *, reads: Sequence[Any] = (), writes: Sequence[Any] = (), name: str
) -> None:
    """Push a function of native code: the engine calls it with the parameter, and the deleter when all is over."""
    check_call(
        _LIB.MXEnginePushAsyncND(
            function,
            ctypes.c_void_p(parameter),
            deleter,
            ctypes.byref(_cpu),
            _handles(reads),
            len(reads),
            _handles(writes),
            len(writes),
            ctypes.byref(_prioritized),
            0,
            name.encode(),
            False,
        )
    )


def copy(source: Any, destination: Any) -> None:
    """Push `source.copyto(destination)`, without the Python around it, which takes twice as long as the call itself."""
    outputs = ctypes.cast(_handles([destination]), _Handles)
    check_call(
        _LIB.MXImperativeInvokeEx(
            _copyto,
            1,
            _handles([source]),
            ctypes.byref(ctypes.c_int(1)),
            ctypes.byref(outputs),
            0,
            None,
            None,
            ctypes.byref(_Stypes()),
        )
    )


def when_readable(arrays: Sequence[Any], then: Callable[[], None], *, name: str) -> None:
    """Call `then` when all that was pushed before and writes the arrays has ended."""

    def body(complete: Completion) -> None:
        try:
            then()
        finally:
            complete()

    push(body, reads=arrays, name=name)


def when_writable(arrays: Sequence[Any], then: Callable[[], None], *, name: str) -> None:
    """Call `then` when all that was pushed before and reads or writes the arrays has ended."""

    def body(complete: Completion) -> None:
        try:
            then()
        finally:
            complete()

    push(body, writes=arrays, name=name)


def _handles(arrays: Sequence[Any]) -> Any:
    return (ctypes.c_void_p * len(arrays))(*(array.handle for array in arrays))


def _call_body(_context: int, on_complete: Any, number: int) -> None:
    completion = Completion(on_complete.contents)
    try:
        _bodies.pop(number)(completion)
    except BaseException:  # noqa: BLE001 - an exception cannot cross the engine's frames
        _log.exception("an operation on MXNet's engine has failed")


_run = _AsyncFunction(_call_body)
atexit.register(native.legato_mxnet_wait_for_bodies, _EXIT_S)
_copyto = ctypes.c_void_p()
check_call(_LIB.NNGetOpHandle(b"_copyto", ctypes.byref(_copyto)))
_cpu = _Context(_CPU, 0)
_prioritized = ctypes.c_int(_PRIORITIZED)
