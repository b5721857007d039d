"""The timeline of a job on the native engine: ranks as threads, one file."""

import json
from pathlib import Path

import numpy as np
import pytest

from legato.core.shards import Deployment
from legato.errors import InputError
from legato.observe import Timeline, TimelineConfig
from legato.testing.native_job import job_configs, run_job
from legato.transports.native.group import NativeGroup
from tests.observe.picture import Picture, check_nesting, labels, phases, read

SIZES = (300_000, 1000)
"""Of float32 tensors: the first travels in five parts."""


def play(timeline: Timeline, group: NativeGroup, steps: int) -> None:
    values = [np.ones(size, np.float32) for size in SIZES]
    for step in range(steps):
        handles = [group.push_pull_async(f"t{index}", value, step=step) for index, value in enumerate(values)]
        for index, handle in enumerate(handles):
            handle.wait()
            timeline.applied((f"t{index}",), step)


def run(body: object, size: int = 2) -> None:
    run_job(job_configs(Deployment(num_workers=size)), body)  # type: ignore[arg-type]


def part_boxes(picture: Picture, rank: int) -> list[tuple[str, int, int, dict[str, int]]]:
    return [box for row, boxes in picture[rank].items() if row.startswith("part in flight") for box in boxes]


def test_one_file_with_the_lives_of_all_tasks_on_all_ranks(tmp_path: Path) -> None:
    path = tmp_path / "run.json"

    def body(group: NativeGroup) -> None:
        timeline = Timeline(group.rank, group.size)
        timeline.start(TimelineConfig(path=path))
        timeline.follow(group)
        play(timeline, group, 3)
        timeline.stop()
        assert not timeline.on

    run(body)
    assert [each.name for each in tmp_path.iterdir()] == ["run.json"]
    picture = read(path)
    check_nesting(picture)
    assert sorted(picture) == [0, 1]
    assert labels(path)[1].startswith("clock within ")
    for rank in (0, 1):
        assert {row for row in picture[rank] if not row.startswith("part")} == {"t0", "t1"}
        for index, size in enumerate(SIZES):
            found = phases(picture[rank][f"t{index}"])
            assert list(found) == [0, 1, 2]
            assert all(
                set(each) <= {"queued", "in flight", "arrived"} and "in flight" in each for each in found.values()
            )
            for step in range(3):
                mine = [
                    box
                    for box in part_boxes(picture, rank)
                    if box[0].startswith(f"t{index} ") and box[3]["step"] == step
                ]
                assert sum(box[3]["bytes"] for box in mine) == 4 * size
                (task,) = (box for box in picture[rank][f"t{index}"] if box[0] == f"step {step}")
                assert all(task[1] <= begin <= end <= task[2] for _, begin, end, _ in mine)
                assert task[3] == {"step": step, "bytes": 4 * size}


def test_causes_come_before_effects_on_the_common_clock(tmp_path: Path) -> None:
    """A sum is nowhere before every rank has started its part; the stated error is all that may be missing."""
    path = tmp_path / "run.json"

    def body(group: NativeGroup) -> None:
        timeline = Timeline(group.rank, group.size)
        timeline.follow(group)
        timeline.start(TimelineConfig(path=path))
        play(timeline, group, 2)
        timeline.stop()

    run(body)
    picture = read(path)
    error_ns = int(labels(path)[1].split()[2]) * 1000 + 1000
    starts = [{(name, box["step"]): begin for name, begin, _, box in part_boxes(picture, rank)} for rank in (0, 1)]
    ends = [{(name, box["step"]): end for name, _, end, box in part_boxes(picture, rank)} for rank in (0, 1)]
    assert starts[0].keys() == ends[1].keys()
    for part in starts[0]:
        assert ends[1][part] >= starts[0][part] - error_ns
        assert ends[0][part] >= starts[1][part] - error_ns


def test_only_the_steps_that_are_wanted_and_no_more_than_there_is_room_for(tmp_path: Path) -> None:
    def body(group: NativeGroup) -> None:
        timeline = Timeline(group.rank, group.size)
        timeline.follow(group)
        timeline.start(TimelineConfig(path=tmp_path / "window.json", first_step=2, last_step=3))
        play(timeline, group, 6)
        timeline.start(TimelineConfig(path=tmp_path / "full.json", max_notes=5))
        group.push_pull("another", np.ones(300_000, np.float32))
        timeline.stop()
        assert group.session.engine.take_events() == []

    run(body)
    assert list(phases(read(tmp_path / "window.json")[0]["t0"])) == [2, 3]
    assert "incomplete" in labels(tmp_path / "full.json")[0]
    assert "incomplete" not in labels(tmp_path / "window.json").get(0, "")


def test_a_rank_that_ends_alone_writes_a_file_of_its_own(tmp_path: Path) -> None:
    def body(group: NativeGroup) -> None:
        timeline = Timeline(group.rank, group.size)
        timeline.start(TimelineConfig(path=tmp_path / "run.json"))
        timeline.follow(group)
        play(timeline, group, 1)
        if group.rank == 0:
            group.push_pull_async("t1", np.ones(1000, np.float32), step=1)
        timeline.stop(together=False)

    configs = job_configs(Deployment(num_workers=2))
    run_job(configs, body)
    for rank in (0, 1):
        picture = read(tmp_path / f"run.rank{rank}.json")
        check_nesting(picture)
        assert list(picture) == [rank]
        assert list(phases(picture[rank]["t1"])) == [[0, 1], [0]][rank]
    unfinished = [box[3]["step"] for box in read(tmp_path / "run.rank0.json")[0]["t1"] if "unfinished" in box[3]]
    assert unfinished == [1]


def test_ranks_that_never_met_keep_their_clocks_and_files(tmp_path: Path) -> None:
    for rank in (0, 1):
        timeline = Timeline(rank, 2)
        timeline.start(TimelineConfig(path=tmp_path / "run.json"))
        timeline.stretch("forward", "layer", 5000, 3, 7000)
        timeline.stop()
    assert sorted(each.name for each in tmp_path.iterdir()) == ["run.rank0.json", "run.rank1.json"]
    assert labels(tmp_path / "run.rank1.json") == {1: "clock its own"}


def test_alone_there_is_nobody_to_meet(tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    timeline = Timeline(0, 1)
    timeline.stop()
    timeline.stretch("forward", "ignored", 0, 0)
    timeline.start(TimelineConfig(path=path))
    timeline.stretch("forward", "layer", 5000, 3, 7000)
    timeline.stop()
    assert read(path) == {0: {"forward": [("layer", 5000, 7000, {"step": 3})]}}
    assert json.loads(path.read_text())["displayTimeUnit"] == "ms"


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"path": Path("/nowhere/run.json")}, "'/nowhere', where it should be written, is not a folder"),
        ({"first_step": 3, "last_step": 2}, "steps 3 to 2; accepted is 0 <= first <= last"),
        ({"max_notes": 0}, "max_notes=0 must be at least 1"),
    ],
)
def test_a_wrong_configuration_is_refused(wrong: dict[str, object], message: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=message):
        TimelineConfig(**{"path": tmp_path / "run.json", **wrong})  # type: ignore[arg-type]
