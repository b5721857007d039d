"""What a job of two real ranks tells of itself, while it trains."""

import http.client
import json
import logging
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch
from torch import nn

import legato.torch as lg
from bench.browser import find_browser
from legato.testing.log import said
from legato.testing.ports import free_port
from tests.live.browser import Page
from tests.torch.crew import Crew

WIDTH = 256
INTERVAL_S = 0.25


def train_until(stop: str, settings: dict[str, str], schedule: dict[str, Any]) -> list[str]:
    """Train until a file is there; what was said."""
    os.environ.update(settings)
    try:
        with patch("legato.live.monitor.INTERVAL_S", INTERVAL_S), said("legato") as lines:
            lg.init()
            model = nn.Sequential(*(layer for _ in range(4) for layer in (nn.Linear(WIDTH, WIDTH), nn.Tanh())))
            optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
            lg.schedule(model, optimizer, **schedule)
            is_over = False
            while not is_over:
                optimizer.zero_grad()
                model(torch.ones(4, WIDTH)).square().mean().backward()
                optimizer.step()
                if lg.rank() == 0 and Path(stop).with_suffix(".warn").exists():
                    Path(stop).with_suffix(".warn").unlink()
                    logging.getLogger("legato.test").warning("something is wrong")
                told = torch.tensor([Path(stop).exists()], dtype=torch.uint8)
                is_over = bool(lg.broadcast(told, 0, name="stop").item())
            lg.shutdown()
    finally:
        for name in settings:
            del os.environ[name]
    return lines


class Training:
    """A job on the crew, from `with` to its end; the end is waited for."""

    def __init__(self, crew: Crew, folder: Path, settings: dict[str, str], **schedule: Any) -> None:
        self.stop = folder / f"stop-{time.monotonic_ns()}"
        self.lines: list[list[str]] = []
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, args=(crew, settings, schedule))

    def _run(self, crew: Crew, settings: dict[str, str], schedule: dict[str, Any]) -> None:
        try:
            self.lines = crew.run(train_until, str(self.stop), settings, schedule)
        except BaseException as error:  # noqa: BLE001 (raised in the test)
            self._error = error

    def __enter__(self) -> "Training":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop.touch()
        self._thread.join(60)
        if self._error is not None:
            raise self._error


@contextmanager
def events_of(port: int) -> Iterator[Iterator[dict[str, Any]]]:
    """What the endpoint tells, from the moment that it is there."""
    deadline_s = time.monotonic() + 60
    while True:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
        try:
            connection.request("GET", "/events")
            break
        except ConnectionRefusedError:
            assert time.monotonic() < deadline_s
            time.sleep(0.05)  # the job is starting, and has nothing yet to be waited on
    answer = connection.getresponse()
    try:
        yield (json.loads(line[6:]) for line in iter(answer.readline, b"") if line.startswith(b"data: "))
    finally:
        connection.close()


def get(port: int, path: str) -> str:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    connection.request("GET", path)
    text = connection.getresponse().read().decode()
    connection.close()
    return text


def test_two_ranks_are_seen_over_http(crew: Crew, tmp_path: Path) -> None:
    port = free_port()
    settings = {
        "LEGATO_DASHBOARD": str(port),
        "LEGATO_TIMELINE": str(tmp_path / "run.json"),
        "LEGATO_TIMELINE_STEPS": "0-300",
    }
    with Training(crew, tmp_path, settings, tuner="grid") as training, events_of(port) as events:
        seen: dict[str, Any] = {}
        points: list[dict[str, Any]] = []
        links: list[dict[str, Any]] = []
        for event in events:
            kind, data = event["kind"], event["data"]
            seen.update(data if kind == "state" else {kind: data})
            points += data["points"] if kind == "state" else [data] if kind == "point" else []
            links += data["links"] if kind == "state" else [data] if kind == "links" else []
            is_complete = bool(points) and points[-1]["bound_s"] is not None and len(points[-1]["ranks"]) == 2
            is_complete &= bool(links) and [bool(each["sent_bytes_per_s"]) for each in links[-1]["links"]] == [True] * 2
            if is_complete and len(points) > 2 and {"gantt", "tuning", "job"} <= seen.keys() and seen["job"]["tensors"]:
                break
        metrics = get(port, "/metrics")
        training.stop.with_suffix(".warn").touch()
        markers = (event["data"] for event in events if event["kind"] == "marker")
        marker = next(each for each in markers if each["kind"] == "fault")
    last = points[-1]
    assert marker["text"] == "something is wrong"
    assert [rank["rank"] for rank in last["ranks"]] == [0, 1]
    assert last["step"] > points[0]["step"] > 0
    assert 0 <= last["exposed_s"] < last["step_s"] < 60
    assert all(rank["sent_bytes"] + rank["shared_bytes"] > 0 for rank in last["ranks"])
    assert 0 < last["bound_s"] < 60
    pairs = {(link["rank"], link["peer"]): link for link in links[-1]["links"]}
    assert list(pairs) == [(0, "1"), (1, "0")]
    ranks = next(point["ranks"] for point in points if point["time"] == links[-1]["time"])
    for rank, link in zip(ranks, pairs.values(), strict=True):
        assert link["shared"]
        assert link["sent_bytes"] + link["received_bytes"] >= rank["shared_bytes"] > 0, "all goes to the only other"
    names = [name for name, _ in seen["job"]["tensors"]]
    assert names[0].startswith("0.")
    assert len(names) == 8
    assert {priority for point in points for priority, _ in point["queue"]} <= set(range(8))
    assert {box["kind"] for box in seen["gantt"]["boxes"]} >= {"forward", "backward", "part"}
    assert all(0 <= box["begin_s"] <= box["end_s"] <= seen["gantt"]["seconds"] for box in seen["gantt"]["boxes"])
    assert seen["tuning"]["trials"]
    assert 'legato_step_duration_seconds{job="' in metrics
    assert "legato_step_bound_seconds" in metrics
    assert 'rank="0",peer="1",link_medium="memory",network_io_direction="transmit"}' in metrics
    (said_by_rank_0, said_by_rank_1) = training.lines
    starts = [line for line in said_by_rank_0 if line.startswith("legato is on: 2 workers, 8 gradients of 1.1 MB")]
    assert len(starts) == 1
    assert starts[0].endswith("transport native, policy auto, tuner grid (as asked)")
    assert not any(line.startswith("legato is on") for line in said_by_rank_1)
    assert any(line == f"dashboard at http://127.0.0.1:{port}/" for line in said_by_rank_0)
    assert (tmp_path / "run.json").exists(), "looking at a timeline does not keep it from being written"


