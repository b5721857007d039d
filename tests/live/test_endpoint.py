"""A board over HTTP: who is told what, to the end; and those who read it again after an interruption."""

import http.client
import importlib
import json
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from prometheus_client.parser import text_string_to_metric_families

from legato.cli import main
from legato.cli.top import frame
from legato.errors import InputError
from legato.live.board import Board
from legato.live.client import Address, Subscription
from legato.live.config import LiveConfig
from legato.live.endpoint import CannotListenError, Endpoint, page
from legato.live.monitor import Monitor
from legato.settings import read_settings
from legato.testing.ports import free_port
from tests.live.samples import JOB, job_facts, point, whole_board

TOKEN = "0123456789abcdef"


@contextmanager
def serving(board: Board, port: int | None = None, token: str | None = None) -> Iterator[int]:
    port = free_port() if port is None else port
    endpoint = Endpoint(board, "127.0.0.1", port, token=token)
    try:
        yield port
    finally:
        endpoint.close()


def get(port: int, path: str, **headers: str) -> tuple[int, str]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    try:
        connection.request("GET", path, headers=headers)
        answer = connection.getresponse()
        return answer.status, answer.read().decode()
    finally:
        connection.close()


class Waiting(Board):
    """A board whose facts can be waited for."""

    def __init__(self) -> None:
        super().__init__()
        self._changed = threading.Condition()
        self.read(lambda *_: self._notify())

    def _notify(self) -> None:
        with self._changed:
            self._changed.notify_all()

    def wait_for_steps(self, *steps: int) -> None:
        self._wait_for("points", "step", list(steps))

    def wait_for_markers(self, *kinds: str) -> None:
        self._wait_for("markers", "kind", list(kinds))

    def _wait_for(self, facts: str, field: str, values: list[Any]) -> None:
        def seen() -> bool:
            return [each[field] for state in self.states().values() for each in state[facts]] == values

        with self._changed:
            assert self._changed.wait_for(seen, 20), self.states()


def test_what_is_known_and_the_page() -> None:
    board = whole_board()
    with serving(board) as port:
        status, text = get(port, "/state")
        assert (status, json.loads(text)) == (200, json.loads(json.dumps(board.states())))
        assert get(port, "/") == (200, page())
        assert get(port, "/nothing")[0] == 404


def test_the_page_loads_nothing_from_elsewhere() -> None:
    text = page()
    assert "/* page" not in text
    assert 'src="' not in text
    assert "://" not in text


def test_prometheus_reads_the_metrics() -> None:
    with serving(whole_board()) as port:
        _, text = get(port, "/metrics")
    families = {family.name: family for family in text_string_to_metric_families(text)}
    values = {
        (sample.name, *sorted(sample.labels.items())): sample.value
        for family in families.values()
        for sample in family.samples
    }
    here = ("job", JOB)
    assert values["legato_step_bound_seconds", here] == 0.1
    assert values["legato_step_duration_seconds", here, ("rank", "1")] == pytest.approx(0.11)
    assert values["legato_steps_total", here, ("rank", "0")] == 30
    assert values["legato_queue_bytes", here, ("priority", "0")] == 4096
    assert values["legato_network_io_bytes_total", here, ("network_io_direction", "transmit"), ("rank", "0")] == 30_000
    to_server = (here, ("link_medium", "network"), ("network_io_direction", "transmit"), ("peer", "server 0"))
    assert values["legato_link_io_bytes_total", *to_server, ("rank", "0")] == 3_000
    from_rank = (here, ("link_medium", "memory"), ("network_io_direction", "receive"), ("peer", "0"))
    assert values["legato_link_io_bytes_total", *from_rank, ("rank", "1")] == 2_700
    assert families["legato_link_io_bytes"].type == "counter"
    assert values["legato_plan_changes_total", here] == values["legato_faults_total", here] == 1
    assert families["legato_network_io_bytes"].type == "counter"
    assert all(family.documentation for family in families.values())


def test_a_token_is_asked_for() -> None:
    with serving(whole_board(), token=TOKEN) as port:
        assert get(port, "/state")[0] == 401
        assert get(port, "/events?token=wrong")[0] == 401
        assert get(port, f"/state?token={TOKEN}")[0] == 200
        assert get(port, "/state", Authorization=f"Bearer {TOKEN}")[0] == 200


def test_a_name_that_somebody_points_at_the_loopback_is_refused() -> None:
    with serving(whole_board()) as port:
        assert get(port, "/state", Host=f"evil.example:{port}")[0] == 401
        assert get(port, "/state", Host=f"localhost:{port}")[0] == 200


def test_strangers_are_not_served_without_a_token() -> None:
    for address in ("0.0.0.0:8321", "[::]:8321"):
        with pytest.raises(InputError, match="set LEGATO_DASHBOARD_TOKEN"):
            read_settings({"LEGATO_DASHBOARD": address})
    with pytest.raises(InputError, match="holds 4 bytes"):
        read_settings({"LEGATO_DASHBOARD": "8321", "LEGATO_DASHBOARD_TOKEN": "short"[:4]})
    live = read_settings({"LEGATO_DASHBOARD": "0.0.0.0:8321", "LEGATO_DASHBOARD_TOKEN": TOKEN}).live
    assert live == LiveConfig(dashboard=("0.0.0.0", 8321), token=TOKEN)
    assert TOKEN not in repr(live)


@pytest.mark.parametrize("text", ["8321", ":8321", "127.0.0.1:8321"])
def test_a_port_alone_is_the_loopbacks(text: str) -> None:
    assert read_settings({"LEGATO_DASHBOARD": text}).live == LiveConfig(dashboard=("127.0.0.1", 8321))


