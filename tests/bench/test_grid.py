"""`legato bench`: recipes, rows that can be resumed, verdicts, and one cell measured for real."""

import json
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("pyroute2")

from bench.grid.cell import Cell
from bench.grid.compare import compare
from bench.grid.lineup import ALONE, system
from bench.grid.recipe import BUILT_IN, built_in, parse, read
from bench.grid.row import Row, append, missing
from bench.grid.row import read as read_rows
from bench.grid.tables import scaling
from bench.testbed.namespace import EXIT_NOT_PERMITTED, is_permitted
from legato.cli import main
from legato.errors import InputError

CELL = Cell(
    model="alexnet",
    gbps=5.0,
    hosts=2,
    servers=0,
    systems=("ddp", "legato"),
    rounds=3,
    steps=2,
    communication_over_computation=None,
    at_most_gbps=1.0,
    at_most_bytes=1_000_000,
)


def row(system: str, turns_s: list[float], cell: Cell = CELL) -> Row:
    return Row(
        cell=cell.key(),
        system=system,
        step_s=sorted(turns_s)[len(turns_s) // 2],
        turns_s=turns_s,
        bound_s=1.0,
        alone_s=0.5,
        num_bytes=1_000_000,
        scale=cell.scale,
        shorten=cell.shorten,
        goodput_gbps=0.95,
        all_to_all_gbps=0.94,
        cpu_s=0.1,
        peak_bytes=10,
    )


# ---- recipes ----


@pytest.mark.parametrize("name", built_in())
def test_built_in_recipes_are_complete(name: str) -> None:
    cells = read(name).cells()
    assert cells
    assert all(cell.whole.num_bytes for cell in cells)
    assert read(str(BUILT_IN / f"{name}.toml")).cells() == cells


def test_the_grid_is_the_one_that_was_asked_for() -> None:
    cells = read("grid").cells()
    assert {(cell.model, cell.gbps) for cell in cells} == {
        (model, gbps)
        for model in ("alexnet", "vgg16", "resnet50", "bert-large", "gpt2")
        for gbps in (0.5, 1, 5, 10, 25)
    }
    assert {system(name).sums for cell in cells for name in cell.systems} == {"PS", "all-reduce"}


def test_lists_are_multiplied() -> None:
    recipe = parse("r", {"models": ["vgg16", "gpt2"], "systems": ["ddp"], "gbps": [1, 10], "hosts": [2, 4]})
    assert [(cell.model, cell.gbps, cell.hosts) for cell in recipe.cells()][:3] == [
        ("vgg16", 1.0, 2),
        ("gpt2", 1.0, 2),
        ("vgg16", 10.0, 2),
    ]
    assert len(recipe.cells()) == 8


def test_who_clips_is_the_last_word_of_a_name() -> None:
    names = ("ddp:clip", "ddp:2MB:clip", "ddp:tuned:clip", "c10d:rsag:clip", "legato:clip", "legato:p3:clip-torch")
    found = [system(name) for name in names]
    assert [each.clip for each in found] == ["clip"] * 5 + ["clip-torch"]
    assert [each.variation for each in found] == ["", "", "tuned", "rsag", "", "p3"]
    assert found[1].bucket_bytes == 2_000_000
    for name in ("no-overlap:clip", "ddp:clip-torch", "legato:clip:p3"):
        with pytest.raises(InputError):
            system(name)


@pytest.mark.parametrize(
    ("document", "message"),
    [
        ({"modles": []}, "r: key 'modles' is unknown; accepted: models, systems, gbps"),
        ({"models": ["vgg16"]}, "r: key 'systems' is missing"),
        ({"models": "vgg16", "systems": ["ddp"]}, "r: models is 'vgg16'; accepted is a list"),
        ({"models": [], "systems": ["ddp"]}, "r: models must hold something"),
        ({"models": ["vgg16"], "systems": ["dpp"]}, "r: system 'dpp' is unknown; accepted: no-overlap, ddp"),
        ({"models": ["vgg16"], "systems": ["c10d:p4"]}, "r: system 'c10d:p4': 'p4' is not a size"),
        ({"models": ["vgg16"], "systems": ["legato:p4"]}, "'p4' is unknown; accepted: servers, bo, autobyte, fifo"),
        ({"models": ["vgg16"], "systems": ["legato:servers"]}, "r: legato:servers needs servers in every cell"),
        ({"models": ["vgg16"], "systems": ["ddp"], "gbps": ["fast"]}, "r: gbps is 'fast'; accepted is a number"),
        ({"models": ["vgg16"], "systems": ["ddp"], "gbps": [0]}, "r: gbps is 0; accepted is more than 0"),
        ({"models": ["vgg16"], "systems": ["ddp"], "hosts": [1]}, "r: 1 hosts and 0 servers"),
        ({"models": ["vgg16"], "systems": ["ddp"], "at_most_bytes": "some"}, "r: at_most_bytes: 'some' is not a size"),
        ({"models": ["vgg16"], "systems": ["ddp"], "rounds": 0}, "r: rounds is 0; accepted is more than 0"),
        ({"models": ["vgg17"], "systems": ["ddp"]}, "r: model 'vgg17' is unknown"),
    ],
)
def test_mistakes_in_a_recipe_are_named(document: dict[str, object], message: str) -> None:
    with pytest.raises(InputError) as caught:
        parse("r", document)
    assert message in str(caught.value)


# ---- cells ----


def test_faster_links_and_larger_models_are_scaled_and_say_so() -> None:
    task = CELL.workload(bytes_per_s=1e8)
    assert (CELL.scale, CELL.line_gbps) == (5.0, 1.0)
    assert task.num_bytes == pytest.approx(1_000_000, rel=0.001)
    # Bytes have gone by 5 with the bandwidth and then by `shorten` with computation.
    assert task.compute_s == pytest.approx(CELL.whole.compute_s / CELL.shorten)
    assert CELL.whole.num_bytes / task.num_bytes == pytest.approx(5 * CELL.shorten, rel=0.001)
    assert scaling(row("ddp", [1.0])) == "÷ 5, shortened ÷ 48.9"
    whole = replace(CELL, gbps=1.0, at_most_bytes=10**9)
    assert (whole.scale, whole.shorten, scaling(row("ddp", [1.0], whole))) == (1, 1, "")


def test_short_steps_are_lengthened_and_say_so() -> None:
    cell = replace(CELL, at_least_s=0.4)
    task = cell.workload(bytes_per_s=1.25e8)
    communication_s = task.num_bytes / 1.25e8
    assert communication_s == pytest.approx(0.4, rel=0.001)
    # The ratio of the two is what it is for the whole model at 5 Gbit/s.
    assert communication_s / task.compute_s == pytest.approx(
        CELL.whole.num_bytes / 6.25e8 / CELL.whole.compute_s, rel=0.001
    )
    assert scaling(row("ddp", [1.0], cell)) == "÷ 5, lengthened × 1.02"
    assert replace(cell, at_least_s=0.001).shorten == CELL.shorten


def test_communication_as_long_as_computation() -> None:
    task = replace(CELL, communication_over_computation=2.0).workload(bytes_per_s=1e8)
    assert task.num_bytes / 1e8 == pytest.approx(2.0 * task.compute_s)  # between 2 hosts a byte crosses a link once


# ---- rows ----


def test_a_rerun_goes_on_where_it_stopped(tmp_path: Path) -> None:
    path = tmp_path / "rows" / "r.jsonl"
    other = replace(CELL, model="vgg16")
    append(path, [row(name, [1.0], CELL) for name in (ALONE, "ddp", "legato")])
    assert missing([CELL, other], read_rows(path)) == [other]
    with path.open("a") as file:
        file.write(row("ddp", [1.0], other).to_json()[:50])  # killed in the middle of a line
    assert missing([CELL, other], read_rows(path)) == [other]
    append(path, [row(name, [1.0], other) for name in (ALONE, "ddp", "legato")])
    assert missing([CELL, other], read_rows(path)) == []
    # Another number of turns is another measurement.
    assert missing([replace(CELL, rounds=4)], read_rows(path)) == [replace(CELL, rounds=4)]


def test_measured_again_the_latest_counts(tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl"
    append(path, [row("ddp", [1.0])])
    append(path, [row("ddp", [2.0])])
    assert [each.step_s for each in read_rows(path)] == [2.0]


def test_a_file_of_something_else_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl"
    path.write_text('{"section": "steps"}\n')
    with pytest.raises(InputError, match=r"r\.jsonl:1: not a row of `legato bench`"):
        read_rows(path)


# ---- verdicts ----


@pytest.mark.parametrize(
    ("before", "after", "words", "is_slower"),
    [
        ([1.00, 1.01, 1.02], [1.10, 1.11, 1.12], "slower by 9.9%", True),
        ([1.10, 1.11, 1.12], [1.00, 1.01, 1.02], "faster by 9.0%", False),
        ([1.00, 1.01, 1.12], [1.10, 1.11, 1.12], "within noise", False),
        ([1.000, 1.001, 1.002], [1.003, 1.004, 1.005], "within noise", False),
        ([1.00, 1.01], [1.10, 1.11], "fewer than 3 turns: cannot tell", False),
    ],
)
def test_a_verdict_is_beyond_noise(before: list[float], after: list[float], words: str, is_slower: bool) -> None:
    [verdict] = compare([row("legato", before)], [row("legato", after)])
    assert (verdict.words, verdict.is_slower) == (words, is_slower)


def test_compared_are_the_same_cells_whoever_else_ran() -> None:
    more = replace(CELL, systems=("legato",), rounds=5)
    assert len(compare([row("legato", [1.0])], [row("legato", [1.0], more), row("ddp", [1.0], more)])) == 1
    with pytest.raises(InputError, match="no system in the same cell"):
        compare([row("legato", [1.0])], [row("legato", [1.0], replace(CELL, gbps=1.0))])


def test_compare_on_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before, after = tmp_path / "before.jsonl", tmp_path / "after.jsonl"
    append(before, [row("legato", [1.00, 1.01, 1.02])])
    append(after, [row("legato", [1.10, 1.11, 1.12])])
    assert main(["bench", "--compare", str(before), str(after)]) == 1
    assert "slower by" in " ".join(capsys.readouterr().out.split())
    assert main(["bench", "--compare", str(before), str(before)]) == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "which recipe? accepted: clipping, grid, headline, policies, systems, a .toml file, or clean"),
        (
            ["figure"],
            "recipe 'figure' is unknown; accepted: clipping, grid, headline, policies, systems, or a .toml file",
        ),
        (["none.toml"], "none.toml: No such file or directory"),
        (["--compare", "a.jsonl", "b.jsonl"], "a.jsonl: No such file or directory"),
    ],
)
def test_mistakes_get_one_line(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", *arguments]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1


def test_where_hosts_cannot_be_made_one_line_and_77() -> None:
    if shutil.which("unshare") is None:
        pytest.skip("no unshare to make a namespace without namespaces with")
    limit = 'echo 0 > /proc/sys/user/max_net_namespaces && exec "$@"'
    legato = [sys.executable, "-c", "import sys; from legato.cli import main; sys.exit(main())", "bench", "headline"]
    ended = subprocess.run(
        ["unshare", "--user", "--map-root-user", "bash", "-c", limit, "bash", *legato],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert ended.returncode == EXIT_NOT_PERMITTED
    assert "network namespaces need root" in ended.stderr
    assert ended.stderr.count("\n") == 1


# ---- the real thing ----


@pytest.mark.skipif(not is_permitted(), reason="this user may not make network namespaces")
@pytest.mark.usefixtures("forked_hosts")
def test_a_cell_is_measured_shown_and_not_measured_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    recipe, out = tmp_path / "tiny.toml", tmp_path / "rows.jsonl"
    recipe.write_text(
        'models = ["alexnet"]\nsystems = ["no-overlap", "ddp:tuned", "ddp:bf16", "c10d:rsag", "legato:p3", '
        '"legato:servers"]\nhosts = [2]\nservers = [1]\nat_most_bytes = "200KB"\nrounds = 1\nsteps = 1\n'
    )
    assert main(["bench", str(recipe), "--out", str(out)]) == 0
    shown = capsys.readouterr().out
    assert "shortened" in shown
    rows = {each.system: each for each in read_rows(out)}
    assert list(rows) == [ALONE, "no-overlap", "ddp:tuned", "ddp:bf16", "c10d:rsag", "legato:p3", "legato:servers"]
    for each in rows.values():
        assert each.bound_s > 0
        assert 0 < each.goodput_gbps < 1
        assert each.cpu_s > 0
        assert each.peak_bytes > 0
        assert {"commit", "machine", "kernel", "torch"} <= set(each.environment)
    assert rows["ddp:tuned"].chosen.endswith("MB")
    written = out.read_text()
    assert main(["bench", str(recipe), "--out", str(out)]) == 0
    assert "1 of 1 cells are in" in " ".join(capsys.readouterr().out.split())
    assert out.read_text() == written
    assert json.loads(written.splitlines()[0])["system"] == ALONE
