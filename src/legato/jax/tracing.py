"""What a function does inside, read from what JAX traces: which leaves it uses first, and which scalars it makes."""

from collections.abc import Callable, Iterator
from typing import Any

import jax
from jax.extend.core import ClosedJaxpr, Jaxpr, Literal, Var, jaxpr_as_fun

_VIEWS = frozenset(
    {"convert_element_type", "copy", "reshape", "transpose", "squeeze", "expand_dims", "broadcast_in_dim"}
)
"""What gives a leaf another form is not its use: scripts cast all parameters at the start."""


def first_use(function: Callable[..., Any], tree: Any, *arguments: Any, **keywords: Any) -> list[int]:
    """The leaves of `tree` by their first use in `function(tree, *arguments)`, those never used last."""
    traced = jax.make_jaxpr(function)(tree, *arguments, **keywords)
    num_leaves = len(jax.tree.leaves(tree))
    leaves = dict(zip(traced.jaxpr.invars[:num_leaves], range(num_leaves), strict=True))
    return list(dict.fromkeys([*_uses(traced.jaxpr, leaves), *range(num_leaves)]))


def _uses(jaxpr: Jaxpr, leaves: dict[Var, int]) -> Iterator[int]:
    """Leaves as they are used, again and again; `leaves` says which variables stand for them."""
    leaves = dict(leaves)
    for equation in jaxpr.eqns:
        given = [None if isinstance(atom, Literal) else leaves.get(atom) for atom in equation.invars]
        inner = _inner(equation.params, len(given))
        if equation.primitive.name in _VIEWS:
            if given[0] is not None:
                leaves[equation.outvars[0]] = given[0]
        elif inner is not None:
            known = {var: leaf for var, leaf in zip(inner.invars, given, strict=True) if leaf is not None}
            yield from _uses(inner, known)
            leaves |= _handed_back(inner, known, equation.outvars)
        else:
            yield from (leaf for leaf in given if leaf is not None)


def _handed_back(inner: Jaxpr, known: dict[Var, int], outvars: Any) -> dict[Var, int]:
    """Leaves that a function inside only passes on."""
    return {
        outer: known[var]
        for var, outer in zip(inner.outvars, outvars, strict=False)
        if not isinstance(var, Literal) and var in known
    }


def _inner(params: dict[str, Any], num_inputs: int) -> Jaxpr | None:
    """The function inside an equation whose inputs are the equation's own: of jit, scan, remat and custom rules."""
    for value in params.values():
        jaxpr = value.jaxpr if isinstance(value, ClosedJaxpr) else value
        if isinstance(jaxpr, Jaxpr) and len(jaxpr.invars) == num_inputs:
            return jaxpr
    return None


def with_scalars(function: Callable[..., Any], *arguments: Any) -> tuple[Any, list[jax.Array]]:
    """What `function` returns, and every scalar that it computes on the way."""
    traced, shape = jax.make_jaxpr(function, return_shape=True)(*arguments)
    inner = traced.jaxpr
    made = [var for equation in inner.eqns for var in equation.outvars if var.aval.shape == ()]
    extended = inner.replace(outvars=[*inner.outvars, *made], debug_info=inner.debug_info.with_unknown_names())
    values = jaxpr_as_fun(ClosedJaxpr(extended, traced.consts))(*jax.tree.leaves(arguments))
    num_returned = len(inner.outvars)
    return jax.tree.unflatten(jax.tree.structure(shape), values[:num_returned]), values[num_returned:]
