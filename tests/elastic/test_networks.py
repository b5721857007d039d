"""Elastic jobs of workers on hosts of their own, one of which the others cannot reach for a while."""

import time
from collections.abc import Callable
from multiprocessing.process import BaseProcess
from pathlib import Path

import pytest

from bench.testbed.namespace import is_permitted
from bench.testbed.testbed import Testbed
from legato.testing.elastic_job import NEVER, elastic_job
from tests import forked_hosts

pytestmark = [
    pytest.mark.skipif(not is_permitted(), reason="this user may not make network namespaces"),
    pytest.mark.timeout(300),
]
NUM_HOSTS = 3
CUT_OFF = 1


@pytest.mark.parametrize("heals_first", [True, False], ids=["and finds out", "when it has given up"])
def test_a_link_that_heals_later_costs_an_epoch_and_who_was_cut_off_may_return(
    tmp_path: Path, heals_first: bool
) -> None:
    """It does not go on alone, although `LEGATO_ELASTIC=1` asks for one worker: the others may live, and do."""
    with Testbed(hosts=NUM_HOSTS, gbps=0.4, lossy=True) as testbed:

        def start(identity: int, function: Callable[..., None], arguments: tuple[object, ...]) -> BaseProcess:
            return forked_hosts.start(testbed, testbed.namespace(identity), f"host{identity}", function, arguments)

        with elastic_job(
            tmp_path, NUM_HOSTS, NEVER, start=start, MASTER_ADDR=testbed.address(0), LOCAL_WORLD_SIZE="1"
        ) as job:
            first, cut_off = job.processes[0], job.processes[CUT_OFF]
            cut_off.wait_until(30)
            testbed.set_loss(1.0, CUT_OFF)
            cut_s = time.monotonic()
            first.wait_until(0, size=NUM_HOSTS - 1)
            went_on_s = time.monotonic() - cut_s
            if heals_first:
                testbed.set_loss(0.0, CUT_OFF)
            assert cut_off.finish() == 3
            testbed.set_loss(0.0, CUT_OFF)
            assert cut_off.said[-1]["error"] == "PeerLostError"
            ended_s = time.monotonic() - cut_s
            again_s = time.monotonic()
            job.start(CUT_OFF, CUT_OFF).wait_until(1, size=NUM_HOSTS)
            first.wait_until(0, size=NUM_HOSTS)
            back_s = time.monotonic() - again_s
            job.end()
            job.finish(*range(NUM_HOSTS))
            job.check_sums()
            words = cut_off.said[-1]["words"]
            why = "refused: the others gave it up" if heals_first else "they went on without it and cannot be reached"
            assert words.startswith(f"the others gave this rank up: {why}"), words
    print(
        f"cut off: the others go on after {went_on_s:.1f} s, it ends after {ended_s:.1f} s and is back {back_s:.1f} s "
        f"after it is started again: {words}"
    )
