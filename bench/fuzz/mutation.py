"""Mutations: inputs that were valid before chance changed them. A seed and a number always make the same input."""

import json
import random
from collections.abc import Callable, Sequence
from copy import deepcopy
from typing import Any

_BYTES = (b"", b"\0", b"\xff", b"\xff" * 4, b"\x00\x00\x00\x80", b"-1", b"1e999", b"NaN", b"9" * 5000, b'"')
_VALUES: tuple[Any, ...] = (
    None,
    True,
    -1,
    0,
    1,
    2**31,
    2**63,
    -(2**64),
    10**400,
    0.5,
    -1e308,
    float("inf"),
    float("nan"),
    "",
    "é\ud800",
    "x" * 2000,
    [],
    [[]],
    {},
    {"": None},
)
_DEEP = 100_000
_DEEP_SHARE = 0.002


def mutated(chance: random.Random, corpus: Sequence[bytes]) -> bytes:
    """One of the corpus, a little or very much changed; half of the JSON among it stays JSON."""
    data = chance.choice(corpus)
    if chance.random() < _DEEP_SHARE:
        return b"[" * _DEEP
    if chance.random() < 0.5:
        try:
            document = json.loads(data)
        except ValueError:
            pass
        else:
            for _ in range(1 + int(chance.expovariate(1.0))):
                document = _changed(chance, document)
            return json.dumps(document).encode()
    for _ in range(1 + int(chance.expovariate(0.7))):
        data = chance.choice(_CHANGES)(chance, data, corpus)
    return data


def _changed(chance: random.Random, document: Any) -> Any:
    """With one of its values, at any depth, replaced, left out or doubled."""
    if not isinstance(document, list | dict) or not document or chance.random() < 0.15:
        return deepcopy(chance.choice(_VALUES))
    places = list(document) if isinstance(document, dict) else range(len(document))
    place = chance.choice(list(places))
    what = chance.random()
    if what < 0.1:
        del document[place]
    elif what < 0.15 and isinstance(document, list):
        document.insert(place, deepcopy(document[place]))
    elif what < 0.2:
        document[place] = deepcopy(document[chance.choice(list(places))])
    else:
        document[place] = _changed(chance, document[place])
    return document


def _flip(chance: random.Random, data: bytes, _: Sequence[bytes]) -> bytes:
    changed = bytearray(data)
    if changed:
        changed[chance.randrange(len(changed))] ^= 1 << chance.randrange(8)
    return bytes(changed)


def _overwrite(chance: random.Random, data: bytes, _: Sequence[bytes]) -> bytes:
    place, put = chance.randint(0, len(data)), chance.choice(_BYTES)
    return data[:place] + put + data[place + len(put) :]


def _insert(chance: random.Random, data: bytes, _: Sequence[bytes]) -> bytes:
    place = chance.randint(0, len(data))
    return data[:place] + (chance.choice(_BYTES) or chance.randbytes(chance.randint(1, 40))) + data[place:]


def _cut(chance: random.Random, data: bytes, _: Sequence[bytes]) -> bytes:
    begin, end = sorted(chance.randint(0, len(data)) for _ in range(2))
    return data[:begin] + data[end:]


def _double(chance: random.Random, data: bytes, _: Sequence[bytes]) -> bytes:
    begin, end = sorted(chance.randint(0, len(data)) for _ in range(2))
    return data[:end] + data[begin:]


def _splice(chance: random.Random, data: bytes, corpus: Sequence[bytes]) -> bytes:
    other = chance.choice(corpus)
    return data[: chance.randint(0, len(data))] + other[chance.randint(0, len(other)) :]


_Change = Callable[[random.Random, bytes, Sequence[bytes]], bytes]
_CHANGES: tuple[_Change, ...] = (_flip, _flip, _overwrite, _insert, _cut, _double, _splice)
