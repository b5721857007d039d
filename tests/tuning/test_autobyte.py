"""AutoByte's network: its parts, its file, its training, and the tuner that asks it."""

import json
import random
import sys
from dataclasses import replace
from importlib.resources import files
from pathlib import Path

import numpy as np
import pytest
import torch

from legato.errors import InputError
from legato.sim.cluster import Cluster
from legato.sim.zoo import workload
from legato.testing.tuner_contract import CLUSTER, SPACE, WORKLOAD, TunerContract, measured
from legato.tuning.autobyte import dataset
from legato.tuning.autobyte.dataset import CANDIDATES_PER_JOB, generate, scenario
from legato.tuning.autobyte.features import (
    CANDIDATE,
    LAYER_CHANNELS,
    SEGMENTS,
    SERIES,
    STATIC,
    candidate_features,
    job_features,
)
from legato.tuning.autobyte.metanet import MetaNetwork
from legato.tuning.autobyte.safetensors import load, save
from legato.tuning.autobyte.train import REPORT, WEIGHTS, Recipe, train
from legato.tuning.autobyte.tuner import AutoByte, shipped_network
from legato.tuning.candidate import Candidate, Space
from legato.tuning.tuner import Tuner


class TestAutoByte(TunerContract):
    def tuner(self, space: Space, shape: Cluster) -> Tuner:
        return AutoByte(space, shape)

    def test_three_windows_are_enough(self) -> None:
        assert len(self.settle(self.make())) <= 3

    @pytest.mark.xfail(strict=True, reason="trained to see fitted latency and overhead, not rates alone")
    def test_it_chooses_the_transport_too(self) -> None:
        super().test_it_chooses_the_transport_too()


def test_the_shipped_weights_are_small_and_say_where_they_come_from() -> None:
    data = files("legato.tuning.autobyte") / "data"
    assert len((data / WEIGHTS).read_bytes()) < 5_000_000
    report = json.loads((data / REPORT).read_text())
    assert report["recipe"]["seed"] == 0
    assert report["samples"] >= report["recipe"]["samples"]


def test_one_job_is_encoded_as_in_a_batch() -> None:
    network = shipped_network()
    layers = torch.rand(3, SEGMENTS, LAYER_CHANNELS)
    alone = np.stack([network._encoded_alone(each) for each in layers.numpy()])
    with torch.inference_mode():
        assert np.allclose(network._encoded(layers).numpy(), alone, atol=1e-6)


def test_without_torch_it_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "legato.tuning.autobyte.metanet", raising=False)
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(InputError, match=r"needs torch: pip install 'legato\[tune\]'"):
        shipped_network()


def test_a_model_of_any_depth_has_the_same_shape() -> None:
    for model in ("alexnet", "resnet50", "densenet121"):
        job = job_features(workload(model), CLUSTER, [1e9])
        assert job.layers.shape == (SEGMENTS, LAYER_CHANNELS)
        assert (job.layers**2).mean(axis=0) == pytest.approx(1.0, rel=1e-3)
        assert job.rates.shape == (SERIES,)
        assert job.static.shape == (STATIC,)
    assert candidate_features(WORKLOAD, list(SPACE)).shape == (len(SPACE), CANDIDATE)


def test_what_is_twice_as_large_on_a_network_twice_as_fast_looks_the_same() -> None:
    task, cluster = scenario(random.Random(5))
    double = task.scaled(bytes_by=2.0)
    faster = replace(cluster, gbps=2 * cluster.gbps)
    one = job_features(task, cluster, [1e9])
    other = job_features(double, faster, [2e9])
    for name in ("layers", "rates", "static"):
        np.testing.assert_allclose(getattr(one, name), getattr(other, name), atol=1e-3)
    np.testing.assert_allclose(
        candidate_features(task, [Candidate("rsag", 1_000_000, 4_000_000)]),
        candidate_features(double, [Candidate("rsag", 2_000_000, 8_000_000)]),
        atol=1e-3,
    )


@pytest.fixture
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """A simulation for each sample: no more of them than a test needs."""
    monkeypatch.setattr(dataset, "JOBS_PER_TASK", 4)


