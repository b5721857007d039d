"""Those who keep a job's figures, with the real packages."""

import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from legato.errors import InputError
from legato.live.config import LiveConfig
from legato.live.writers import TensorBoard, progress_line, scalars, writers_of
from tests.live.samples import point

WANDB = """
from legato.live.writers import WeightsAndBiases
from tests.live.samples import point
import wandb

for own in (None, "own"):
    run = own and wandb.init(project=own, mode="offline")
    writer = WeightsAndBiases("legato-test")
    writer.write(point(10))
    writer.write(point(20))
    summary = writer._run.summary
    print(summary["legato/step"], summary["legato/bound_seconds"], writer._run.project, wandb.run is None)
    writer.close()
    print(wandb.run is run)
    if run is not None:
        run.finish()
"""


def test_the_progress_line() -> None:
    assert progress_line(point(10)) == (
        "legato: step 10, 9.00 steps/s, 110.0 ms a step, 11.0 ms exposed (10%), T* 100.0 ms (1.10 of it)"
    )
    assert progress_line(point(10, bound_s=None)).endswith("T* not known yet")


def test_the_progress_line_comes_as_often_as_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    (often,) = writers_of(LiveConfig(progress_s=1e-9))
    (seldom,) = writers_of(LiveConfig(progress_s=1e9))
    for writer in (often, seldom):
        writer.write(point(10))
        writer.write(point(20))
        writer.close()
    assert [line.split(",")[0] for line in capsys.readouterr().err.splitlines()] == [
        "legato: step 10",
        "legato: step 20",
    ]


def test_tensorboard_reads_what_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tensorboard.compat.notf", ModuleType("notf"))  # without TensorFlow, as it may be
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator", exc_type=ImportError)
    writer = TensorBoard(tmp_path)
    for step in (10, 20):
        writer.write(point(step))
    writer.close()
    events = accumulator.EventAccumulator(str(tmp_path))
    events.Reload()
    assert set(events.Tags()["scalars"]) == {name for name, _ in scalars(point())}
    assert [(each.step, round(each.value, 4)) for each in events.Scalars("legato/step_seconds")] == [
        (10, 0.11),
        (20, 0.11),
    ]


def test_weights_and_biases_offline(tmp_path: Path) -> None:
    """A run of ours, then one of the script's, which goes on."""
    pytest.importorskip("wandb", exc_type=ImportError)
    root = Path(__file__).parents[2]
    ended = subprocess.run(
        [sys.executable, "-c", WANDB],
        cwd=tmp_path,
        env={"PYTHONPATH": str(root), "HOME": str(tmp_path), "PATH": "/usr/bin:/bin", "WANDB_SILENT": "true"},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.splitlines() == ["20 0.1 legato-test True", "True", "20 0.1 own False", "True"]
    assert len(list((tmp_path / "wandb").glob("offline-run-*/*.wandb"))) == 2


@pytest.mark.parametrize(
    ("module", "config"),
    [
        ("tensorboard.compat.proto.event_pb2", LiveConfig(tensorboard=Path("nowhere"))),
        ("wandb", LiveConfig(wandb="project")),
    ],
)
def test_a_package_that_is_missing_is_named(module: str, config: LiveConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    package = module.partition(".")[0]
    with pytest.raises(InputError, match=rf"LEGATO_{package.upper()} is set.*pip install 'legato\[{package}\]'"):
        writers_of(config)
