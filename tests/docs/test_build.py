"""`make docs`: no warning, no page left out, nothing loaded from the network."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.blocks import PAGES, ROOT

for package in ("sphinx", "furo", "myst_parser"):
    pytest.importorskip(package, reason="the extra `docs` is not installed")

TIMEOUT_S = 580
"""It loads every framework: 27 s on an idle core."""
ASSET = re.compile(r"<(?:script|img|iframe|link)\b[^>]*\b(?:src|href)=\"(?:https?:)?//")


@pytest.mark.timeout(TIMEOUT_S + 20)
def test_the_documentation_builds(tmp_path: Path) -> None:
    html = tmp_path / "html"
    options = ["-q", "-W", "--keep-going", "-d", tmp_path / "doctrees"]
    command = [sys.executable, "-m", "sphinx", *options, ROOT / "docs", html]
    built = subprocess.run(list(map(str, command)), capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    assert built.returncode == 0, built.stderr
    written = {path.relative_to(html).with_suffix(".md").as_posix(): path for path in html.rglob("*.html")}
    assert {page.removeprefix("docs/") for page in PAGES if page.startswith("docs/")} <= set(written)
    for page, path in written.items():
        assert not ASSET.search(path.read_text()), page
    for page, name in (("torch", "schedule"), ("mxnet", "DistributedTrainer"), ("mxnet", "ScheduledKVStore")):
        assert f"legato.{page}.{name}" in written[f"api/{page}.md"].read_text()
