"""A process that forks while its engines are at work: `python -m tests.engine.forking HOW KIND`.

HOW is `fork`, whose child ends as any interpreter does, or `multiprocessing`; KIND is how the engines are joined. Exits
with 0 when every child has.
"""

import gc
import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from legato._native import Engine, Handle
from tests.engine.mesh import EVERYONE, TIMEOUT_S, Mesh, finish, spread

NUM_BYTES = 1 << 20
NUM_CHILDREN = 5


def work(mesh: Mesh, stop: threading.Event) -> None:
    arrays = [np.ones(NUM_BYTES // 4, np.float32) for _ in mesh.workers]
    step = 0
    while not stop.is_set():
        finish(mesh.submit(0, step, arrays, arrays, reduction="max"))
        step += 1


def child(mesh: Mesh, unfinished: Handle) -> None:
    signal.alarm(int(TIMEOUT_S))  # a child that hangs ends, and says so by how
    for engine in mesh.engines:
        expect_to_be_refused(engine)
        engine.close()
    assert unfinished.poll()
    assert unfinished.wait(TIMEOUT_S)
    assert unfinished.failure is not None
    assert unfinished.failure.kind == "closed"
    assert not inherited_files()
    del engine, unfinished, mesh.engines[0]
    gc.collect()
    with Mesh(2) as own:  # a child may have engines of its own
        own.declare(0, 4, "float32", [(0, 4, 1, EVERYONE, EVERYONE)])
        own.push_pull(0, 0, [np.ones(1, np.float32)] * 2)


def expect_to_be_refused(engine: Engine) -> None:
    uses: list[Callable[[], object]] = [
        engine.statistics,
        lambda: engine.declare(1, "x", 4, "float32"),
        engine.take_events,
    ]
    for use in uses:
        with pytest.raises(RuntimeError, match="belongs to the process that made it"):
            use()
    assert engine.failure is not None
    assert engine.failure.kind == "closed"


def inherited_files() -> list[str]:
    """Sockets, and what an I/O thread waits for."""
    ours = ("socket:", "anon_inode:[event", "anon_inode:[timer", "/memfd:")
    files = [file for file in Path("/proc/self/fd").iterdir() if file.is_symlink()]
    return [target for target in (str(file.readlink()) for file in files) if target.startswith(ours)]


def fork_and_wait(how: str, mesh: Mesh, unfinished: Handle) -> int:
    if how == "multiprocessing":
        process = multiprocessing.get_context("fork").Process(target=child, args=(mesh, unfinished))
        process.start()
        process.join()
        assert process.exitcode is not None
        return process.exitcode
    pid = os.fork()
    if pid == 0:
        child(mesh, unfinished)
        sys.exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def main() -> int:
    how, kind = sys.argv[1:]
    stop = threading.Event()
    with Mesh(2, kind=kind, num_io_threads=2, heartbeat_s=1000.0) as mesh:
        mesh.declare(0, NUM_BYTES, "float32", spread(NUM_BYTES, 4096, range(2)))
        mesh.declare(1, 4, "float32", [(0, 4, 1, EVERYONE, EVERYONE)])
        array = np.ones(1, np.float32)
        unfinished = mesh.engines[0].submit(
            tensor=1, step=0, rank=0, source=array.ctypes.data, destination=array.ctypes.data, num_bytes=4
        )
        threads = [
            threading.Thread(target=work, args=(mesh, stop)),
            threading.Thread(target=unfinished.wait, args=(TIMEOUT_S,)),
        ]
        for thread in threads:
            thread.start()
        codes = [fork_and_wait(how, mesh, unfinished) for _ in range(NUM_CHILDREN)]
        stop.set()
        threads[0].join()
    threads[1].join()
    return max(map(abs, codes))


if __name__ == "__main__":
    sys.exit(main())
