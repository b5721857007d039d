"""Those who keep a job's figures, with the real packages."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from legato.errors import InputError
from legato.live.config import LiveConfig
from legato.live.writers import TensorBoard, progress_line, scalars, writers_of
from tests.live.samples import point

WANDB = """
import sys
from legato.live.writers import WeightsAndBiases
from tests.live.samples import point
import wandb

own = wandb.init(project="own", mode="offline") if sys.argv[1] == "own" else None
writer = WeightsAndBiases("legato-test")
writer.write(point(10))
writer.write(point(20))
run = writer._run
print(run.summary["legato/step"], run.summary["legato/bound_seconds"], run.project, own is run)
writer.close()
if own is not None:
    own.finish()
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


def test_tensorboard_reads_what_is_written(tmp_path: Path) -> None:
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


@pytest.mark.parametrize("whose", ["ours", "own"])
def test_weights_and_biases_offline(whose: str, tmp_path: Path) -> None:
    pytest.importorskip("wandb", exc_type=ImportError)
    root = Path(__file__).parents[2]
    ended = subprocess.run(
        [sys.executable, "-c", WANDB, whose],
        cwd=tmp_path,
        env={"PYTHONPATH": str(root), "HOME": str(tmp_path), "PATH": "/usr/bin:/bin", "WANDB_SILENT": "true"},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    project = "own" if whose == "own" else "legato-test"
    assert ended.stdout.split()[-4:] == ["20", "0.1", project, str(whose == "own")]
    (folder,) = (tmp_path / "wandb").glob("offline-run-*")
    assert list(folder.glob("*.wandb"))


def test_a_package_that_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, config in (("tensorboard", LiveConfig(tensorboard=Path("x"))), ("wandb", LiveConfig(wandb="x"))):
        monkeypatch.setitem(sys.modules, name, None)
        with pytest.raises(InputError, match=rf"LEGATO_{name.upper()} is set.*pip install 'legato\[{name}\]'"):
            writers_of(config)
    assert json.dumps(dict(scalars(point())))
