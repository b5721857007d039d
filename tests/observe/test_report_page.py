"""The report's page in a real browser, without a network."""

import re
from pathlib import Path

import pytest

from bench.browser import find_browser, rendered
from legato.cli import main
from tests.observe.test_report import save, small

BROWSER = find_browser()
pytestmark = pytest.mark.skipif(BROWSER is None, reason="no Chromium on this machine")


@pytest.mark.parametrize("workers", [2, 16])
def test_everything_is_drawn(workers: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = save(tmp_path / "run.json", {rank: small(tmp_path / "run.json") for rank in range(workers)})
    assert main(["trace", "report", str(path)]) == 0
    capsys.readouterr()
    assert BROWSER is not None
    document = rendered(BROWSER, path.with_suffix(".html"))
    assert 'data-drawn="yes"' in document
    drawn = re.search(r"in view, (\d+) boxes drawn", document)
    assert drawn is not None
    assert int(drawn[1]) >= 10 * workers
    for section in ("gantt", "stack", "stragglers", "tensors", "outlook"):
        assert f'<section id="{section}">' in document
    assert document.count("<rect") >= 2 * workers
    assert "b.w" in document
