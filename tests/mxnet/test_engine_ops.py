"""Operations of our own on MXNet's engine."""

import subprocess
import sys

import pytest

from tests.mxnet.cluster import cluster

pytest.importorskip("mxnet", reason="needs mxnet, which has an environment of its own: make test-mxnet")

TIMEOUT_S = 100

ENDS = '''
import os
import threading
import time

import mxnet as mx

from legato.mxnet import engine_ops


class Freed:
    def __del__(self):
        os.write(1, b"freed")


thing, begun = {thing}, threading.Event()


def ended_but_here(complete, held=thing):
    """MXNet waits for the end of operations, and not for what their threads do after it."""
    complete()
    begun.set()
    for _ in range(500):  # comes back to the interpreter all the time, until the main thread has ended it
        time.sleep(0.001)


engine_ops.push(ended_but_here, writes=[mx.nd.zeros((1,))], name="slow")
begun.wait()
'''


def test_a_process_ends_when_no_operation_is_in_python_any_more() -> None:
    """What a thread holds that is ended inside Python is never freed."""
    command = [sys.executable, "-c", ENDS.format(thing="Freed()")]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    assert (ended.returncode, ended.stdout) == (0, "freed"), ended.stderr


def test_a_worker_whose_operation_holds_its_kvstore_is_not_aborted() -> None:
    with cluster(workers=1, servers=1) as job:
        job.start_worker("-c", ENDS.format(thing='mx.kv.create("dist_sync")'))
        [output] = job.outputs(TIMEOUT_S)
        assert job.workers[0].returncode == 0, output
