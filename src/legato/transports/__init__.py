"""Transports move parts between the ranks. docs/transports.md tells how members join, agree and move data.

base        what a transport is
memory      a fake, all ranks in one process
c10d        any process group of torch.distributed
native      the C++ engine, which starts parts itself: groups of workers and their operations, and servers
rendezvous  how members find each other, prove who they are, and agree
"""

from legato.transports.base import Transport
from legato.transports.buffer import Buffer
from legato.transports.declaration import Declaration, Operation
from legato.transports.memory import MemoryHub, MemoryTransport
from legato.transports.native.group import NativeGroup
from legato.transports.native.handle import Handle
from legato.transports.native.player import EngineConfig
from legato.transports.native.session import NativeConfig, Server
from legato.transports.rendezvous.join import JoinConfig
from legato.transports.rendezvous.member import MemberConfig

__all__ = [
    "Buffer",
    "Declaration",
    "EngineConfig",
    "Handle",
    "JoinConfig",
    "MemberConfig",
    "MemoryHub",
    "MemoryTransport",
    "NativeConfig",
    "NativeGroup",
    "Operation",
    "Server",
    "Transport",
]