@pytest.mark.parametrize("schedule", [{"policy": "fifo"}, {"tuner": "off"}, {"transport": "c10d"}])
def test_figures_do_not_need_a_tuner(crew: Crew, tmp_path: Path, schedule: dict[str, str]) -> None:
    port = free_port()
    with Training(crew, tmp_path, {"LEGATO_DASHBOARD": str(port)}, **schedule) as training, events_of(port) as events:
        point = next(event["data"] for event in events if event["kind"] == "point")
    assert point["step_s"] > 0
    (start,) = (line for line in training.lines[0] if line.startswith("legato is on"))
    assert "tuner off (" in start


def test_a_taken_port_does_not_keep_training_from_going_on(crew: Crew, tmp_path: Path) -> None:
    import socket

    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with Training(crew, tmp_path, {"LEGATO_DASHBOARD": str(port)}) as training:
            pass
    assert sum("training goes on without it" in line for line in training.lines[0]) == 1


def test_off_there_is_nothing(crew: Crew) -> None:
    assert crew.run(parts_when_off) == [(False, "LiveTuning", [])] * 2


def parts_when_off() -> tuple[bool, str, list[str]]:
    job = lg.init()
    model = nn.Linear(WIDTH, WIDTH)
    lg.schedule(model, torch.optim.SGD(model.parameters(), lr=0.1))
    from legato.torch.scheduling.hooks import Schedule

    tuning = type(Schedule.of(model)._parameters.tuning).__name__
    threads = [each.name for each in threading.enumerate() if each.name in ("legato-monitor", "legato-dashboard")]
    return job.monitor is not None, tuning, threads


BROWSER = find_browser()


@pytest.mark.skipif(BROWSER is None, reason="no Chromium on this machine (apt install chromium)")
def test_the_page_follows_training_and_survives_a_restart_of_the_job(crew: Crew, tmp_path: Path) -> None:
    port = free_port()
    settings = {"LEGATO_DASHBOARD": str(port)}
    step = "Number(document.querySelector('[data-figure=\"Step\"]').textContent)"
    assert BROWSER is not None
    with Page(BROWSER) as page:
        with Training(crew, tmp_path, settings), events_of(port) as events:
            next(event for event in events if event["kind"] == "point")
            page.open(f"http://127.0.0.1:{port}/")
            page.wait_until("Number(document.body.dataset.points) > 0")
            before = page.value(step)
            page.wait_until(f"{step} > {before}")
            page.wait_until("document.querySelectorAll('#links path').length === 2")
            assert page.value("document.querySelector('#links-legend').textContent") == "0 → 11 → 0"
            run, points = page.value("document.body.dataset.run"), page.value("Number(document.body.dataset.points)")
        page.wait_until("document.querySelector('#connection').className.includes('bad')")
        assert page.value("Number(document.body.dataset.points)") >= points
        with Training(crew, tmp_path, settings):
            page.wait_until(f"document.body.dataset.run !== {run!r}")
            assert page.value("document.querySelector('#connection').textContent") == "live"
            points = page.value("Number(document.body.dataset.points)")
            page.wait_until(f"Number(document.body.dataset.points) > {points}")
            assert "the job was started again" in page.value("document.querySelector('#markers').textContent")
