"""What a rank makes of its steps, what the tuner tells, and what becomes of warnings."""

import logging
from dataclasses import replace
from math import nan

import pytest

from legato.core import Layer, Workload
from legato.errors import InputError
from legato.live.board import MAX_LINKS, Board
from legato.live.facts import Figures, LinkTraffic, Traffic, is_figures
from legato.live.log_markers import LogMarkers
from legato.live.monitor import link_points
from legato.live.recorder import Rates, Recorder
from legato.live.tuning import BOUND_WINDOWS, TuningFacts
from legato.sim.cluster import Cluster
from legato.tuning.candidate import BASELINE, Candidate
from legato.tuning.statistics import Report, Statistics
from tests.live.samples import JOB, links


def recorded() -> Figures:
    recorder = Recorder(3)
    recorder.traffic = lambda: Traffic(sent_bytes=7)
    for number, seconds in enumerate((0.1, 0.3, 0.2), start=5):
        recorder.step(number, seconds, seconds / 10)
    recorder.queue(((0, 100), (4, 8)))
    figures = recorder.figures()
    assert figures is not None
    return figures


def test_figures_are_of_the_steps_since_the_last() -> None:
    figures = recorded()
    assert (figures.rank, figures.step, figures.num_steps) == (3, 7, 3)
    assert figures.step_s == 0.2
    assert figures.seconds == pytest.approx(0.6)
    assert figures.exposed_s == pytest.approx(0.02)
    assert figures.queue == ((0, 100), (4, 8))
    assert figures.traffic == Traffic(sent_bytes=7)


def test_without_steps_there_are_none_and_the_queue_is_asked_for_once() -> None:
    recorder = Recorder(0)
    assert not recorder.wants_queue
    assert recorder.figures() is None
    assert recorder.wants_queue
    recorder.queue(((0, 1),))
    assert not recorder.wants_queue
    recorder.step(1, 0.1, 0.0)
    first = recorder.figures()
    assert first is not None
    assert first.queue == ((0, 1),)
    recorder.step(2, 0.1, 0.0)
    second = recorder.figures()
    assert second is not None
    assert second.queue == (), "what was queued a while ago is not queued now"


def test_figures_travel_as_text_and_are_told_from_the_tuners_reports() -> None:
    figures = recorded()
    assert Figures.from_json(figures.to_json()) == figures
    assert is_figures(figures.to_json())
    report = Report(rank=0, steps_s=(0.1,), forward_s=(), backward_s=(), up_bytes_per_s=(), down_bytes_per_s=())
    assert not is_figures(report.to_json())


@pytest.mark.parametrize("text", ["", "[]", '{"kind":"live"}', recorded().to_json().replace("0.2", '"x"', 1)])
def test_what_is_not_figures_is_refused(text: str) -> None:
    with pytest.raises(InputError, match="not those of a rank"):
        Figures.from_json(text)


def test_rates_are_of_what_passed_between_two_figures() -> None:
    rates, figures = Rates(), replace(recorded(), time_s=1.0, traffic=Traffic(sent_bytes=100))
    rates.tell(figures)
    assert rates.per_s == (0.0, 0.0, 0.0)
    rates.tell(replace(figures, time_s=3.0, traffic=Traffic(sent_bytes=300, received_bytes=50, shared_bytes=10)))
    assert rates.per_s == (100.0, 25.0, 5.0)


def link(peer: int, sent_bytes: int, received_bytes: int) -> LinkTraffic:
    return LinkTraffic(peer=peer, shared=False, sent_bytes=sent_bytes, received_bytes=received_bytes)


