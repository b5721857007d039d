"""Reports: exact figures of small recordings, the simulator's own figures from its timelines, and the page."""

import json
import re
from pathlib import Path

import pytest

from legato.core import Plan, Workload
from legato.core.policies import by_name
from legato.errors import InputError
from legato.observe import TimelineConfig, chrome
from legato.observe.notes import Moment, Notes, Stretch, What, Work
from legato.observe.report import Analysis, Recording, analyse, gantt, read
from legato.observe.report.analysis import Step, summed_up
from legato.observe.report.document import report
from legato.observe.report.intervals import length, overlap, union
from legato.observe.report.terminal import rows
from legato.observe.simulated import SimulatedWorker, write
from legato.observe.spans import spans
from legato.sim import Architecture, Cluster, Group, Result, simulate
from legato.sim.zoo import workload

MS = 1_000_000


def notes(path: Path) -> Notes:
    return Notes(TimelineConfig(path=path))


def save(path: Path, ranks: dict[int, Notes]) -> Path:
    path.write_text(
        chrome.document([chrome.events(rank, f"rank {rank}", spans(taken)) for rank, taken in ranks.items()])
    )
    return path


def work(taken: Notes, step: int, *stretches: tuple[Work, str, int, int]) -> None:
    for kind, name, begin_ms, end_ms in stretches:
        taken.stretch(Stretch(kind, name, begin_ms * MS, end_ms * MS, step))


def part(taken: Notes, tensor: str, step: int, offset: int, start_ms: int, sent_ms: int, finish_ms: int) -> None:
    for ms, what in ((start_ms, What.START), (sent_ms, What.SENT), (finish_ms, What.FINISH)):
        taken.moment(Moment(ms * MS, what, (f"g/{tensor}",), step, offset, 100))


def ready(taken: Notes, tensor: str, step: int, ready_ms: int, done_ms: int, applied_ms: int, num_bytes: int) -> None:
    taken.moment(Moment(ready_ms * MS, What.READY, (f"g/{tensor}",), step, 0, num_bytes))
    taken.moment(Moment(done_ms * MS, What.DONE, (f"g/{tensor}",), step))
    taken.moment(Moment(applied_ms * MS, What.APPLIED, (f"g/{tensor}",), step))


def small(path: Path) -> Notes:
    """Two layers, a and b; the time between a's forward and b's is a module's that has no parameters.

              0    10   20   30   40   50   60   70   80   90   100  110
    own       fa·fb bb···ba   ─idle─ wait a·u·fa··fb    bb···ba
    b                │ 1st part …    2nd part │
    a                     │ preempts b │
    """
    taken = notes(path)
    work(
        taken, 0, ("forward", "a", 0, 5), ("forward", "b", 7, 10), ("backward", "b", 10, 20), ("backward", "a", 20, 30)
    )
    work(taken, 1, ("wait", "a.w", 40, 55), ("update", "a.w", 55, 57), ("forward", "a", 57, 65))
    work(taken, 1, ("forward", "b", 66, 70), ("backward", "b", 70, 80), ("backward", "a", 80, 100))
    ready(taken, "b.w", 0, 20, 62, 66, 200)
    part(taken, "b.w", 0, 0, 20, 26, 50)
    part(taken, "b.w", 0, 100, 21, 45, 62)
    ready(taken, "a.w", 0, 30, 55, 57, 100)
    part(taken, "a.w", 0, 0, 31, 36, 55)
    return taken


def analysed(path: Path) -> tuple[Recording, Analysis]:
    recording = read([path])
    return recording, analyse(recording)


def test_every_millisecond_of_a_step_is_accounted_for(tmp_path: Path) -> None:
    recording, analysis = analysed(save(tmp_path / "run.json", {0: small(tmp_path / "run.json")}))
    first, second = analysis.steps
    assert (first.is_whole, first.ns, first.compute_ns) == (False, 30 * MS, 30 * MS)
    assert (second.is_whole, second.begin_ns, second.end_ns) == (True, 30 * MS, 100 * MS)
    assert (second.idle_ns, second.exposed_ns, second.compute_ns) == (10 * MS, 15 * MS, 45 * MS)
    assert second.hidden_ns == (62 - 55) * MS  # parts are in flight until 62, and until 55 the rank waits
    assert first.hidden_ns == 10 * MS
    summary = analysis.summary
    assert summary is not None
    assert (summary.step_s, summary.exposed_s) == pytest.approx((0.07, 0.015))
    assert analysis.usual_step == 1
    assert recording.num_workers == 1


