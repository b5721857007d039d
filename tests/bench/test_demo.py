"""The demo as a newcomer runs it, in each of the three ways that links are made: it trains, compares and draws."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from bench.testbed.namespace import is_permitted
from legato.observe.report import analyse, read

ROOT = Path(__file__).parents[2]
SMALL = ["--rounds", "1", "--steps", "1", "--batch", "2", "--hidden", "32"]
TIMEOUT_S = 220
"""Three or four processes load torch."""

pytestmark = pytest.mark.timeout(240)


def demo(launcher: list[str], folder: Path) -> str:
    ended = subprocess.run(
        [*launcher, sys.executable, "-m", "bench.demo", *SMALL],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT), "COLUMNS": "100"},
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


def check(output: str, folder: Path) -> None:
    [row] = re.findall(r"loss after the same steps.*", output)
    assert len(set(re.findall(r"\d+\.\d{6}", row))) == 1
    assert re.search(r"^Legato ", output, re.MULTILINE), "it says what came of it, whoever else computes here"
    for system in ("DDP over Gloo", "legato"):
        assert re.search(rf"^{system}: a step of .* ms, of which it waits", output, re.MULTILINE)
    assert len(re.findall(r"^compute .*[▓█]", output, re.MULTILINE)) == 2
    assert len(re.findall(r"^network ", output, re.MULTILINE)) == 2
    drawn = folder / "build/demo/demo.html"
    assert f"Both steps in full: {drawn}" in output
    page = drawn.read_text()
    assert all(title in page for title in ("DDP over Gloo", "legato", "The same training, twice"))
    for paths in ([drawn.with_name(f"ddp.rank{rank}.json") for rank in (0, 1)], [drawn.with_name("legato.json")]):
        recording = read(paths)
        analysis = analyse(recording)
        assert len(recording.ranks) == 2
        assert len(analysis.whole_steps) == 2 * 5
        assert len(analysis.tensors) == len({tensor.name for tensor in analysis.tensors}) >= 18
        assert all(rank.flights for rank in recording.ranks)


def demo_here(folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> str:
    """In this process, which has torch, and forks of one that has it."""
    from bench.demo import main

    monkeypatch.chdir(folder)
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setenv("TORCH_CPP_LOG_LEVEL", "ERROR")  # or the demo would set it, for all tests to come
    assert main(SMALL) == 0
    return capsys.readouterr().out


@pytest.mark.skipif(not is_permitted(), reason="this user may not make network namespaces")
@pytest.mark.usefixtures("forked_hosts")
def test_shaped_links(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    output = demo_here(tmp_path, monkeypatch, capsys)
    assert "shaped links between network namespaces" in output
    check(output, tmp_path)


def test_without_root_in_a_user_namespace(tmp_path: Path) -> None:
    if shutil.which("setpriv") is None:
        pytest.skip("no setpriv to give up privileges with")
    if subprocess.run(["unshare", "--user", "--map-root-user", "--net", "true"], check=False).returncode:
        pytest.skip("user namespaces are not open to this user")
    output = demo(["setpriv", "--bounding-set", "-sys_admin,-net_admin"], tmp_path)
    assert "made without root in a user namespace" in output
    check(output, tmp_path)


@pytest.mark.usefixtures("forked_hosts")
def test_where_no_namespace_is_permitted_connections_are_limited(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("bench.demo.is_permitted", lambda: False)
    monkeypatch.setattr("bench.demo.is_obtainable", lambda: False)
    output = demo_here(tmp_path, monkeypatch, capsys)
    assert "where the kernel limits the rate of each connection (this user may make no network namespaces)" in output
    check(output, tmp_path)


def test_where_no_namespace_is_permitted_it_is_seen() -> None:
    if shutil.which("unshare") is None:
        pytest.skip("no unshare to make a namespace without namespaces with")
    limit = 'echo 0 > /proc/sys/user/max_net_namespaces && echo 0 > /proc/sys/user/max_user_namespaces && exec "$@"'
    launcher = ["unshare", "--user", "--map-root-user", "bash", "-c", limit, "bash"]
    if subprocess.run([*launcher, "true"], check=False).returncode:
        pytest.skip("user namespaces are not open to this user")
    program = (
        "from bench.testbed.namespace import is_obtainable, is_permitted\nprint(is_permitted(), is_obtainable())\n"
    )
    ended = subprocess.run(
        [*launcher, sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, timeout=60, check=True
    )
    assert ended.stdout.split() == ["False", "False"]


def test_a_process_limits_all_its_connections() -> None:
    """Of whatever opened them; sockets that listen, and others' kinds, are left alone."""
    program = (
        "import socket\n"
        "from bench.testbed.pacing import pace_all\n"
        "listener = socket.create_server(('127.0.0.1', 0))\n"
        "here = socket.create_connection(listener.getsockname())\n"
        "there, _ = listener.accept()\n"
        "pair = socket.socketpair()\n"
        "print(pace_all(1_000_000), *(each.getsockopt(socket.SOL_SOCKET, 47) for each in (here, there, listener)))\n"
    )
    ended = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, timeout=60, check=True
    )
    *limited, listening = ended.stdout.split()
    assert limited == ["2", "1000000", "1000000"]
    assert listening != "1000000"
