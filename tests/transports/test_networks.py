"""Networks that lose, slow down or cut off what ranks send: between processes on hosts of their own."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median

import numpy as np
import pytest

from bench.testbed import crew
from bench.testbed.launch import Launch
from bench.testbed.namespace import is_permitted
from bench.testbed.testbed import Testbed
from legato.errors import JobError
from legato.settings import read_settings
from legato.transports.native.group import NativeGroup

pytestmark = pytest.mark.skipif(not is_permitted(), reason="this user may not make network namespaces")

NUM_HOSTS = 3
TOTAL = NUM_HOSTS * (NUM_HOSTS + 1) / 2
NUM_ITEMS = 100_000
FEW_ITEMS = 20_000
FAULT_STEP = 5
"""The step after which something happens to a network."""
VICTIM = 1
HEARTBEAT_S = 20.0
"""Processes that start, and the one that drops packets, can keep a busy machine silent for longer than 5 s."""


@dataclass(frozen=True)
class Ending:
    """How a rank's steps ended, and how long they took."""

    kind: str
    rank: int | None
    text: str
    steps_s: tuple[float, ...]


def add_ones(station: crew.Station, launch: Launch, heartbeat_s: float, num_steps: int, num_items: int) -> Ending:
    """Sums, each of which must be right, until so many are done or the job has ended."""
    environment = {**launch.environment(station.rank), "LEGATO_HEARTBEAT_S": str(heartbeat_s)}
    steps_s: list[float] = []
    with NativeGroup(read_settings(environment).native()) as group:
        for step in range(num_steps):
            begun_s = time.monotonic()
            value = np.full(num_items, group.rank + 1, np.float32)
            try:
                group.push_pull("w", value, step=step)
            except JobError as error:
                steps_s.append(time.monotonic() - begun_s)
                return Ending(type(error).__name__, error.rank, str(error), tuple(steps_s))
            assert (value == TOTAL).all(), f"a wrong sum in step {step}"
            steps_s.append(time.monotonic() - begun_s)
            station.tell(step)
    return Ending("", None, "", tuple(steps_s))


def endings(
    testbed: Testbed,
    fault: Callable[[], None],
    *,
    heartbeat_s: float = HEARTBEAT_S,
    num_steps: int = 15,
    num_items: int = NUM_ITEMS,
) -> list[Ending]:
    """Of all ranks, when something happens to their network in the middle of their work."""

    def hear(rank: int, step: int) -> None:
        if rank == 0 and step == FAULT_STEP:
            fault()

    launch = Launch(num_workers=NUM_HOSTS, conductor=testbed.address(0))
    return crew.follow(testbed, range(NUM_HOSTS), hear, add_ones, launch, heartbeat_s, num_steps, num_items)


def silence(testbed: Testbed, for_s: float) -> None:
    """Cut the victim off for so long: not to wait for anything."""
    testbed.set_loss(1.0, VICTIM)
    time.sleep(for_s)
    testbed.set_loss(0.0, VICTIM)


@pytest.mark.parametrize("share", [0.01, 0.1], ids=["1 %", "10 %"])
def test_packet_loss_changes_no_sum_and_ends_nothing(share: float) -> None:
    """TCP waits twice as long for every packet that it loses again: at 10 % now and then for longer than 5 s."""
    with Testbed(hosts=NUM_HOSTS, gbps=0.2, lossy=True) as testbed:

        def lose() -> None:
            for host in range(NUM_HOSTS):
                testbed.set_loss(share, host, received=False)

        found = endings(testbed, lose, num_steps=11, num_items=FEW_ITEMS)
    assert [ending.text for ending in found] == [""] * NUM_HOSTS
    _print(f"loss of {share:.0%}", found)


def test_a_bandwidth_that_collapses_to_a_twentieth_ends_nothing() -> None:
    """Hosts send one packet at a time: what is queued as a large one is never sent once the token bucket is smaller."""
    with Testbed(hosts=NUM_HOSTS, gbps=0.4, lossy=True) as testbed:
        found = endings(testbed, lambda: testbed.set_rate(0.02, VICTIM))
    assert [ending.text for ending in found] == [""] * NUM_HOSTS
    _print("a twentieth", found)


@pytest.mark.parametrize("sent", [True, False], ids=["what it sends", "what it receives"])
def test_a_partition_in_one_direction_is_one_in_both(sent: bool) -> None:
    """All end, and name both ends of a link to the one that is cut off. Who hears nothing blames the other end, and
    where it can still speak, the others believe it."""
    with Testbed(hosts=NUM_HOSTS, gbps=0.4, lossy=True) as testbed:

        def cut_off() -> None:
            testbed.set_loss(1.0, VICTIM, sent=sent, received=not sent)

        found = endings(testbed, cut_off, heartbeat_s=1.0, num_steps=1_000_000)
    assert {ending.kind for ending in found} == {"PeerLostError"}, found
    for ending in found:
        assert f"member {VICTIM}" in ending.text, ending.text
        assert "the link between them is broken" in ending.text, ending.text
    _print("cut off one way", found)


def test_a_partition_that_heals_within_a_heartbeat_ends_nothing() -> None:
    with Testbed(hosts=NUM_HOSTS, gbps=0.4, lossy=True) as testbed:
        found = endings(testbed, lambda: silence(testbed, 2.0))
    assert [ending.text for ending in found] == [""] * NUM_HOSTS
    _print("2 s of silence", found)


def test_a_partition_that_heals_later_ends_the_job_as_one_that_does_not() -> None:
    """When it heals, all have seen that the link is broken: nobody is brought back to a job that is over."""
    with Testbed(hosts=NUM_HOSTS, gbps=0.4, lossy=True) as testbed:
        found = endings(testbed, lambda: silence(testbed, 4.0), heartbeat_s=1.0, num_steps=1_000_000)
    assert {ending.kind for ending in found} == {"PeerLostError"}, found
    for ending in found:
        assert f"member {VICTIM}" in ending.text, ending.text
        assert "the link between them is broken" in ending.text, ending.text
    _print("4 s of silence", found)


def _print(what: str, found: list[Ending]) -> None:
    """For docs/reliability.md: pytest -s."""
    before = median(found[0].steps_s[:FAULT_STEP])
    after = found[0].steps_s[FAULT_STEP + 1 :]
    print(f"{what}: {before * 1e3:.1f} ms a step before, then {median(after) * 1e3:.1f}, at most {max(after):.2f} s")