def step_of(rank: int, number: int, compute_ms: int, exposed_ms: int) -> Step:
    return Step(
        rank=rank,
        number=number,
        begin_ns=0,
        end_ns=(compute_ms + exposed_ms) * MS,
        compute_ns=compute_ms * MS,
        exposed_ns=exposed_ms * MS,
        idle_ns=0,
        hidden_ns=0,
        is_whole=True,
    )


def test_the_usual_step_is_the_sum_of_its_parts_and_knows_nothing_of_one_that_was_held_up() -> None:
    """Ranks wait for each other in turns: half of the medians would be of one rank and half of the other."""
    steps = [step_of(rank, number, 80 + 10 * rank, 20 - 10 * rank) for rank in range(2) for number in range(4)]
    steps += [step_of(rank, 4, 500, 400) for rank in range(2)]
    usual = Analysis(steps=tuple(steps), summary=None, tensors=(), preemptions=()).usual_steps
    assert len(usual) == 2 * 3
    assert max(step.ns for step in usual) == 100 * MS
    summary = summed_up(usual)
    assert (summary.step_s, summary.compute_s, summary.exposed_s) == pytest.approx((0.1, 0.085, 0.015))


STEPS = {
    "all hidden": ([], 0),
    "all exposed": ([("a.w", 20, 50)], 30),
    "partly exposed": ([("a.w", 20, 26), ("b.w", 36, 45)], 15),
    "two parameters of a layer": ([("a.w", 20, 26), ("a.b", 26, 31)], 11),
    "waits that share time": ([("a.w", 20, 30), ("a.b", 25, 32)], 12),
}
"""What a second step waits for, and for how long in all; the first ends at 20."""


def stepping(path: Path, waits: list[tuple[str, int, int]]) -> Notes:
    """Two steps that compute for 20 ms each; the second begins with its first wait, or else with a layer."""
    taken = notes(path)
    work(taken, 0, ("forward", "a", 0, 5), ("forward", "b", 5, 10), ("backward", "b", 10, 15))
    work(taken, 0, ("backward", "a", 15, 20))
    if not waits:
        work(taken, 1, ("forward", "a", 20, 25))
    for name, begin_ms, end_ms in waits:
        work(taken, 1, ("wait", name, begin_ms, end_ms))
    last_ms = 40 + length(union((begin, end) for _, begin, end in waits))
    work(taken, 1, ("forward", "b", last_ms - 4, last_ms - 3), ("backward", "a", last_ms - 3, last_ms))
    return taken


@pytest.mark.parametrize(("waits", "exposed_ms"), STEPS.values(), ids=STEPS)
def test_exposed_is_the_step_less_its_computation(
    waits: list[tuple[str, int, int]], exposed_ms: int, tmp_path: Path
) -> None:
    path = tmp_path / "run.json"
    _, analysis = analysed(save(path, {0: stepping(path, waits)}))
    summary = analysis.summary
    assert summary is not None
    assert summary.exposed_s == pytest.approx(exposed_ms * 1e-3)
    assert summary.exposed_s == pytest.approx(summary.step_s - 0.020)
    assert (summary.compute_s, summary.idle_s) == pytest.approx((0.020, 0))


def test_exposed_of_several_ranks_is_the_median_of_their_steps(tmp_path: Path) -> None:
    """One hides everything, one nothing, one half of it."""
    path = tmp_path / "run.json"
    waits = [STEPS[name][0] for name in ("all hidden", "all exposed", "partly exposed")]
    _, analysis = analysed(save(path, {rank: stepping(path, each) for rank, each in enumerate(waits)}))
    assert {step.rank: step.exposed_ns for step in analysis.whole_steps} == {0: 0, 1: 30 * MS, 2: 15 * MS}
    assert analysis.summary is not None
    assert analysis.summary.exposed_s == pytest.approx(0.015)


def test_tensors_are_listed_by_urgency_with_their_times(tmp_path: Path) -> None:
    _, analysis = analysed(save(tmp_path / "run.json", {0: small(tmp_path / "run.json")}))
    urgent, other = analysis.tensors
    assert (urgent.name, other.name) == ("g/a.w", "g/b.w")
    assert (urgent.num_bytes, other.num_bytes) == (100, 200)
    assert (urgent.queued_s, urgent.flying_s, urgent.arrived_s) == pytest.approx((0.001, 0.024, 0.002))
    assert (urgent.exposed_s, other.exposed_s) == pytest.approx((0.015, 0))
    assert (urgent.times_preempted, other.times_preempted) == (0, 1)


