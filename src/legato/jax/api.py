"""What a training script calls: join the job, average trees, and schedule an optimizer."""

from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any, Unpack

import jax
import jax.numpy as jnp
import numpy as np
import optax

from legato.current import CurrentJob, Member
from legato.errors import InputError, LegatoError
from legato.exchange import ExchangeOptions, broadcast_arrays
from legato.jax.buffers import Averager, Tree, TreeExchange, check_dense, flatten, is_traced, leaf_names
from legato.jax.hooks import Schedule, averaged_value_and_grad, averaging
from legato.job import Job

_averagers: dict[str, Averager] = {}
"""What `push_pull` averages with in traced functions, by name."""

_prefixes: dict[Hashable, str] = {}
"""What goes before the leaves' names in a `push_pull` without one, for each kind of tree."""


class _Member(Member):
    def close(self, *, now: bool) -> None:
        """Leave when what has been dispatched is computed. Updates that `finish` has not applied by then are lost."""
        if not now:
            _await_programs()
        for exchange in _exchanges(self.job):
            exchange.dismiss()
        super().close(now=now)


_current = CurrentJob("legato.jax", _Member)
init, shutdown, is_initialized = _current.init, _current.shutdown, _current.is_initialized
rank, size, local_rank, local_size = _current.rank, _current.size, _current.local_rank, _current.local_size


def current(job: Job | None = None) -> Job:
    """The job that is meant: the one given, or what `init` started."""
    return _current.member.job if job is None else job


def _await_programs() -> None:
    """What has been dispatched may still have gradients to send. Whether it has failed is told to who reads it."""
    for array in jax.live_arrays():
        with suppress(jax.errors.JaxRuntimeError):
            array.block_until_ready()


def _exchanges(job: Job) -> list[TreeExchange]:
    return [kept for kept in job.kept if isinstance(kept, TreeExchange)]


def check(*, job: Job | None = None) -> None:
    """Raise the error by which the job has failed, if it has: `PeerLostError`, `DeadlineError`, …"""
    for exchange in _exchanges(current(job)):
        exchange.check()


@contextmanager
def typed_errors(*, job: Job | None = None) -> Iterator[None]:
    """In here an error of the job that surfaces as JAX's JaxRuntimeError is raised as what it is (legato.errors)."""
    try:
        yield
    except jax.errors.JaxRuntimeError as error:
        try:
            check(job=job)
        except LegatoError as reason:
            raise reason from error
        raise


def push_pull(tree: Tree, name: str | None = None, *, job: Job | None = None) -> Tree:
    """The average of every leaf over all workers; it can be differentiated.

    In a function that is traced (`jit`, `grad`, `scan`) it needs a name, one for each place in the program.
    """
    job = current(job)
    if job.size == 1:
        return tree
    if is_traced(tree):
        if name is None:
            raise InputError("push_pull in a traced function needs a name; accepted is one for each place: name='loss'")
        return _averaged(job, name, tree)
    check_dense(tree)
    leaves, treedef = flatten(tree)
    arrays = [jnp.asarray(leaf) for leaf in leaves]
    meaning = (job, (treedef, tuple((array.shape, array.dtype) for array in arrays)))
    prefix = f"push_pull {name}" if name else _prefix(meaning)
    # numpy has no bfloat16
    values = [np.array(array, np.float32 if array.dtype == jnp.bfloat16 else None) for array in arrays]
    handles = [
        job.group.push_pull_async(f"{prefix}{leaf}", value, reduction="average")
        for leaf, value in zip(leaf_names(tree), values, strict=True)
    ]
    return treedef.unflatten(
        jnp.asarray(handle.wait(), array.dtype) for handle, array in zip(handles, arrays, strict=True)
    )


def _prefix(meaning: tuple[Job, Hashable]) -> str:
    if meaning not in _prefixes:
        _prefixes[meaning] = meaning[0].name("push_pull")
    return _prefixes[meaning]


@partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def _averaged(job: Job, name: str, tree: Tree) -> Tree:
    return _averagers.setdefault(name, Averager({}, follows_plans=False)).exchange(job, tree).average(tree)


def _averaged_forward(job: Job, name: str, tree: Tree) -> tuple[Tree, None]:
    return _averaged(job, name, tree), None


def _averaged_backward(job: Job, name: str, _: None, cotangents: Tree) -> tuple[Tree]:
    """An average is its own derivative. Integers have none."""
    leaves, treedef = flatten(cotangents)
    places = [place for place, leaf in enumerate(leaves) if leaf.dtype != jax.dtypes.float0]
    for place, average in zip(
        places, _averaged(job, f"{name}/gradient", [leaves[place] for place in places]), strict=True
    ):
        leaves[place] = average
    return (treedef.unflatten(leaves),)


_averaged.defvjp(_averaged_forward, _averaged_backward)


def broadcast(tree: Tree, root: int = 0, *, job: Job | None = None) -> Tree:
    """The root's leaves on every rank: parameters and an optimizer's state, before training begins."""
    job = current(job)
    if is_traced(tree):
        raise InputError("broadcast is called in a traced function; accepted is a call outside, before training")
    if not 0 <= root < job.size:
        raise InputError(f"root is {root}; accepted is a rank from 0 to {job.size - 1}")
    if job.size == 1:
        return tree
    name = job.name("broadcast")
    leaves, treedef = flatten(tree)
    values = [np.array(leaf, order="C") for leaf in leaves]
    broadcast_arrays(
        job.group, {f"{name}{leaf}": value for leaf, value in zip(leaf_names(tree), values, strict=True)}, root
    )
    return treedef.unflatten(jnp.asarray(value) for value in values)


def value_and_grad(
    function: Callable[..., Any],
    argnums: int | Sequence[int] = 0,
    has_aux: bool = False,
    *,
    job: Job | None = None,
    **options: Unpack[ExchangeOptions],
) -> Callable[..., Any]:
    """`jax.value_and_grad` whose gradients are the averages over all workers; the value stays this worker's own.

    Each gradient leaves as soon as backward has produced it, while the rest of backward runs.
    """
    return averaged_value_and_grad(lambda: current(job), options, function, argnums, has_aux)


def DistributedOptimizer(  # noqa: N802 - the name that Horovod and BytePS gave it
    inner: optax.GradientTransformation, *, job: Job | None = None, **options: Unpack[ExchangeOptions]
) -> optax.GradientTransformationExtraArgs:
    """An optax optimizer that averages gradients over all workers first: any optimizer, overlap with backward."""
    return averaging(lambda: current(job), options, inner)


def schedule(
    inner: optax.GradientTransformation,
    *,
    first_use: Sequence[int] | None = None,
    job: Job | None = None,
    **options: Unpack[ExchangeOptions],
) -> Schedule:
    """An optimizer whose averages are awaited in the next step, leaf by leaf, where the forward pass needs them.

    `first_use` are the leaves of the parameters by first use (`legato.jax.first_use`); `step` finds it by itself.
    """
    return Schedule(lambda: current(job), options, inner, first_use)