@pytest.mark.parametrize("text", ["0", "off", ""])
def test_it_can_be_off(text: str) -> None:
    assert read_settings({"LEGATO_DASHBOARD": text}).live is None


def test_a_busy_port_is_said_in_one_line() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(CannotListenError, match=f"127.0.0.1:{port}: Address already in use"):
            Endpoint(Board(), "127.0.0.1", port)


def test_a_reader_gets_everything_once_and_again_after_a_restart() -> None:
    port = free_port()
    seen, job = Waiting(), Board()
    job.add(JOB, job_facts("first"))
    job.add(JOB, point(1))
    reader = Subscription(Address(str(port)), seen)
    try:
        with serving(job, port):
            seen.wait_for_steps(1)
            job.add(JOB, point(2))
            job.add(JOB, point(3))
            seen.wait_for_steps(1, 2, 3)
        again = Board()
        again.add(JOB, job_facts("second"))
        again.add(JOB, point(1, time=2_000.0))
        with serving(again, port):
            seen.wait_for_steps(1, 2, 3, 1)
            again.add(JOB, point(2, time=2_001.0))
            seen.wait_for_steps(1, 2, 3, 1, 2)
    finally:
        reader.close()
    (state,) = seen.states().values()
    assert [marker["kind"] for marker in state["markers"]] == ["restart"]
    assert state["job"]["run"] == "second"


def test_a_connection_that_breaks_repeats_nothing() -> None:
    board = Board()
    board.put(JOB, "job", {"run": "one"})
    points = [{"time": float(step), "step": step} for step in range(3)]
    board.put(JOB, "point", points[0])
    board.put(JOB, "links", {"time": 0.0, "links": []})
    board.replace(JOB, {"job": {"run": "one"}, "points": points[:2], "links": [], "markers": []})
    assert board.states()[JOB]["points"] == points[:2]
    assert board.states()[JOB]["links"] == []
    board.replace(JOB, {"job": {"run": "two"}, "points": points, "links": [], "markers": []})
    assert board.states()[JOB]["points"] == points, "somebody else knew of the time before the restart"


def test_closing_ends_open_streams() -> None:
    board = whole_board()
    with serving(board) as port:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
        connection.request("GET", "/events")
        answer = connection.getresponse()
        while not answer.readline().startswith(b"data: "):
            pass
    assert b"data" not in answer.read()
    connection.close()


@pytest.mark.parametrize("address", ["nowhere", "https://a:1/", "a:b", ""])
def test_what_is_no_address_is_refused(address: str) -> None:
    with pytest.raises(InputError, match="is not the address of a dashboard"):
        Address(address)


def test_a_job_is_told_of_to_its_end() -> None:
    """Of one rank: no group, and no tuner."""
    port = free_port()
    seen = Waiting()
    with patch("legato.live.monitor.INTERVAL_S", 0.02):
        monitor = Monitor(LiveConfig(dashboard=("127.0.0.1", port)), 0, 1)
        reader = Subscription(Address(str(port)), seen)
        try:
            monitor.describe("what is on")
            monitor.recorder.step(1, 0.5, 0.1)
            seen.wait_for_steps(1)
            monitor.close(failed=True)
            seen.wait_for_markers("start", "fault")
        finally:
            monitor.close()
            reader.close()
    (state,) = seen.states().values()
    assert state["job"]["about"] == "what is on"
    assert state["points"][0]["exposed_s"] == 0.1
    assert state["markers"][-1]["text"] == "the job ended: this rank gave up"


def test_one_page_for_several_jobs() -> None:
    jobs = [free_port() for _ in range(2)]
    at = free_port()
    command = [sys.executable, "-m", "legato.cli", "dashboard", *map(str, jobs), "--at", str(at)]
    with serving(whole_board(), jobs[0]), subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as hub:
        assert hub.stdout is not None
        assert hub.stdout.readline() == f"dashboard at http://127.0.0.1:{at}/\n"
        seen = Waiting()
        reader = Subscription(Address(str(at)), seen)
        try:
            seen.wait_for_steps(10, 20, 30)
            later = Board()
            later.add("other.py@there", point(5))
            with serving(later, jobs[1]):
                seen.wait_for_steps(10, 20, 30, 5)
        finally:
            reader.close()
            hub.terminate()
        assert hub.wait(20) == 128 + signal.SIGTERM


def test_a_file_can_turn_it_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "legato.toml").write_text("dashboard = 8321\nprogress_s = 10\n")
    monkeypatch.chdir(tmp_path)
    assert read_settings({}).live == LiveConfig(dashboard=("127.0.0.1", 8321), progress_s=10.0)


# ---- the terminal ----


def test_top_shows_a_frame(capsys: pytest.CaptureFixture[str]) -> None:
    with serving(whole_board(), token=TOKEN) as port:
        assert main(["top", str(port), "--once", "--token", TOKEN]) == 0
    text = capsys.readouterr().out
    for expected in (
        "step 30",
        "9.00 steps/s",
        "110.0 ms a step",
        "T* 100.0 ms",
        "1.10 of it",
        "1.00 Gb/s",
        "rank sends to",
        "server 0",
        "200.0 Mb/s",
        "it stays on",
    ):
        assert expected in text
    assert "rank 1 waits for rank 0" in text


def test_a_frame_says_who_does_not_answer() -> None:
    reader = Subscription(Address(str(free_port())), Board())
    reader.close()
    assert reader.trouble is not None
    assert frame(Board(), [reader], 80) is not None


def test_top_without_a_job_says_so(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.import_module("legato.cli.top"), "_FIRST_S", 0.2)
    assert main(["top", str(free_port()), "--once"]) == 1
    assert "Connection refused" in capsys.readouterr().out
