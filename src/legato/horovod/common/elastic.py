"""Training that outlives changes of membership, as Horovod writes it: a state, and a function that can run again.

                 ┌────────────── on_reset ◄─ reset ◄────────────┐
                 ▼                                              │
sync ──► the user's function ── a rank is lost ──► restore ─────┤
           │         └───────── ranks wait to join ─────────────┘
           ▼
        its result
"""

import copy
import functools
import time
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar

from legato.errors import DivergedError, LimitError, MismatchError, NonFiniteError, UnsupportedError
from legato.horovod.common.exceptions import HorovodInternalError, HostsUpdatedInterrupt
from legato.torch import api

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")
BroadcastObject = Callable[[Any], Any]


class HostUpdateResult:
    """What has happened to hosts, in Horovod's numbers."""

    no_update = 0
    removed = 1
    added = 2
    mixed = 3


class State:
    """What is the same on all ranks, and survives the loss of some."""

    def __init__(self, bcast_object: BroadcastObject, get_rank: Callable[[], int]) -> None:
        self._bcast_object = bcast_object
        self._rank = get_rank
        self._reset_callbacks: list[Callable[[], None]] = []
        self._updated = (0.0, HostUpdateResult.no_update)
        """When hosts were last said to change, and how."""
        self._known_s = 0.0
        """Up to when all ranks know of changes."""

    def register_reset_callbacks(self, callbacks: Iterable[Callable[[], None]]) -> None:
        """Call these after each change of membership: to scale a learning rate by the number of ranks, for example."""
        self._reset_callbacks.extend(callbacks)

    def on_reset(self) -> None:
        """The membership has changed."""
        self._updated = (0.0, HostUpdateResult.no_update)
        self._known_s = 0.0
        self.reset()
        for callback in self._reset_callbacks:
            callback()

    def on_hosts_updated(self, timestamp: float, update_res: int = HostUpdateResult.added) -> None:
        """Note that hosts come or go; may be called from any thread. `check_host_updates` acts on it."""
        self._updated = (timestamp, self._updated[1] | update_res)

    def commit(self) -> None:
        """Keep everything as it is now, to return to if a rank is lost; then see whether ranks wait to join."""
        self.save()
        self.check_host_updates()

    def check_host_updates(self) -> None:
        """HostsUpdatedInterrupt on every rank at once, where ranks wait to join, or rank 0 was told of changes.

        All ranks call it. Who waits to join does so at rank 0.
        """
        if _has_newcomers():
            self.on_hosts_updated(time.time())
        updated_s, how = self._bcast_object(self._updated)
        if updated_s > self._known_s:
            self._known_s = updated_s
            raise HostsUpdatedInterrupt(how == HostUpdateResult.removed)

    def save(self) -> None:
        """Keep everything as it is now."""
        raise UnsupportedError(f"{type(self).__name__} has no save(): define it, or use ObjectState or TorchState")

    def restore(self) -> None:
        """Return to what was kept last."""
        raise UnsupportedError(f"{type(self).__name__} has no restore(): define it, or use ObjectState or TorchState")

    def sync(self) -> None:
        """Make it what it is on rank 0, the rank that has been there for longest."""
        raise UnsupportedError(f"{type(self).__name__} has no sync(): define it, or use ObjectState or TorchState")

    def reset(self) -> None:
        """Fit the state to the new membership, before the callbacks."""


def _has_newcomers() -> bool:
    job = api.current()
    return job.is_elastic and job.settings.num_workers > 1 and job.membership.has_newcomers


class ObjectState(State):
    """Plain values, lists, dicts, tensors and arrays: each keyword is an attribute."""

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any: ...

    def __init__(self, bcast_object: BroadcastObject, get_rank: Callable[[], int], **kwargs: Any) -> None:
        super().__init__(bcast_object, get_rank)
        self._saved_state = copy.deepcopy(kwargs)
        self._set_attributes(kwargs)

    def save(self) -> None:
        self._saved_state = copy.deepcopy({name: getattr(self, name) for name in self._saved_state})

    def restore(self) -> None:
        self._set_attributes(copy.deepcopy(self._saved_state))

    def sync(self) -> None:
        if self._saved_state:
            self._set_attributes(self._bcast_object({name: getattr(self, name) for name in self._saved_state}))
        self.save()

    def _set_attributes(self, values: dict[str, Any]) -> None:
        for name, value in values.items():
            setattr(self, name, value)


AnyState = TypeVar("AnyState", bound=State)
_MISTAKES = (MismatchError, DivergedError, NonFiniteError, LimitError)
"""What goes wrong between ranks that are all there: it would go wrong again."""


def run_fn(
    func: Callable[Concatenate[AnyState, Parameters], Result], reset: Callable[[], None]
) -> Callable[Concatenate[AnyState, Parameters], Result]:
    """The function, called again after each change of membership; `reset` forms the new one."""

    @functools.wraps(func)
    def wrapper(state: AnyState, /, *args: Parameters.args, **kwargs: Parameters.kwargs) -> Result:
        skip_sync = False
        while True:
            try:
                if not skip_sync:
                    state.sync()
                return func(state, *args, **kwargs)
            except _MISTAKES:
                raise
            except HorovodInternalError:
                state.restore()
                skip_sync = False
                reset()  # in here, so that its error says what came before
            except HostsUpdatedInterrupt as interrupt:
                skip_sync = interrupt.skip_sync
                reset()
            state.on_reset()

    return wrapper
