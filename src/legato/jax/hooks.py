"""Where averages are begun and awaited in a step: within it, or across it and the next one."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from legato.errors import InputError
from legato.exchange import ExchangeOptions
from legato.jax.buffers import Array, Averager, Tree, TreeExchange, is_traced
from legato.jax.tracing import first_use, with_scalars
from legato.job import Job

JobOf = Callable[[], Job]


def averaged_value_and_grad(
    job_of: JobOf,
    options: ExchangeOptions,
    function: Callable[..., Any],
    argnums: int | Sequence[int],
    has_aux: bool,
) -> Callable[..., Any]:
    averager = Averager(options)
    differentiate = jax.value_and_grad(function, argnums, has_aux)

    def averaged(*arguments: Any, **keywords: Any) -> Any:
        value, gradients = differentiate(*arguments, **keywords)
        return value, _average(averager, job_of(), gradients)

    return averaged


def averaging(
    job_of: JobOf, options: ExchangeOptions, inner: optax.GradientTransformation
) -> optax.GradientTransformationExtraArgs:
    averager = Averager(options)
    inner = optax.with_extra_args_support(inner)

    def update(updates: Tree, state: Tree, params: Tree | None = None, **extra: Any) -> tuple[Tree, Tree]:
        updates, state = inner.update(_average(averager, job_of(), updates), state, params, **extra)
        return updates, state

    return optax.GradientTransformationExtraArgs(inner.init, update)


def _average(averager: Averager, job: Job, tree: Tree) -> Tree:
    return tree if job.size == 1 else averager.exchange(job, tree).average(tree)


class ScheduledState(NamedTuple):
    """What a step leaves for the next one."""

    inner: Any
    """The optimizer's own."""
    started: tuple[Array, ...]
    """For each leaf: by which number to finish what was started, 0 if nothing was."""
    gradients: Tree
    """Those of a job of one, which have no way to go; None otherwise."""
    held: Any
    """Within a step, from `finish` to `start`: the averages, and scalars of the update; None otherwise. They keep their
    memory until then (native/jax/handlers.hpp: what XLA waits for)."""


class Schedule:
    """An optimizer whose updates come a step late, but before anybody sees it.

    `start` sends gradients on their way and returns; `finish`, at the beginning of the next step, updates parameters
    with the averages. XLA runs what is ready: each layer's forward waits for its own leaves alone, as long as the
    optimizer treats each leaf by itself. One that needs all of them (clipping by the global norm) waits for all.

        step k                              step k + 1
        finish ─ forward ─ backward ─ start │ finish ─ forward ─ backward ─ start
                              leaf L ═══════╪═══════════════►
                                leaf 1 ═════╪══►

    Do not donate the state to the jitted step: XLA would copy it first, and give the copies' memory to the forward
    pass, which then waits for updates it does not need. Parameters can be donated.
    """

    def __init__(
        self,
        job_of: JobOf,
        options: ExchangeOptions,
        inner: optax.GradientTransformation,
        order: Sequence[int] | None = None,
    ) -> None:
        self._job_of = job_of
        self._inner = inner
        self._order = order
        self._averager = Averager(options)

    def init(self, params: Tree) -> ScheduledState:
        alone = self._job_of().size == 1
        nothing = tuple(jnp.zeros((), jnp.uint32) for _ in jax.tree.leaves(params))
        return ScheduledState(
            self._inner.init(params), nothing, jax.tree.map(jnp.zeros_like, params) if alone else None, None
        )

    def finish(self, params: Tree, state: ScheduledState) -> tuple[Tree, ScheduledState]:
        """Parameters with the updates that are due. Finishing twice, or at the very first step, changes nothing."""
        return self._finish(params, state, lambda: self._order)

    def _finish(
        self, params: Tree, state: ScheduledState, order: Callable[[], Sequence[int] | None]
    ) -> tuple[Tree, ScheduledState]:
        if not isinstance(state, ScheduledState):
            raise InputError(f"state is {type(state).__name__}; accepted is what init, finish or start has returned")
        exchange = self._exchange(params, order)
        averages = state.gradients if exchange is None else exchange.finish(state.started, params)
        due = state.started[0] > 0
        (updates, inner), scalars = with_scalars(self._inner.update, averages, state.inner, params)
        updated = optax.apply_updates(params, updates)
        params, inner = jax.tree.map(lambda new, old: jnp.where(due, new, old), (updated, inner), (params, state.inner))
        finished = tuple(jnp.zeros_like(number) for number in state.started)
        within_step = exchange is not None and is_traced(averages)
        return params, ScheduledState(inner, finished, state.gradients, (averages, scalars) if within_step else None)

    def start(self, gradients: Tree, state: ScheduledState) -> ScheduledState:
        """Send gradients on their way, each when it is there; `state` is what `finish` has returned in this step."""
        exchange = self._exchange(gradients, lambda: self._order)
        if exchange is None:
            return state._replace(gradients=gradients, started=tuple(number + 1 for number in state.started))
        return state._replace(started=exchange.start(gradients, state.started, *(state.held or ())), held=None)

    def step(self, loss: Callable[..., Any], *, has_aux: bool = False) -> Callable[..., tuple[Tree, Any, Any]]:
        """A whole step, to be jitted: `params, state, value = step(params, state, *arguments)`.

        The order in which `loss(params, *arguments)` first uses the leaves is the order in which they are sent.
        """
        differentiate = jax.value_and_grad(loss, has_aux=has_aux)

        def step(params: Tree, state: ScheduledState, *arguments: Any) -> tuple[Tree, ScheduledState, Any]:
            params, state = self._finish(params, state, lambda: self._order or first_use(loss, params, *arguments))
            value, gradients = differentiate(params, *arguments)
            return params, self.start(gradients, state), value

        return step

    def _exchange(self, tree: Tree, order: Callable[[], Sequence[int] | None]) -> TreeExchange | None:
        job = self._job_of()
        return None if job.size == 1 else self._averager.exchange(job, tree, order)
