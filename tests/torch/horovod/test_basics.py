"""Where a process is among the hosts, and jobs of some ranks of a launcher's."""

import os

import pytest
import torch

import legato.horovod.torch as hvd
from legato.torch import init as init_of_legato
from tests.torch.crew import Crew


def _hosts(places: list[tuple[int, int]]) -> tuple[int, int, bool]:
    rank = int(os.environ["RANK"])
    os.environ.update(LOCAL_RANK=str(places[rank][0]), LOCAL_WORLD_SIZE=str(places[rank][1]))
    hvd.init()
    hvd.init()
    assert (hvd.local_rank(), hvd.local_size()) == places[rank]
    return hvd.cross_rank(), hvd.cross_size(), hvd.is_homogeneous()


@pytest.mark.parametrize(
    ("places", "expected"),
    [
        ([(0, 1)], [(0, 1, True)]),
        ([(0, 2), (1, 2)], [(0, 1, True)] * 2),
        ([(0, 1), (0, 1)], [(0, 2, True), (1, 2, True)]),
        ([(0, 2), (1, 2), (0, 1)], [(0, 2, False), (0, 1, False), (1, 2, False)]),
    ],
)
def test_hosts(crew: Crew, places: list[tuple[int, int]], expected: list[tuple[int, int, bool]]) -> None:
    assert crew.run(_hosts, places, size=len(places)) == expected


def _without_horovods_init() -> None:
    init_of_legato()
    with pytest.raises(ValueError, match=r"call legato\.horovod\.torch\.init"):
        hvd.cross_rank()


def test_hosts_are_found_at_init(crew: Crew) -> None:
    crew.run(_without_horovods_init, size=1)


def _communicator() -> tuple[int, int, float]:
    world_rank = int(os.environ["RANK"])
    for wrong, words in (
        ([0, 9], "accepted are ranks from 0 to 3"),
        ([3 - world_rank], "among them"),
        (object(), "MPI"),
    ):
        with pytest.raises(ValueError, match=words):
            hvd.init(comm=wrong)  # type: ignore[arg-type]
    hvd.init(comm=[0, 2] if world_rank % 2 == 0 else [1, 3])
    total = hvd.allreduce(torch.tensor([float(world_rank)]), op=hvd.Sum).item()
    return hvd.rank(), hvd.size(), total


def test_a_job_of_some_ranks(crew: Crew) -> None:
    """Two at once, of one launcher's four."""
    assert crew.run(_communicator, size=4) == [(0, 2, 2.0), (0, 2, 4.0), (1, 2, 2.0), (1, 2, 4.0)]