@pytest.mark.usefixtures("small_pieces")
def test_samples_depend_on_the_seed_alone() -> None:
    (first,) = generate(1, seed=3, processes=1)
    (second,) = generate(1, seed=3, processes=1)
    (other,) = generate(1, seed=4, processes=1)
    assert first.speeds.shape[1] == CANDIDATES_PER_JOB
    assert np.array_equal(first.speeds, second.speeds)
    assert not np.array_equal(first.speeds, other.speeds)
    assert first.speeds.min() > 0
    assert first.speeds.max() <= 1.0001
    assert all(np.isfinite(getattr(first, name)).all() for name in ("layers", "rates", "static", "candidates"))


@pytest.mark.usefixtures("small_pieces")
def test_training_leaves_weights_and_a_report_and_goes_on_where_it_was(tmp_path: Path) -> None:
    recipe = Recipe(samples=256, epochs=3, held_out=0.2, batch_jobs=4)
    lines: list[str] = []
    report = train(tmp_path, recipe, processes=1, device="cpu", progress=lines.append)
    losses = [float(line.split()[-1]) for line in lines if "loss" in line]
    assert losses[-1] < losses[0] / 2
    assert json.loads((tmp_path / REPORT).read_text()) == report
    network, metadata = MetaNetwork.read(tmp_path / WEIGHTS)
    assert json.loads(metadata["recipe"])["samples"] == 256

    network.write(tmp_path / "checkpoint.safetensors", {"epoch": "2"})
    lines.clear()
    train(tmp_path, recipe, processes=1, device="cpu", progress=lines.append)
    assert lines[0] == "samples: those in samples.npz"
    assert lines[1] == "training: going on after epoch 2"
    assert len([line for line in lines if "loss" in line]) == 1


def test_it_learns_from_what_was_measured() -> None:
    torch.manual_seed(0)
    network = MetaNetwork()
    job = job_features(WORKLOAD, CLUSTER, [1e9])
    features = candidate_features(WORKLOAD, [SPACE.start])
    before = abs(network.predict(job, features)[0] - 0.8)
    network.adapt([job], features, np.array([0.8], dtype=np.float32))
    assert abs(network.predict(job, features)[0] - 0.8) < before / 2


def test_drift_makes_the_tuner_adapt() -> None:
    torch.manual_seed(0)
    tuner = AutoByte(SPACE, CLUSTER, network=MetaNetwork())
    tuner.tell(measured(tuner.ask()))
    assert tuner.num_adaptations == 1


def test_safetensors_round_trip(tmp_path: Path) -> None:
    weights = {"a": np.arange(6, dtype=np.float32).reshape(2, 3), "b": np.array(2.5, dtype=np.float32)}
    save(tmp_path / "w", weights, {"seed": "1"})
    read, metadata = load(tmp_path / "w")
    assert metadata == {"seed": "1"}
    assert {name: array.tolist() for name, array in read.items()} == {"a": [[0, 1, 2], [3, 4, 5]], "b": 2.5}


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\xff" * 64,
        (2).to_bytes(8, "little") + b"[]",
        (58).to_bytes(8, "little") + b'{"a":{"dtype":"F32","shape":[9],"data_offsets":[0,36]}}   ' + bytes(8),
        (58).to_bytes(8, "little") + b'{"a":{"dtype":"F64","shape":[1],"data_offsets":[0,8]}}    ' + bytes(8),
    ],
)
def test_what_is_no_safetensors_file_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "w").write_bytes(content)
    with pytest.raises(InputError, match="not a safetensors file"):
        load(tmp_path / "w")


def test_weights_of_another_network_are_refused(tmp_path: Path) -> None:
    save(tmp_path / "w", {"a": np.zeros(3, dtype=np.float32)}, {})
    with pytest.raises(InputError, match="not the weights of this version"):
        MetaNetwork.read(tmp_path / "w")


@pytest.mark.parametrize("wrong", [{"samples": 1}, {"epochs": 0}, {"held_out": 1.0}, {"learning_rate": 0.0}])
def test_a_recipe_is_checked(wrong: dict[str, float]) -> None:
    with pytest.raises(InputError, match="train: "):
        Recipe(**wrong)  # type: ignore[arg-type]
