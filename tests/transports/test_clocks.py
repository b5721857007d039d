"""Clocks that jump: the wall clock of a rank is set forward and back while it works, and nobody is taken for dead.

The machine's own clock stays as it is: a library that is loaded first adds what a file says to the time of day.
"""

import shutil
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from legato.core.shards import Deployment
from legato.testing.ports import free_port
from tests.transports.test_trouble import read_until, worker_process

SHIFTED = r"""
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static int64_t shift_s(void) {
    static volatile int64_t* shift;
    if (!shift) {
        const int file = open(getenv("SHIFT_FILE"), O_RDONLY);
        shift = mmap(0, sizeof *shift, PROT_READ, MAP_SHARED, file, 0);
        close(file);
    }
    return *shift;
}

int clock_gettime(clockid_t clock, struct timespec* now) {
    const int status = syscall(SYS_clock_gettime, clock, now);
    if (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE) now->tv_sec += shift_s();
    return status;
}

int gettimeofday(struct timeval* now, void* zone) {
    struct timespec exact;
    clock_gettime(CLOCK_REALTIME, &exact);
    now->tv_sec = exact.tv_sec;
    now->tv_usec = exact.tv_nsec / 1000;
    return 0;
}

time_t time(time_t* now) {
    struct timespec exact;
    clock_gettime(CLOCK_REALTIME, &exact);
    if (now) *now = exact.tv_sec;
    return exact.tv_sec;
}
"""
DAY_S = 86_400
COMPILER = shutil.which("cc") or shutil.which("gcc")


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as made:
        yield made


@pytest.mark.skipif(COMPILER is None, reason="no C compiler")
def test_jumps_of_the_wall_clock_disturb_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stack: ExitStack
) -> None:
    """A day forward and two back, over several heartbeats of 1 s; the other rank's clock is right all the time."""
    assert COMPILER is not None
    (tmp_path / "shifted.c").write_text(SHIFTED)
    library, shift = tmp_path / "shifted.so", tmp_path / "shift"
    subprocess.run([COMPILER, "-shared", "-fPIC", "-O1", "-o", library, tmp_path / "shifted.c"], check=True, timeout=60)
    shift.write_bytes(struct.pack("<q", DAY_S))
    port, deployment = free_port(), Deployment(num_workers=2)
    with monkeypatch.context() as patch:
        patch.setenv("LD_PRELOAD", str(library))
        patch.setenv("SHIFT_FILE", str(shift))
        seen = subprocess.run(
            [sys.executable, "-c", "import time; print(time.time())"],
            capture_output=True,
            text=True,
            check=True,
            timeout=60,
        )
        assert float(seen.stdout) - time.time() > DAY_S / 2, "its clock is not shifted"
        shift.write_bytes(struct.pack("<q", 0))
        jumping = stack.enter_context(worker_process(0, deployment, port))
    steady = stack.enter_context(worker_process(1, deployment, port))
    read_until("20", jumping)
    for shifted_s in (DAY_S, -DAY_S):
        shift.write_bytes(struct.pack("<q", shifted_s))
        until_s = time.monotonic() + 2.5
        while time.monotonic() < until_s:
            for process in (jumping, steady):
                assert process.stdout is not None
                line = process.stdout.readline()
                assert line.strip().isdigit(), line
