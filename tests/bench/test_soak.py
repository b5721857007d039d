"""Every fault of the soak is noticed, and changes no sum."""

from pathlib import Path
from random import Random

import pytest

from bench.meddling import Meddled
from bench.soak import KILL, KILL_SERVER, OTHERS, Soak
from legato.testing.elastic_job import NEVER, elastic_job


@pytest.mark.timeout(300)
def test_one_of_each(tmp_path: Path) -> None:
    soak = Soak(Random(1))
    settings = {"LEGATO_SHARED_MEMORY": "0", "LEGATO_WIRE": "authenticated"}
    with elastic_job(tmp_path, 3, NEVER, num_servers=1, loop=Meddled, **settings) as job:  # type: ignore[arg-type]
        for process in job.processes.values():
            process.wait_until(30)
        for fault in (*OTHERS, KILL, KILL_SERVER):
            soak.strike(job, fault)
        job.check_sums()
    faults = {fault.name for fault in (*OTHERS, KILL, KILL_SERVER)}
    returns = {"return", "return of a server"}
    assert soak.stood_s.keys() == faults | returns | {f"{name}, until it is there" for name in returns}
    assert soak.num_faults == len(faults)
