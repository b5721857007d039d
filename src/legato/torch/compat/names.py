"""Names: what the ranks call the same operation, so that they find each other.

In the group a name has one meaning for good, and every new name costs a round trip and memory for good. Scripts are
used to freer ways: one name with another shape later, or no name at all, thousands of times. So a name here is a
family of names there, with a member for every signature (shape, dtype, reduction, root) in the order in which the
signatures first came up:

    allreduce(loss)                  allreduce/noname#0      a scalar
    allreduce(loss)                  allreduce/noname#1      again a scalar: the next of its ring
    allreduce(image)                 allreduce/noname#2      a new signature
    allreduce(loss, name="loss")     allreduce/loss

Ranks that run the same program count the same. Where their first signatures differ, they meet under the same name and
hear of the mismatch at once.
"""

import threading
from collections import defaultdict
from collections.abc import Hashable

RING = 16
"""Nameless operations of one signature take turns with this many names: so many can be under way at once."""

_Key = tuple[str, str | None, int, Hashable]


class Names:
    """The names of one job, on one rank."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._known: dict[_Key, str] = {}
        self._of: dict[str, _Key] = {}
        self._num_members: dict[tuple[str, str | None], int] = defaultdict(int)
        self._num_nameless: dict[tuple[str, Hashable], int] = defaultdict(int)

    def claim(self, kind: str, name: str | None, signature: Hashable) -> str:
        """The group's name for the next operation of this kind, name and signature."""
        with self._lock:
            turn = 0
            if name is None:
                turn = self._num_nameless[kind, signature] % RING
                self._num_nameless[kind, signature] += 1
            key = (kind, name, turn, signature)
            if key not in self._known:
                self._known[key] = self._new(kind, name)
                self._of[self._known[key]] = key
            return self._known[key]

    def give_up(self, known: str) -> None:
        """An operation of this name has failed, on every rank: the next one of its kind begins with a fresh name."""
        with self._lock:
            key = self._of.pop(known, None)
            if key is not None:
                del self._known[key]

    def _new(self, kind: str, name: str | None) -> str:
        number = self._num_members[kind, name]
        self._num_members[kind, name] += 1
        if name is None:
            return f"{kind}/noname#{number}"
        return f"{kind}/{name}#{number}" if number else f"{kind}/{name}"
