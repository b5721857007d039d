"""What an engine has exchanged with each of its peers."""

from functools import partial

import numpy as np
import pytest

from legato._native import Engine
from tests.engine.mesh import Mesh, eventually, spread

NUM_BYTES = 400_000


def exchanged(engine: Engine) -> dict[int, tuple[int, int, int, int]]:
    return {peer: (sent, received, out, back) for peer, sent, received, out, back in engine.links()}


@pytest.mark.parametrize("num_lanes", [1, 2])
def test_a_peer_gets_what_was_sent_to_it(num_lanes: int) -> None:
    """The second worker has no share, the server has everything."""
    with Mesh(2, 1, num_lanes=num_lanes) as mesh:
        mesh.declare(0, NUM_BYTES, "float32", spread(NUM_BYTES, NUM_BYTES // 4, [2]))
        mesh.push_pull(0, 0, [np.ones(NUM_BYTES // 4, np.float32)] * 2)
        server = mesh.engines[2]
        for rank, worker in enumerate(mesh.workers):
            sent, received, *shared = exchanged(worker)[2]
            assert NUM_BYTES < sent < 1.1 * NUM_BYTES
            assert NUM_BYTES < received < 1.1 * NUM_BYTES
            assert shared == [0, 0]
            assert 1 - rank not in exchanged(worker), "there was nothing to say"
            eventually(partial(_is_mutual, worker, 2, server, rank), "what left has arrived")
        counters = server.statistics()
        assert counters["bytes_sent"] == sum(sent for sent, *_ in exchanged(server).values())
        assert counters["bytes_received"] == sum(received for _, received, *_ in exchanged(server).values())


def test_what_goes_through_memory_is_counted_apart() -> None:
    with Mesh(2, hosts=[0, 0]) as mesh:
        mesh.declare(0, NUM_BYTES, "float32", spread(NUM_BYTES, NUM_BYTES, [1]))
        mesh.push_pull(0, 0, [np.ones(NUM_BYTES // 4, np.float32)] * 2)
        [(peer, sent, received, out, back)] = mesh.engines[0].links()
        assert (peer, sent, received) == (1, 0, 0)
        assert NUM_BYTES < out < 1.1 * NUM_BYTES
        assert NUM_BYTES < back < 1.1 * NUM_BYTES
        assert mesh.engines[0].statistics()["bytes_shared"] == out + back


def _is_mutual(one: Engine, other_number: int, other: Engine, one_number: int) -> bool:
    here, there = exchanged(one)[other_number], exchanged(other)[one_number]
    return here[:2] == (there[1], there[0])
