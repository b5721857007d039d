"""Facts as a job tells them, and a board that has them."""

from typing import Any

from legato.live.board import Board
from legato.live.facts import Box, Gantt, JobFacts, LinkPoint, Links, Marker, Point, RankPoint, Trial, TuningState

JOB = "train.py@here"


def job_facts(run: str = "1-1.0") -> JobFacts:
    return JobFacts(
        name="train.py",
        host="here",
        run=run,
        started=1_000.0,
        workers=2,
        about='legato is on: "2" workers',
        tensors=(("0.weight", 4096), ("1.weight", 1024)),
    )


def point(step: int = 10, **others: Any) -> Point:
    values: dict[str, Any] = {
        "time": 1_000.0 + step,
        "step": step,
        "step_s": 0.110,
        "steps_per_s": 9.0,
        "exposed_s": 0.011,
        "bound_s": 0.1,
        "ranks": tuple(
            RankPoint(
                rank=rank,
                step=step,
                step_s=0.1 + rank / 100,
                exposed_s=0.011,
                sent_bytes=1000 * step,
                received_bytes=900 * step,
                shared_bytes=0,
                sent_bytes_per_s=125e6,
                received_bytes_per_s=100e6,
                shared_bytes_per_s=0.0,
                in_flight_bytes=512,
            )
            for rank in range(2)
        ),
        "queue": ((0, 4096),),
    }
    return Point(**(values | others))


def links(step: int = 10) -> Links:
    """Between two ranks through memory, and between one of them and a server."""
    return Links(
        time=1_000.0 + step,
        links=tuple(
            LinkPoint(
                rank=rank,
                peer=peer,
                shared=peer != "server 0",
                sent_bytes=100 * step,
                received_bytes=90 * step,
                sent_bytes_per_s=25_000_000,
                received_bytes_per_s=20_000_000,
            )
            for rank, peer in ((0, "1"), (0, "server 0"), (1, "0"))
        ),
    )


def whole_board() -> Board:
    board = Board()
    board.add(JOB, job_facts())
    for step in range(1, 4):
        board.add(JOB, point(10 * step))
        board.add(JOB, links(10 * step))
    board.add(JOB, Marker(time=1_005.0, kind="plan", text="bytescheduler in parts of 1MiB", step=7))
    board.add(JOB, Marker(time=1_006.0, kind="fault", text="rank 1 waits for rank 0"))
    trials = (
        Trial(policy="bytescheduler", partition_bytes=1 << 20, credit_bytes=16 << 20, num_steps=10, step_s=0.11),
        Trial(policy="wfbp", partition_bytes=None, credit_bytes=None, num_steps=3, step_s=None),
    )
    predictions = (("bytescheduler", 2 << 20, 32 << 20, 0.12),)
    board.add(JOB, TuningState(trials=trials, path=(0, 1, 0), predictions=predictions, said="it stays on"))
    boxes = tuple(
        Box(row=row, kind=kind, name="0.weight", begin_s=begin_s, end_s=begin_s + 0.02)
        for row, kind, begin_s in (
            ("forward", "wait", 0.0),
            ("forward", "update", 0.02),
            ("forward", "forward", 0.04),
            ("backward", "backward", 0.06),
            ("network 1", "part", 0.01),
        )
    )
    board.add(JOB, Gantt(step=29, seconds=0.1, boxes=boxes))
    return board
