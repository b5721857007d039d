"""Checks: what facts mean."""

from dataclasses import replace

import pytest

from legato.doctor.checks import Check, Status, check_all
from legato.doctor.facts import Facts, Interface
from legato.doctor.links import Flow, Links, given_links
from legato.settings import read_settings

ETH0 = Interface(name="eth0", address="10.0.0.1", mtu=1500, speed_gbps=10.0)
RANK = Facts(
    rank=0,
    hostname="a",
    identity="a",
    python="3.12.1",
    legato="0.1.0",
    torch="2.9.0",
    kernel="6.1",
    instructions="avx2",
    address="10.0.0.1",
    interfaces=(ETH0,),
    congestion_control="cubic",
    cores=4.0,
    local_ranks=1,
    io_threads=2,
    load=0.3,
    run_delay=0.01,
    open_files=4096,
    shared_memory=True,
    dev_shm_bytes=8 << 30,
)
OTHER = replace(
    RANK, rank=1, hostname="b", identity="b", address="10.0.0.2", interfaces=(replace(ETH0, address="10.0.0.2"),)
)
FLOW = Flow(sender=0, receiver=1, gbps=9.4, low_gbps=9.3, high_gbps=9.5, latency_s=30e-6)
LINKS = Links(
    num_workers=2,
    num_hosts=2,
    gbps=9.4,
    low_gbps=9.0,
    high_gbps=9.5,
    latency_s=30e-6,
    engine_gbps=9.1,
    flows=(FLOW, replace(FLOW, sender=1, receiver=0)),
)


def checks(*ranks: Facts, links: Links | None = LINKS, **environ: str) -> dict[str, Check]:
    return {check.name: check for check in check_all(ranks, links, read_settings(environ))}


def test_a_healthy_job_has_no_warning() -> None:
    found = checks(RANK, OTHER)
    assert {check.status for check in found.values()} == {Status.OK}
    assert list(found) == [
        "versions",
        "instructions",
        "interfaces of a (rank 0)",
        "interfaces of b (rank 1)",
        "link of rank 0 to 1",
        "link of rank 1 to 0",
        "engine",
        "processors of a (rank 0)",
        "processors of b (rank 1)",
        "congestion control",
        "open files",
        "shared memory",
        "settings",
    ]
    assert found["versions"].found == "legato 0.1.0, python 3.12.1, torch 2.9.0, kernel 6.1"
    assert found["interfaces of a (rank 0)"].found == "eth0 10.0.0.1 (MTU 1500, 10 Gbit/s, used)"
    assert found["link of rank 0 to 1"].found == "9.4 Gbit/s (9.3 to 9.5), 30 µs one way"
    assert found["processors of a (rank 0)"].found == (
        "cores: 4, ranks: 1, their threads: 3, load 0.3, a busy thread waits 1% of its time"
    )


@pytest.mark.parametrize(
    ("name", "rank", "advice"),
    [
        ("versions", replace(OTHER, torch="2.8.0"), "install the same version of torch on every host"),
        ("instructions", replace(OTHER, instructions="scalar"), "sums are slow on b"),
        (
            "interfaces of b (rank 1)",
            replace(OTHER, interfaces=(*OTHER.interfaces, replace(ETH0, name="ib0", address="x", speed_gbps=100.0))),
            "set LEGATO_INTERFACE=ib0",
        ),
        ("processors of b (rank 1)", replace(OTHER, run_delay=0.4), "steps will be longer than forecast"),
        ("processors of b (rank 1)", replace(OTHER, cores=0.5), "there are more ranks than cores"),
        ("congestion control", replace(OTHER, congestion_control="bbr"), "hosts differ"),
        ("open files", replace(OTHER, open_files=256), "ulimit -n 4096"),
        ("shared memory", replace(OTHER, local_ranks=2, shared_memory=False), "unset LEGATO_SHARED_MEMORY"),
        ("/dev/shm of b (rank 1)", replace(OTHER, dev_shm_bytes=64 << 20), "--shm-size"),
    ],
)
def test_what_is_wrong_is_named_with_what_to_do(name: str, rank: Facts, advice: str) -> None:
    check = checks(RANK, rank)[name]
    assert check.status is not Status.OK
    assert advice in check.advice


def test_a_slow_link_is_named() -> None:
    slow = replace(LINKS, flows=(FLOW, replace(FLOW, sender=1, receiver=0, gbps=2.0)))
    assert checks(RANK, OTHER, links=slow)["link of rank 1 to 0"].advice == (
        "the slowest link sets the pace: look at the way from rank 1 to rank 0"
    )
    both = replace(LINKS, flows=tuple(replace(flow, gbps=1.0) for flow in LINKS.flows))
    assert "eth0 says 10 Gbit/s" in checks(RANK, OTHER, links=both)["link of rank 0 to 1"].advice


def test_an_engine_that_is_slower_than_its_links_is_named() -> None:
    assert "LEGATO_THREADS" in checks(RANK, OTHER, links=replace(LINKS, engine_gbps=3.0))["engine"].advice


def test_a_loopback_is_called_one() -> None:
    found = checks(RANK, replace(RANK, rank=1), links=replace(LINKS, num_hosts=1))
    assert found["network"].status is Status.NOTE
    assert "not a network" in found["network"].found


def test_given_links_are_called_so() -> None:
    assert "nothing measured" in checks(RANK, links=given_links(4, 10.0, 0.0))["links"].found
    assert "links" not in checks(RANK, links=None)


def test_settings_under_other_names_are_told() -> None:
    found = checks(RANK, links=None, BYTESCHEDULER_CREDIT="1000")["settings"]
    assert found.advice == "BYTESCHEDULER_CREDIT is taken for LEGATO_CREDIT_BYTES=4000"
