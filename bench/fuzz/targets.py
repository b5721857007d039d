"""Targets: the parsers of whatever comes from a socket or a file, each with inputs to begin with.

A LegatoError is how a target refuses; any other exception is a finding.
"""

import hmac
import random
import socket
import struct
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path

import numpy as np

from bench.fuzz import frames
from bench.fuzz.mutation import mutated
from legato.config_file import read_config_file
from legato.core import Layer, Tensor, Workload
from legato.core.plan import Plan
from legato.core.policies import POLICIES
from legato.errors import LegatoError
from legato.observe.report import recording
from legato.settings import read_settings
from legato.transports.declaration import Declaration
from legato.transports.rendezvous import messages as m
from legato.transports.rendezvous.join import MAGIC, Examination, JoinConfig
from legato.transports.rendezvous.session_keys import Stamps
from legato.tuning.autobyte import safetensors
from legato.tuning.statistics import Report

_KEY = b"a key of the fuzzer's own"
_NONCE_BYTES = 32


@dataclass(frozen=True, slots=True)
class Target:
    """A parser."""

    make: Callable[[random.Random], bytes]
    """An input."""
    run: Callable[[bytes], None]
    """Parse it; a LegatoError is a refusal."""


@cache
def _folder() -> Path:
    """Where parsers of files find their input; it goes with the process."""
    made = tempfile.TemporaryDirectory(prefix="legato-fuzz-")
    _kept.append(made)
    return Path(made.name)


_kept: list["tempfile.TemporaryDirectory[str]"] = []


def _file(read: Callable[[Path], object], name: str, data: bytes) -> None:
    path = _folder() / name
    path.write_bytes(data)
    read(path)


# ---- control messages ----

_STAMP_KEY = bytes(32)
_DECLARATION = Declaration(name="w", shape=(2, 3), dtype="float16")
_MESSAGES: tuple[m.Message, ...] = (
    m.Hello(None, "::1", 4000, (("version", "1"),), "host", "door"),
    m.Connected(),
    m.Declare((_DECLARATION, _DECLARATION)),
    m.Defined((1, 2)),
    m.Propose("{}", 3, everyone=True),
    m.Vote(1, "abc", ""),
    m.WindowReport(20, "AAAA"),
    m.Pace(3, 0.1, 0.01, 0.05, 0.04, 1e8, 2, 9e7),
    m.Waiting("w", 3, (1, 2), 0.5),
    m.OwnPost(m.Peer("ab", "10.0.0.1", 1)),
    m.Leave((("t", 3),)),
    m.Failed(m.ErrorText("MismatchError", "no", 1, "w", None)),
    m.Welcome(1, "job", (("10.0.0.1", 1),), (0, 0), ("a", "b")),
    m.Define((m.Definition(3, _DECLARATION),)),
    m.Stalled("no progress", (1,)),
    m.AllPosts((m.Peer("ab", "10.0.0.1", 1),)),
    m.Here(2, m.Peer("ab", "10.0.0.1", 1), at_boundary=False, serves=True),
    m.Called(3, (m.Peer("ab", "10.0.0.1", 1),), (), (), is_boundary=True, host="10.0.0.1", port=2),
    m.Dismissed(m.ErrorText("PeerLostError", "no")),
    m.Abort("{}", 3, m.ErrorText("PlanError", "no")),
)


def _messages(data: bytes) -> None:
    """With the stamp of somebody who holds the key: otherwise nothing would be read."""
    for message in m.Inbox(_STAMP_KEY).feed(data + Stamps(_STAMP_KEY).next(data)):
        m.encode(message)


def _framed(chance: random.Random, corpus: Sequence[bytes]) -> bytes:
    """With its length in front, mostly the right one: otherwise nothing behind it would be looked at."""
    body = mutated(chance, corpus)
    return body if chance.random() < 0.1 else struct.pack("!I", len(body)) + body


# ---- the join's greeting ----

_WHO = (
    b'{"purpose": "conductor", "job": "", "member": -1, "index": 0, "listener": -1}',
    b'{"purpose": "mesh", "job": "00ff00ff00ff00ff", "member": 3, "index": 1, "listener": 0}',
)


def _greeting(chance: random.Random) -> bytes:
    who = mutated(chance, _WHO)
    length = chance.choice((len(who) & 0xFFFF, len(who) & 0xFFFF, len(who) & 0xFFFF, chance.randrange(1 << 16)))
    greeting = MAGIC + struct.pack("!H", length) + who + bytes(_NONCE_BYTES)
    return greeting if chance.random() < 0.8 else mutated(chance, [greeting])


