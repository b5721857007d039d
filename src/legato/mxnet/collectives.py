"""Collectives on arrays, as BytePS names them."""

from collections.abc import Mapping, Sequence
from typing import Any

import mxnet as mx

from legato import exchange
from legato.errors import InputError
from legato.exchange import ExchangeOptions
from legato.mxnet.buffers import Slots, put_in_order, spec_of
from legato.mxnet.compression import declared
from legato.mxnet.worker import Worker, current


def byteps_declare_tensor(name: str, **properties: Any) -> None:
    """How the array of this name travels, where it is compressed: `byteps_compressor_type="onebit"` and so on.

    What is not declared is made known when it is first used.
    """
    current().declared[name] = declared(properties)


def byteps_push_pull(
    tensor: Any, version: int = 0, priority: int = 0, name: str | None = None, is_average: bool = True
) -> None:
    """Replace an array by the average, or the sum, of all workers'. Returns at once; whoever reads it waits.

    All workers must call it. Calls with the same name follow each other; those without one are matched by dtype and
    shape. Of what is under way together the highest `priority` goes first, as the first call of a name gives it.
    `version` numbers BytePS's buffers, and means nothing here.
    """
    del version
    worker = current()
    spec = spec_of("tensor" if name is None else name, tensor)
    if worker.job.size == 1:
        return
    worker.check()
    label = f"{spec.dtype}{list(spec.shape)}" if name is None else name
    options = ExchangeOptions(compression=worker.declared.get(label))
    slots = worker.slots(
        ("push_pull", label),
        lambda: Slots(
            worker.job, f"push_pull/{label}", [spec], options, follows_plans=False, urgency=max(-priority, 0)
        ),
    )
    put_in_order(tensor)
    slots.start(0, tensor)
    if not is_average:
        tensor *= worker.job.size


def broadcast_parameters(params: Any, root_rank: int = 0) -> None:
    """Overwrite parameters with the root's, on every worker: `Module.get_params()`, or `Block.collect_params()`."""
    if isinstance(params, mx.gluon.ParameterDict):
        params = {name: parameter.data() for name, parameter in params.items()}
    if not isinstance(params, Mapping):
        raise InputError(f"params is a {type(params).__name__}; accepted are dictionaries of NDArrays by name")
    broadcast_arrays(current(), [params[name] for name in sorted(params)], root_rank)


def broadcast_arrays(worker: Worker, arrays: Sequence[Any], root_rank: int) -> None:
    """Weights, not gradients: they pass through numpy."""
    if not 0 <= root_rank < worker.job.size:
        raise InputError(f"root_rank is {root_rank}; accepted are ranks from 0 to {worker.job.size - 1}")
    if worker.job.size == 1 or not arrays:
        return
    name = worker.job.name("broadcast")
    for array in arrays:
        put_in_order(array)  # MXNet refuses to overwrite what oneDNN has laid out
    values = [array.asnumpy() for array in arrays]
    named = {f"{name}/{place}": value for place, value in enumerate(values)}
    exchange.broadcast_arrays(worker.job.group, named, root_rank)
    for array, value in zip(arrays, values, strict=True):
        array[:] = value
