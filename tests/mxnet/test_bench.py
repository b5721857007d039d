"""The benchmark's worker measures what users call: a step of it is a step of `DistributedOptimizer`."""

import json
from pathlib import Path
from typing import Any

import pytest

from legato.core import Layer, Workload
from tests.crew import Crew

pytest.importorskip("mxnet", reason="needs mxnet, which has an environment of its own: make test-mxnet")

STEPS = 3


def _measured(workload: str, folder: str) -> dict[str, Any]:
    import legato.mxnet as bps
    from bench import mxnet_worker

    rank = bps.init().rank
    report = Path(folder) / f"{rank}.json"
    mxnet_worker.main([workload, str(report), "--steps", str(STEPS), "--engine"])
    return {**json.loads(report.read_text()), **bps.init().group.session.engine.statistics()}


def test_a_step_averages_every_gradient(crew: Crew, tmp_path: Path) -> None:
    sizes = {"first": 4000, "without parameters": 0, "last": 8000}
    layers = [Layer(name=name, num_bytes=size, forward_s=0.0, backward_s=0.0) for name, size in sizes.items()]
    workload = tmp_path / "workload.json"
    workload.write_text(Workload(name="small", layers=tuple(layers)).to_json())
    for found in crew.run(_measured, str(workload), str(tmp_path)):
        assert len(found["steps_s"]) == len(found["idle_s"]) == STEPS
        # Each rank gives half of every gradient away, and half of every sum; the last step may be under way.
        assert found["bytes_shared"] >= STEPS * sum(sizes.values())
