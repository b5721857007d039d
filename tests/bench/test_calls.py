"""What is measured is what is called: a system that is legato is a call of `legato.torch.schedule`, nothing else."""

import ast
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("pyroute2")
pytest.importorskip("torch")

from bench.grid.calls import Call, call
from bench.grid.cell import Cell
from bench.grid.lineup import system
from legato.core.policies import POLICIES

CELL = Cell(
    model="alexnet",
    gbps=1.0,
    hosts=4,
    servers=2,
    systems=("legato",),
    rounds=3,
    steps=2,
    communication_over_computation=1.0,
    at_most_gbps=1.0,
    at_most_bytes=10_000_000,
)
BYTES_PER_S = 1.2e8
SCHEDULES = (
    "legato.torch.sync.native",
    "legato.torch.sync.options",
    "legato.torch.sync.routes",
    "legato.torch.composition",
    "legato.torch.scheduling.hooks",
    "legato.torch.sync.process_group",
    "legato.torch.sync.synchronizer",
)
"""What `schedule` puts together."""
NAMED_TUPLES = ("_asdict", "_fields", "_replace")


def call_of(name: str, cell: Cell = CELL) -> Call | None:
    return call(system(name), cell, cell.workload(BYTES_PER_S), BYTES_PER_S)


@pytest.mark.parametrize("name", ["no-overlap", "ddp", "ddp:tuned", "ddp:bf16"])
def test_baselines_are_not_called(name: str) -> None:
    assert call_of(name) is None


def test_policies_go_by_their_names_over_either_transport() -> None:
    for name in POLICIES:
        for family, transport in (("legato", "native"), ("c10d", "c10d")):
            made = call_of(f"{family}:{name}")
            assert made is not None
            assert (made.transport, made.policy) == (transport, name)
    assert call_of("c10d:rsag:2MB") == Call(transport="c10d", policy="rsag", partition_bytes=2_000_000)
    assert call_of("c10d") == Call(transport="c10d")


def test_published_sizes_scale_with_the_links() -> None:
    assert call_of("legato:bytescheduler") == Call(transport="native", policy="bytescheduler")  # the policy's own
    scaled = call_of("legato:bytescheduler", replace(CELL, gbps=10.0))
    assert scaled is not None
    assert (scaled.partition_bytes, scaled.credit_bytes) == (400_000, 1_600_000)
    assert scaled.words() == "400KB parts, 1600KB of credit"


def test_legato_itself_has_the_policy_of_those_who_ask_for_none() -> None:
    for name, policy in (("legato", "auto"), ("legato:servers", "auto"), ("legato:fifo", "fifo")):
        made = call_of(name)
        assert made is not None
        assert made.partition_bytes is not None
        assert made == Call(transport="native", policy=policy, partition_bytes=made.partition_bytes)


def benchmarks() -> Iterator[Path]:
    return (Path(__file__).resolve().parents[2] / "bench").rglob("*.py")


def imported(tree: ast.Module) -> Iterator[str]:
    """Modules, and names within them."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            yield from (node.module, *(f"{node.module}.{alias.name}" for alias in node.names))


def private(tree: ast.Module) -> Iterator[str]:
    """Attributes with an underscore, of anything but oneself."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and node.attr.startswith("_") and not node.attr.startswith("__"):
            value = node.value.func if isinstance(node.value, ast.Call) else node.value
            is_own = isinstance(value, ast.Name) and value.id in ("self", "cls", "super")
            if not is_own and node.attr not in NAMED_TUPLES:
                yield node.attr


def test_no_benchmark_builds_a_schedule_itself() -> None:
    for path in benchmarks():
        names = set(imported(ast.parse(path.read_text())))
        assert not names & {
            *SCHEDULES,
            "legato.torch.sync.c10d.C10dSynchronizer",
            "legato.torch.tuning.live.LiveTuning",
        }, path


def test_no_benchmark_touches_what_is_private() -> None:
    for path in benchmarks():
        assert not list(private(ast.parse(path.read_text()))), path
