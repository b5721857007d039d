"""The report's page in a real browser, without a network."""

import re
from pathlib import Path

import pytest

from bench.study.report import find_browser, rendered
from legato.cli import main

BROWSER = find_browser()
pytestmark = pytest.mark.skipif(BROWSER is None, reason="no Chromium on this machine")


@pytest.mark.parametrize("workers", [2, 16])
def test_everything_is_drawn(workers: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "run.json"
    job = ["--workers", str(workers), "--gbps", "10", "--partition", "8MB"]
    assert main(["sim", "alexnet", "--arch", "native", *job, "--timeline", str(path)]) == 0
    assert main(["trace", "report", str(path)]) == 0
    capsys.readouterr()
    assert BROWSER is not None
    document = rendered(BROWSER, path.with_suffix(".html"))
    assert 'data-drawn="yes"' in document
    drawn = re.search(r"in view, (\d+) boxes drawn", document)
    assert drawn is not None
    assert int(drawn[1]) > 50 * workers
    for section in ("gantt", "stack", "stragglers", "tensors", "outlook"):
        assert f'<section id="{section}">' in document
    assert document.count("<rect") >= 7 * workers
    assert "fc6" in document