def test_each_link_has_its_rates_and_servers_come_after_the_workers() -> None:
    rates, figures = Rates(), replace(recorded(), time_s=1.0, traffic=Traffic(links=(link(0, 100, 0),)))
    rates.tell(figures)
    assert {each.sent_bytes_per_s for each in link_points({3: (figures, rates)}, 4)} == {0}
    now = replace(figures, time_s=3.0, traffic=Traffic(links=(link(0, 300, 50), link(4, 7, 7))))
    assert Figures.from_json(now.to_json()) == now
    rates.tell(now)
    first, server = link_points({3: (now, rates)}, num_workers=4)
    assert (first.rank, first.peer, first.sent_bytes, first.sent_bytes_per_s) == (3, "0", 300, 100)
    assert (first.received_bytes, first.received_bytes_per_s) == (50, 25)
    assert (server.peer, server.sent_bytes, server.sent_bytes_per_s) == ("server 0", 7, 0), (
        "heard of for the first time"
    )


def test_a_board_keeps_as_many_links_as_it_has_room_for() -> None:
    board = Board()
    told = replace(links(), links=links().links * (MAX_LINKS // 3 // 4))
    for step in range(9):
        board.add(JOB, replace(told, time=float(step)))
    assert [each["time"] for each in board.states()[JOB]["links"]] == [5, 6, 7, 8]
    assert board.latest()[JOB]["links"]["time"] == 8
    crowd = replace(told, links=told.links * 5)
    board.add(JOB, crowd)
    assert len(board.states()[JOB]["links"]) == 1, "the latest is always there"


def test_what_the_tuner_tells() -> None:
    marks: list[tuple[str, str, int | None]] = []
    facts = TuningFacts(lambda *mark: marks.append(mark))
    assert facts.take() is None
    one, other = Candidate("bytescheduler", 1024, 4096), BASELINE
    for candidate, step_s in ((one, nan), (one, 0.3), (other, 0.5), (one, 0.1), (one, 0.2)):
        facts.ran(candidate, step_s)
    facts.planned(other, 12)
    facts.said("it stays on")
    facts.said("tuning ends", is_warning=True)
    state = facts.take()
    assert state is not None
    assert state.path == (0, 1, 0)
    assert [(trial.policy, trial.num_steps, trial.step_s) for trial in state.trials] == [
        ("bytescheduler", 4, 0.2),
        ("wfbp", 1, 0.5),
    ]
    assert state.said == "tuning ends"
    assert marks == [("plan", "wfbp", 12), ("tuner", "it stays on", None)], "a warning is marked by the log"
    assert facts.take() is None


def test_the_bound_is_that_of_the_links_that_were_seen() -> None:
    facts = TuningFacts(lambda *_: None)
    workload = Workload("training", (Layer("a", 1_000_000, 0.01, 0.02), Layer("b", 1_000_000, 0.01, 0.02)))
    window = Statistics(candidate=Candidate("bytescheduler", 4096, 65536), iteration_s=0.2, workload=workload)
    shape = Cluster(workers=2, gbps=1.0, overtaking=True)
    facts.measured(window, shape)
    assert facts.bound_s == pytest.approx(0.06), "nothing was waited for: computing decides"
    slow = replace(window, iteration_s=0.3, rates_bytes_per_s=(10e6,) * 10)
    facts.measured(slow, shape)
    assert facts.bound_s == pytest.approx(0.06), "one window may be disturbed"
    for _ in range(BOUND_WINDOWS):
        facts.measured(slow, shape)
    # The last byte of 2 MB passes after 0.2 s, and then the last layer runs.
    assert facts.bound_s == pytest.approx(0.2 + 0.03, rel=0.05)
    facts.measured(replace(slow, iteration_s=0.21), shape)
    assert facts.bound_s == pytest.approx(0.21), "no step is shorter than T*"


def test_warnings_are_marked_and_shown_as_before(capsys: pytest.CaptureFixture[str]) -> None:
    marks: list[str] = []
    log = logging.getLogger("legato.somewhere")
    root, logging.root.handlers = logging.root.handlers, []
    try:
        markers = LogMarkers(marks.append)
        log.warning("rank %d is gone\nwith a stack", 1)
        log.info("not this")
        markers.close()
        log.warning("nobody listens")
    finally:
        logging.root.handlers = root
    assert marks == ["rank 1 is gone"]
    assert capsys.readouterr().err == "rank 1 is gone\nwith a stack\nnobody listens\n"
