"""The timeline of a simulated run, box by box."""

from pathlib import Path

import pytest

from legato.cli import main
from legato.core import Layer, Workload
from legato.core.policies import ByteScheduler
from legato.observe import TimelineConfig
from legato.observe.simulated import SimulatedWorker, write
from legato.sim import Architecture, Cluster, simulate
from tests.observe.picture import check_nesting, read

TWO = Workload("two", (Layer("a", 4, 1.0, 2.0), Layer("b", 8, 1.0, 2.0)))
S = 1_000_000_000


def test_every_box_of_a_small_run(tmp_path: Path) -> None:
    """Links of one byte a second; a ring of two; parts of 4 bytes, one in flight: half of it out, half of it back.

    forward   a b                  ··wait a··a              wait b··b
    backward      bb aa
    b             ──queued 0── in flight ─── … ───arrived
    """
    path = tmp_path / "run.json"
    plan = ByteScheduler().plan(TWO.tensors, partition_bytes=4, credit_bytes=4)
    worker = SimulatedWorker(TimelineConfig(path=path, last_step=1), TWO, plan)
    cluster = Cluster(workers=2, gbps=8e-9, architecture=Architecture.ALLREDUCE)
    simulate(TWO, cluster, plan, warmup=1, steps=1, observers=[worker])
    write(path, [("worker 0", worker)])
    picture = read(path)
    check_nesting(picture)
    rows = picture[0]
    assert list(rows) == ["forward", "backward", "a", "b", "part in flight 1"]

    def boxes(row: str, step: int) -> list[tuple[str, float, float]]:
        return [(name, begin / S, end / S) for name, begin, end, details in rows[row] if details.get("step") == step]

    assert boxes("forward", 0) == [("a", 0, 1), ("b", 1, 2)]
    assert boxes("backward", 0) == [("b", 2, 4), ("a", 4, 6)]
    assert boxes("part in flight 1", 0) == [("b @0", 4, 8), ("a @0", 8, 12), ("b @4", 12, 16)]
    assert boxes("forward", 1) == [("wait a", 6, 12), ("a", 12, 13), ("wait b", 13, 16), ("b", 16, 17)]
    assert [(name, begin / S, end / S) for name, begin, end, _ in rows["a"][:3]] == [
        ("step 0", 6, 12),
        ("queued", 6, 8),
        ("in flight", 8, 12),
    ]
    assert [(name, begin / S, end / S) for name, begin, end, _ in rows["b"][:2]] == [
        ("step 0", 4, 16),
        ("in flight", 4, 16),
    ]
    assert rows["part in flight 1"][0][3] == {"step": 0, "stage": "sync", "offset": 0, "bytes": 4}


def test_the_command_writes_it_for_every_group(tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    assert (
        main(["sim", "alexnet", "--workers", "4", "--policy", "rsag", "--arch", "rsag", "--timeline", str(path)]) == 0
    )
    picture = read(path)
    check_nesting(picture)
    assert {
        details["stage"] for row, boxes in picture[0].items() if row.startswith("part") for *_, details in boxes
    } == {
        "reduce-scatter",
        "all-gather",
    }


@pytest.mark.parametrize(
    ("options", "message"),
    [(["--policy", "all"], "--timeline: a timeline is of one policy"), ([], "is not a folder")],
)
def test_what_cannot_be_written_is_said(options: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    path = "run.json" if options else "/nowhere/run.json"
    assert main(["sim", "alexnet", "--timeline", path, *options]) == 2
    assert message in capsys.readouterr().err