def test_a_preemption_is_bytes_that_leave_before_those_of_a_task_under_way(tmp_path: Path) -> None:
    _, analysis = analysed(save(tmp_path / "run.json", {0: small(tmp_path / "run.json")}))
    [found] = analysis.preemptions
    assert (found.ns, found.step, found.tensor, found.overtaken) == (31 * MS, 0, "g/a.w", ("g/b.w",))
    in_turn = notes(tmp_path / "run.json")
    work(in_turn, 0, ("backward", "b", 10, 20))
    ready(in_turn, "b.w", 0, 20, 62, 66, 100)
    part(in_turn, "b.w", 0, 0, 20, 26, 50)
    ready(in_turn, "a.w", 0, 22, 55, 57, 100)
    part(in_turn, "a.w", 0, 0, 23, 27, 55)
    assert analysed(save(tmp_path / "run.json", {0: in_turn}))[1].preemptions == ()


def test_stragglers_are_those_who_compute_longer(tmp_path: Path) -> None:
    ranks = {}
    for rank, extra in enumerate((0, 0, 10)):
        ranks[rank] = notes(tmp_path / "run.json")
        work(ranks[rank], 4, ("forward", "a", 0, 10), ("backward", "a", 10, 20 + extra))
    recording, analysis = analysed(save(tmp_path / "run.json", ranks))
    assert analysis.lateness() == {(0, 4): 0.0, (1, 4): 0.0, (2, 4): 0.5}
    assert "Rank 2 computes 50% longer than the median" in report(recording, analysis, "run.json")


def test_files_of_single_ranks_are_put_together(tmp_path: Path) -> None:
    paths = [save(tmp_path / f"run.rank{rank}.json", {rank: small(tmp_path / "run.json")}) for rank in (1, 0)]
    assert [rank.number for rank in read(paths).ranks] == [0, 1]
    with pytest.raises(InputError, match="rank 1 is in another of these files already"):
        read([paths[0], paths[0]])


def simulated(path: Path, task: Workload, cluster: Cluster, plan: Plan) -> Result:
    config = TimelineConfig(path=path)
    workers = [(f"worker {n}, and {group.hosts - 1} alike", group) for n, group in enumerate(cluster.simulated)]
    watchers = [(title, SimulatedWorker(config, task, plan)) for title, _ in workers]
    result = simulate(task, cluster, plan, observers=[watcher for _, watcher in watchers])
    write(path, watchers)
    return result


@pytest.mark.parametrize("policy", ["fifo", "bytescheduler"])
@pytest.mark.parametrize("architecture", [Architecture.PS, Architecture.ALLREDUCE, Architecture.NATIVE])
def test_exposed_communication_is_the_simulators(policy: str, architecture: Architecture, tmp_path: Path) -> None:
    """What benchmarks and the simulator call exposed is the step less the computation."""
    task = workload("alexnet")
    cluster = Cluster(workers=3, gbps=10, architecture=architecture)
    result = simulated(tmp_path / "run.json", task, cluster, by_name(policy).plan(task.tensors))
    recording, analysis = analysed(tmp_path / "run.json")
    assert recording.num_workers == 3
    assert analysis.summary is not None
    assert result.exposed_s > 0.01
    assert analysis.summary.exposed_s == pytest.approx(result.exposed_s, rel=1e-3)
    assert analysis.summary.step_s == pytest.approx(result.iteration_s, rel=1e-3)
    assert analysis.summary.compute_s == pytest.approx(result.compute_s, rel=1e-3)


def test_a_simulated_straggler_is_found(tmp_path: Path) -> None:
    task = workload("alexnet")
    cluster = Cluster(workers=4, gbps=40, groups=(Group(hosts=1, speed=0.8),))
    simulated(tmp_path / "run.json", task, cluster, by_name("bytescheduler").plan(task.tensors))
    _, analysis = analysed(tmp_path / "run.json")
    late = analysis.lateness()
    assert max(late, key=late.__getitem__)[0] == 1


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "not JSON"),
        ("[" * 100_000, "not JSON"),
        ("3", "no list of traceEvents"),
        ('{"traceEvents": 3}', "no list of traceEvents"),
        ('{"traceEvents": []}', "nothing of a timeline of legato's in it; LEGATO_TIMELINE=FILE makes one"),
        ('[{"ph": "X", "pid": 1, "tid": 1, "cat": "gpu", "ts": 1, "dur": 1}]', "nothing of a timeline"),
        (
            '[{"ph": "X", "pid": 1, "tid": 1, "cat": "forward", "ts": "soon", "dur": 1, "name": "x"}]',
            "rank 1 has an event",
        ),
        (
            '[{"ph": "X", "pid": 1, "tid": 1, "cat": "tensors", "ts": 1, "dur": 1, "name": "queued"}]',
            "rank 1 has an event",
        ),
    ],
)
def test_other_files_are_refused(text: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "other.json"
    path.write_text(text)
    with pytest.raises(InputError, match=re.escape(message)):
        read([path])


def test_a_file_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="No such file"):
        read([tmp_path / "none.json"])


