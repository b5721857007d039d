"""From a pytree to the engine: its leaves, and the calls by which compiled programs have them averaged."""

import sys
from collections.abc import Callable, Hashable, Sequence
from functools import cache
from importlib import import_module
from types import ModuleType
from typing import Any

import jax
import numpy as np

from legato import _native
from legato.core import Plan
from legato.errors import InputError, LegatoError
from legato.exchange import ExchangeOptions, TensorSpec, check_options, open_exchange
from legato.job import Job

Array = jax.Array
Tree = Any
"""A pytree of arrays."""


class TreeExchange:
    """The leaves of one tree, each a tensor of an exchange. Its methods can be traced; compiled programs then hold its
    number, and reach the engine through XLA's foreign-function interface."""

    def __init__(
        self,
        job: Job,
        tree: Tree,
        options: ExchangeOptions,
        order: Sequence[int] | None = None,
        *,
        follows_plans: bool = True,
    ) -> None:
        _register()
        self.names = leaf_names(tree)
        leaves, self._treedef = flatten(tree)
        specs = [
            TensorSpec(leaf, tuple(value.shape), str(value.dtype))
            for leaf, value in zip(self.names, leaves, strict=True)
        ]
        self._exchange = open_exchange(job, specs, follows_plans=follows_plans, **options)
        if order is not None:
            self._exchange.set_order(order)
        self.number = native().enroll(_native.collector_api(), self._exchange.address, self.names)
        """By which compiled programs name it."""
        job.keep(self)

    def average(self, tree: Tree) -> Tree:
        """Each leaf's average over all workers: on its way as soon as the leaf is there, awaited when all are."""
        started = self.start(tree, [np.zeros((), np.uint32)] * self._treedef.num_leaves)
        in_place = {index: index for index in range(len(started))}
        join = jax.ffi.ffi_call("legato_join", [_like(number) for number in started], input_output_aliases=in_place)
        return self.finish(join(*started), tree)

    def start(
        self, tree: Tree, finished: Sequence[Any], averages: Tree | None = None, scalars: Sequence[Array] = ()
    ) -> tuple[Array, ...]:
        """Send each leaf on its way: numbers, by which a later program gets the averages.

        The averages of the last time, and scalars of their update, are kept until then if they are given
        (native/jax/handlers.hpp: what XLA waits for).
        """
        leaves = self._treedef.flatten_up_to(tree)
        kept = [()] * len(leaves) if averages is None else [(leaf,) for leaf in self._treedef.flatten_up_to(averages)]
        return tuple(
            self.start_leaf(index, leaf, zero, *last, *scalars)
            for index, (leaf, zero, last) in enumerate(zip(leaves, finished, kept, strict=True))
        )

    def start_leaf(self, index: int, leaf: Array, finished: Any, *kept: Array) -> Array:
        """Send one leaf on its way; its number."""
        call = jax.ffi.ffi_call("legato_start", jax.ShapeDtypeStruct((), np.uint32))
        number: Array = call(leaf, finished, *kept, **self._at(index))
        return number

    def finish(self, started: Sequence[Array], like: Tree) -> Tree:
        """The averages of what was started; zeros where a number is 0."""
        leaves = self._treedef.flatten_up_to(like)
        return self._treedef.unflatten(
            self.finish_leaf(index, number, leaf)
            for index, (leaf, number) in enumerate(zip(leaves, started, strict=True))
        )

    def finish_leaf(self, index: int, started: Array, like: Array) -> Array:
        """One leaf's average."""
        average: Array = jax.ffi.ffi_call("legato_finish", _like(like))(started, **self._at(index))
        return average

    def is_finished(self, index: int) -> bool:
        """Whether nobody has to wait for a leaf's average."""
        return self._exchange.poll(index)

    @property
    def plan(self) -> Plan:
        """What its newest step follows."""
        return self._exchange.plan

    def check(self) -> None:
        """Raise the error by which the job has failed, if it has."""
        self._exchange.check()

    def dismiss(self) -> None:
        """Programs that know this exchange start nothing any more."""
        native().dismiss(self.number)

    def remove(self) -> None:
        self.dismiss()
        self._exchange.close()

    def _at(self, index: int) -> dict[str, int]:
        return {"exchange": self.number, "index": index}


class Averager:
    """Exchanges for trees of one purpose: one for each structure, made when it is first seen.

    That happens while a program is traced, on all ranks alike: they agree on the tensors there, or hear that they
    differ. Tracing again, for another batch size, finds the exchange that there is.
    """

    def __init__(self, options: ExchangeOptions, *, follows_plans: bool = True) -> None:
        check_options(options)
        self._options = options
        self._follows_plans = follows_plans
        self._made: dict[Hashable, TreeExchange] = {}

    def exchange(self, job: Job, tree: Tree, order: Callable[[], Sequence[int] | None] = lambda: None) -> TreeExchange:
        """The exchange for trees like this one; `order`, their leaves by first use, is asked for a new one only."""
        check_dense(tree)
        leaves, treedef = flatten(tree)
        if not leaves:
            raise InputError("the tree has no leaves; accepted is a pytree with at least one array")
        key = (job, treedef, tuple((leaf.shape, leaf.dtype) for leaf in leaves))
        if key not in self._made:
            self._made[key] = TreeExchange(job, tree, self._options, order(), follows_plans=self._follows_plans)
        return self._made[key]


def flatten(tree: Tree) -> tuple[list[Any], Any]:
    """`jax.tree.flatten`, which has no types for what it returns."""
    leaves, treedef = jax.tree.flatten(tree)
    return leaves, treedef


def leaf_names(tree: Tree) -> list[str]:
    """What to call each leaf: its path, such as ['dense']['kernel']."""
    return [jax.tree_util.keystr(path) or "value" for path, _ in jax.tree_util.tree_leaves_with_path(tree)]


def check_dense(tree: Tree) -> None:
    """An InputError for sparse arrays: the average of their indices is not the index of their average."""
    sparse = sys.modules.get("jax.experimental.sparse")
    if sparse is None:  # nobody has made any, and importing it takes long
        return

    def is_sparse(node: Any) -> bool:
        return isinstance(node, sparse.JAXSparse)

    for path, node in jax.tree_util.tree_leaves_with_path(tree, is_leaf=is_sparse):
        if is_sparse(node):
            name = jax.tree_util.keystr(path) or "value"
            raise InputError(f"{name} is a {type(node).__name__}; accepted are dense arrays: call its todense() first")


def is_traced(tree: Tree) -> bool:
    return any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree.leaves(tree))


@cache
def native() -> ModuleType:
    """The handlers' module, which is built only where jax is there at that time."""
    try:
        return import_module("legato.jax._ffi")
    except ModuleNotFoundError:
        raise LegatoError(
            "this build of legato has no legato.jax._ffi; install jax first, then build legato again beside it: "
            "pip install --no-build-isolation legato"
        ) from None


@cache
def _register() -> None:
    if jax.default_backend() != "cpu":
        raise InputError(f"jax runs on {jax.default_backend()!r} here; legato.jax accepts 'cpu': set JAX_PLATFORMS=cpu")
    for name, handler in native().handlers().items():
        jax.ffi.register_ffi_target(name, handler, platform="cpu")


def _like(leaf: Array) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype)