def _join(data: bytes) -> None:
    """The dialer holds the key, so that what it says of itself is read."""
    examination, fed = Examination(JoinConfig(key=_KEY)), b""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        while (wanted := examination.num_wanted) and (more := data[len(fed) :][:wanted]):
            fed += more
            reply = examination.feed(more)
            if reply:
                data = fed + hmac.digest(_KEY, b"dialer" + fed + reply, "sha256")
        if not examination.num_wanted:
            examination.verdict(theirs)


# ---- files and plans ----

_TENSORS = [Tensor(name=f"t{place}", num_bytes=4000 << place, priority=place) for place in range(4)]
_WORKLOAD = Workload("net", (Layer("a", 4000, 1e-3, 2e-3), Layer("b", 0, 1e-3, 2e-3), Layer("c", 64, 1e-3, 2e-3)))
_REPORT = Report(
    rank=1,
    steps_s=(0.1, 0.2),
    forward_s=(0.01,),
    backward_s=(0.02,),
    up_bytes_per_s=(1e8,),
    down_bytes_per_s=(1e8,),
)
_TIMELINE = b"""{"traceEvents": [
{"ph": "M", "pid": 0, "name": "process_name", "args": {"name": "rank 0, and 3 alike"}},
{"ph": "M", "pid": 0, "name": "process_labels", "args": {"labels": "clock"}},
{"ph": "M", "pid": 0, "tid": 1, "name": "thread_name", "args": {"name": "w"}},
{"ph": "X", "pid": 0, "tid": 0, "cat": "forward", "name": "wait w", "ts": 1.5, "dur": 2, "args": {"step": 0}},
{"ph": "X", "pid": 0, "tid": 0, "cat": "backward", "name": "w", "ts": 9, "dur": 2.5, "args": {"step": 0}},
{"ph": "X", "pid": 0, "tid": 1, "cat": "tensors", "name": "w", "ts": 1, "dur": 5, "args": {"step": 0, "bytes": 4}},
{"ph": "X", "pid": 0, "tid": 1, "cat": "tensors", "name": "queued", "ts": 1, "dur": 1, "args": {}},
{"ph": "X", "pid": 0, "tid": 2, "cat": "parts", "name": "w @0", "ts": 1, "dur": 5,
 "args": {"step": 0, "bytes": 4, "sent_after_us": 2}}]}"""
_CONFIG = (
    b'policy = "bytescheduler"\npartition_bytes = "256KiB"\ntimeout_s = 300\nshared_memory = false\n',
    b'conductor = "[::1]:4000"\nhost = "::1"\ntimeline = "t.json"\ntimeline_steps = "10-20"\nlog_level = "info"\n',
)


def _plans() -> list[bytes]:
    return [policy.plan(_TENSORS).to_json().encode() for policy in POLICIES.values()]


def _config(path: Path) -> None:
    read_config_file(path)
    read_settings({"LEGATO_CONFIG": str(path), "RANK": "0", "WORLD_SIZE": "1"})


def _weights() -> bytes:
    path = _folder() / "corpus.safetensors"
    safetensors.save(path, {"a": np.ones((2, 3), np.float32), "b": np.zeros(5, np.float32)}, {"made": "by legato"})
    return path.read_bytes()


def _text(read: Callable[[str], object], data: bytes) -> None:
    """Of what has come as a text: from a message, or a file that was read as one."""
    read(data.decode(errors="replace"))


def _from(corpus: Sequence[bytes], run: Callable[[bytes], None]) -> Target:
    return Target(partial(mutated, corpus=corpus), run)


def targets() -> dict[str, Target]:
    """All of them, by name."""
    return {
        "frames": Target(frames.make, frames.run),
        "join": Target(_greeting, _join),
        "messages": Target(partial(_framed, corpus=[m.encode(each)[4:] for each in _MESSAGES]), _messages),
        "plans": _from(_plans(), partial(_text, Plan.from_json)),
        "reports": _from([_REPORT.to_json().encode()], partial(_text, Report.from_json)),
        "workloads": _from([_WORKLOAD.to_json().encode()], partial(_text, Workload.from_json)),
        "timelines": _from([_TIMELINE], partial(_file, lambda path: recording.read([path]), "timeline.json")),
        "config": _from(_CONFIG, partial(_file, _config, "legato.toml")),
        "safetensors": _from([_weights()], partial(_file, safetensors.load, "weights.safetensors")),
    }


def refuses(target: Target, data: bytes) -> bool:
    """Whether the target refuses this input; whatever else it raises is a finding."""
    try:
        target.run(data)
    except LegatoError as error:
        if not str(error):
            raise AssertionError("it is refused without a word") from error
        return True
    return False