def sections(page: str) -> dict[str, dict[str, object]]:
    found = re.search(r'<script id="data" type="application/json">(.*?)</script>', page, re.DOTALL)
    assert found is not None
    return {section["id"]: section for section in json.loads(found[1])["sections"]}


def test_the_page_needs_nothing_from_elsewhere(tmp_path: Path) -> None:
    taken = small(tmp_path / "run.json")
    work(taken, 1, ("wait", "</script><b>", 40, 41))
    page = report(*analysed(save(tmp_path / "run.json", {0: taken, 1: small(tmp_path / "run.json")})), "<run>")
    assert set(re.findall(r"https?://[^\s\"']+", page)) == {"http://www.w3.org/2000/svg"}
    assert "&lt;run&gt;" in page
    assert "</script><b>" not in page
    assert list(sections(page)) == ["gantt", "stack", "stragglers", "tensors"]


def test_long_recordings_are_cut_and_the_page_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    taken = notes(tmp_path / "run.json")
    for step in range(400):
        work(taken, step, ("forward", "a", 10 * step, 10 * step + 4), ("backward", "a", 10 * step + 4, 10 * step + 10))
    monkeypatch.setattr(gantt, "MAX_BOXES", 20)
    page = report(*analysed(save(tmp_path / "run.json", {0: taken})), "run.json")
    found = sections(page)
    chart = found["gantt"]["content"]
    assert isinstance(chart, dict)
    assert len(chart["ranks"][0]["works"]) == 20
    assert "of 0 to 399, at most 20 boxes" in str(found["gantt"]["remarks"])
    assert "Each column is the mean of 3 steps." in str(found["stack"]["remarks"])


def test_without_layers_it_says_what_it_cannot_tell(tmp_path: Path) -> None:
    taken = notes(tmp_path / "run.json")
    ready(taken, "a.w", 0, 20, 62, 66, 100)
    part(taken, "a.w", 0, 0, 20, 26, 50)
    recording, analysis = analysed(save(tmp_path / "run.json", {0: taken}))
    assert analysis.summary is None
    assert analysis.usual_step is None
    page = report(recording, analysis, "run.json")
    assert "The timeline holds no layers" in page
    assert list(sections(page)) == ["gantt", "stack", "tensors"]


def test_gradients_that_are_ready_late_were_copied(tmp_path: Path) -> None:
    taken = notes(tmp_path / "run.json")
    work(taken, 0, ("forward", "a", 0, 5), ("backward", "a", 5, 15))
    ready(taken, "a.w", 0, 18, 62, 66, 100)
    work(taken, 1, ("forward", "a", 70, 75), ("backward", "a", 75, 85))
    ready(taken, "a.w", 1, 80, 90, 91, 100)  # while backward goes on: nothing tells that it was copied
    chart, _ = gantt.gantt(*analysed(save(tmp_path / "run.json", {0: taken})), "chart")
    assert chart["ranks"][0]["copies"] == [[0, 15000.0, 3000.0, 0, 0]]


def test_a_terminal_shows_what_took_most_of_each_column(tmp_path: Path) -> None:
    [rank] = read([save(tmp_path / "run.json", {0: small(tmp_path / "run.json")})]).ranks
    drawn = {row.label: "".join(glyph for glyph, _ in row.cells) for row in rows(rank, (30 * MS, 100 * MS), 14)}
    assert drawn == {"compute": "  ░░░▓▓▓██████", "network": "▄▄▄▄▄▄        "}


def test_intervals() -> None:
    assert union([(5, 7), (0, 2), (1, 4), (4, 5), (9, 9)]) == [(0, 7)]
    assert overlap([(0, 4), (6, 9)], [(1, 2), (3, 7)]) == [(1, 2), (3, 4), (6, 7)]
    assert length([(0, 4), (6, 9)]) == 7
