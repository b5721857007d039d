"""Hosts of a testbed whose processes are forks of one that has loaded torch: each by itself takes seconds to do so.

For tests that see whether a benchmark runs to its end. A process that is measured starts anew, with an environment that
the allocator reads (bench/testbed/surroundings.py).
"""

import multiprocessing
import os
from collections.abc import Callable, Sequence
from multiprocessing import forkserver
from multiprocessing.context import ForkServerProcess

from bench.testbed.loopback import Loopback
from bench.testbed.namespace import Namespace, _setns
from bench.testbed.testbed import Testbed, _run_child
from tests.torch.crew import PRELOAD

_PROCESSES = multiprocessing.get_context("forkserver")


def prepare() -> None:
    """Start the process that forks, before a benchmark changes the environment: it forks for other tests, too."""
    _PROCESSES.set_forkserver_preload([*PRELOAD, "optuna", "scipy.stats", "sklearn.datasets"])
    forkserver.ensure_running()


def start(
    testbed: Testbed,
    namespace: Namespace,
    name: str,
    target: Sequence[str] | Callable[..., object],
    args: Sequence[object],
) -> ForkServerProcess:
    """In place of `Testbed._start`."""
    place = None if isinstance(testbed, Loopback) else f"/proc/{os.getpid()}/fd/{namespace.fd}"
    process = _PROCESSES.Process(target=_run, args=(place, dict(os.environ), target, args), name=name)
    process.start()
    return process


def _run(
    place: str | None, environ: dict[str, str], target: Sequence[str] | Callable[..., object], args: Sequence[object]
) -> None:
    if place is not None:
        entered = os.open(place, os.O_RDONLY)
        _setns(entered)
        os.close(entered)
    os.environ.clear()
    os.environ.update(environ)
    _run_child(os.getppid(), target, args)
