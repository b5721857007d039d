"""Keys of a distributed KVStore, chosen so that what is kept under them spreads over all servers."""

from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

_MULTIPLIER = 9973
"""MXNet keeps the array of a key on server (key × 9973) mod servers."""


class Place(NamedTuple):
    """Where an array is kept."""

    key: int
    servers: tuple[int, ...]


class KeySpace:
    """Hands out the keys of one KVStore. Ranks that ask for the same arrays in the same order get the same keys."""

    def __init__(self, num_servers: int, spread_elements: int) -> None:
        self._spread_elements = spread_elements
        self._load_bytes = [0] * num_servers
        self._num_keys = [0] * num_servers
        inverse = pow(_MULTIPLIER, -1, num_servers)
        self._first_key = [server * inverse % num_servers for server in range(num_servers)]

    @property
    def num_servers(self) -> int:
        return len(self._num_keys)

    def place(self, num_elements: int, num_bytes: int) -> Place:
        """A key for an array: on the server that keeps least, or on all where MXNet itself spreads so large a one."""
        num_servers = len(self._load_bytes)
        least = min(range(num_servers), key=self._load_bytes.__getitem__)
        if num_elements < self._spread_elements:
            self._load_bytes[least] += num_bytes
            return Place(self.key_on(least), (least,))
        for server in range(num_servers):
            self._load_bytes[server] += num_bytes // num_servers
        return Place(self.key_on(least), tuple(range(num_servers)))

    def key_on(self, server: int) -> int:
        """A key whose array is kept on that server, if MXNet does not spread it."""
        key = self._first_key[server] + self._num_keys[server] * len(self._num_keys)
        self._num_keys[server] += 1
        return key


_spaces: "WeakKeyDictionary[Any, KeySpace]" = WeakKeyDictionary()


def key_space(kv: Any, num_servers: int, spread_elements: int) -> KeySpace:
    """Of this KVStore: a key is initialised once, whoever else has wrapped it before."""
    return _spaces.setdefault(kv, KeySpace(num_servers, spread_elements))
