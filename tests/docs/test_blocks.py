"""Every block in Python is run by a test, and every file in another format is one that its reader accepts."""

from pathlib import Path

import pytest

from legato.settings import read_settings
from legato.sim.zoo import workload
from tests.docs.blocks import (
    ELASTIC,
    ELSEWHERE,
    JAX,
    KERAS,
    MIGRATION,
    MXNET,
    PAGES,
    QUICKSTART,
    RECIPES,
    ROOT,
    TENSORFLOW,
    TORCH,
    Block,
    blocks,
)

LISTS = (QUICKSTART, TORCH, MIGRATION, RECIPES, JAX, TENSORFLOW, KERAS, MXNET, ELASTIC)


def test_every_page_with_python_is_in_one_list() -> None:
    listed = sorted(page for each in LISTS for page in each)
    assert listed == sorted({block.page for block in blocks(PAGES, "python")})


def test_what_is_left_out_exists() -> None:
    left_out = [block for block in blocks(PAGES, "python") if (block.page, block.heading) in ELSEWHERE]
    assert {(block.page, block.heading) for block in left_out} == set(ELSEWHERE)
    for block in left_out:
        compile(block.text, str(block), "exec")
    for why in ELSEWHERE.values():
        [test] = [word for word in why.split() if word.startswith("tests/")]
        assert (ROOT / test).exists()


@pytest.mark.parametrize("block", blocks(PAGES, "toml"), ids=str)
def test_toml(block: Block, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.json").write_text(workload("alexnet").to_json())  # what `legato profile` would write
    path = tmp_path / "written.toml"
    path.write_text(block.text)
    if block.page == "docs/benchmark.md":
        pytest.importorskip("pyroute2")
        from bench.grid.recipe import read

        read(str(path))
    else:
        read_settings({"LEGATO_CONFIG": str(path)})
