"""A worker in a process of its own, for tests that kill or stop it:

    python -m tests.transports.worker RANK NUM_WORKERS NUM_SERVERS PORT [--with-child]

It says when it is about to join, adds ones, step after step, and says which step it has finished. Its child lives until
its input ends, and tries to use what belongs to its parent.
"""

import os
import sys

import numpy as np

from legato.core.shards import Deployment
from legato.errors import ClosedError, LegatoError
from legato.transports.native.group import NativeGroup
from legato.transports.native.player import EngineConfig
from legato.transports.native.session import NativeConfig
from legato.transports.rendezvous.member import MemberConfig


def config(rank: int | None, deployment: Deployment, port: int) -> NativeConfig:
    return NativeConfig(
        member=MemberConfig(rank=rank, deployment=deployment, conductor_port=port, join_timeout_s=20.0, timeout_s=20.0),
        engine=EngineConfig(heartbeat_s=1.0),
    )


def add_ones(group: NativeGroup, num_steps: int) -> None:
    for step in range(num_steps):
        group.push_pull("ones", np.ones(100_000, np.float32), step=step)
        print(step, flush=True)


def live_as_child(group: NativeGroup) -> int:
    try:
        group.push_pull("ones", np.ones(100_000, np.float32))
    except ClosedError as error:
        print(f"child: {error}", flush=True)
    group.close()
    sys.stdin.read()
    return 0


def main() -> int:
    rank, num_workers, num_servers, port = map(int, sys.argv[1:5])
    deployment = Deployment(num_workers=num_workers, num_servers=num_servers, workers_serve=not num_servers)
    print("started", flush=True)
    try:
        with NativeGroup(config(rank, deployment, port)) as group:
            if "--with-child" in sys.argv and os.fork() == 0:
                return live_as_child(group)
            add_ones(group, 1_000_000)
    except LegatoError as error:
        print(f"{type(error).__name__}: {error}", flush=True)
        return 3
    return 0


if __name__ == "__main__":
    sys.exit(main())
