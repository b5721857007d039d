"""Facts are those of this process and host."""

import os
import platform
import resource
import socket
import threading
from importlib.metadata import version
from importlib.util import find_spec

import pytest

from legato import __version__
from legato._native import instruction_set
from legato.doctor.facts import Facts, measure_run_delay, read_facts
from legato.settings import read_settings


@pytest.fixture(scope="module")
def facts() -> Facts:
    return read_facts(read_settings({}), "127.0.0.1")


def test_versions(facts: Facts) -> None:
    assert (facts.legato, facts.python) == (__version__, platform.python_version())
    assert (facts.kernel, facts.instructions) == (os.uname().release, instruction_set())


def test_the_version_of_torch_is_known_without_importing_it(facts: Facts) -> None:
    assert facts.torch == (version("torch") if find_spec("torch") else None)


def test_the_interface_that_others_come_by_is_known(facts: Facts) -> None:
    used = facts.interface()
    assert used is not None
    assert (used.name, used.address) == ("lo", "127.0.0.1")
    assert used.mtu >= 1280
    assert {each.name for each in facts.interfaces} <= {name for _, name in socket.if_nameindex()}


def test_limits_and_processors(facts: Facts) -> None:
    assert facts.open_files == resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    assert 0 < facts.cores <= len(os.sched_getaffinity(0))
    assert facts.congestion_control
    assert facts.shared_memory
    assert facts.load >= 0


def test_a_thread_that_shares_its_processor_waits_half_of_its_time() -> None:
    """Two busy threads on one processor; Python's lock would keep them apart, so the other one is a process."""
    allowed = os.sched_getaffinity(0)
    one = {min(allowed)}
    waited: list[float | None] = []

    def work() -> None:
        os.sched_setaffinity(0, one)  # of this thread alone
        child = os.posix_spawn("/bin/sh", ["sh", "-c", "while :; do :; done"], {})
        try:
            waited.append(measure_run_delay(0.5))
        finally:
            os.kill(child, 9)
            os.waitpid(child, 0)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    [share] = waited
    if share is None:
        pytest.skip("this kernel does not count run delays")
    assert share > 0.2
