"""Forks: what a child of this process must let go of.

It has copies of its parent's sockets, which would hide the parent's death from the others, and none of its threads. The
engine takes care of its own (the note in native/engine/forks.hpp); here is what Python holds.
"""

import functools
import os
import weakref
from collections.abc import Callable

_actions: "set[weakref.WeakMethod[Callable[[], None]]]" = set()


def in_children(action: Callable[[], None]) -> None:
    """Call a method in every child that this process forks; its object is not kept alive for that."""
    _listen()
    _actions.add(weakref.WeakMethod(action, _actions.discard))


@functools.cache
def _listen() -> None:
    os.register_at_fork(after_in_child=_act)


def _act() -> None:
    for known in list(_actions):
        action = known()
        if action is not None:
            action()
    _actions.clear()
