"""Fine-tuning AutoByte's network with what a testbed has measured."""

import json
import shutil
from importlib.resources import as_file, files
from pathlib import Path

import pytest

from legato.errors import InputError
from legato.sim.zoo import workload
from legato.tuning.autobyte import refine as refining
from legato.tuning.autobyte.dataset import Samples, generate
from legato.tuning.autobyte.metanet import MetaNetwork
from legato.tuning.autobyte.refine import REFINED, Measured, read_measured, refine, refine_weights
from legato.tuning.autobyte.train import REPORT, WEIGHTS
from legato.tuning.autobyte.tuner import shipped_network
from legato.tuning.candidate import Space
from legato.tuning.twin.search import simulated_s

SPACE = Space(policies=("bytescheduler",), partition_bytes=(1 << 16, 1 << 19, 1 << 22), credit_parts=(1, 4))
SLOWER = 1.25
"""What this testbed has that the simulator does not know of."""


def row(model: str) -> dict[str, object]:
    """What `bench.plans` would write of a testbed where everything takes a quarter longer."""
    plain = {"model": model, "num_bytes": 25e6, "compute_s": 0.3, "workers": 4, "gbps": 1.0, "plans": []}
    job = refining._measured(plain, "")
    plans = []
    for plan in SPACE:
        step_s = SLOWER * simulated_s(job.workload, job.cluster, plan, 500)
        plans.append((plan.policy, plan.partition_bytes, plan.credit_bytes, step_s))
    return {**plain, "plans": plans}


@pytest.fixture(scope="module")
def simulated() -> Samples:
    return Samples.joined(list(generate(1024, seed=5, processes=1)))


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> list[Measured]:
    path = tmp_path_factory.mktemp("measured") / "plans.json"
    path.write_text(json.dumps([row(model) for model in ("vgg16", "resnet50", "gpt2")]))
    return read_measured(path)


def test_a_file_holds_jobs_and_their_plans(measured: list[Measured]) -> None:
    first = measured[0]
    assert first.workload.name == workload("vgg16").name
    assert first.workload.num_bytes == pytest.approx(25e6, rel=1e-3)
    assert first.workload.compute_s == pytest.approx(0.3)
    assert list(first.steps_s) == list(SPACE)


@pytest.fixture(scope="module")
def refined(measured: list[Measured], simulated: Samples) -> tuple[MetaNetwork, dict[str, object]]:
    """The network, and what came of it."""
    network = shipped_network()
    return network, refine(network, measured, simulated)


def test_it_learns_what_the_simulator_did_not_know_and_forgets_little(
    refined: tuple[MetaNetwork, dict[str, object]],
) -> None:
    _, outcome = refined
    before, after, left_out = outcome["before"], outcome["after"], outcome["models_left_out"]
    assert isinstance(before, dict)
    assert isinstance(after, dict)
    assert isinstance(left_out, dict)
    assert after["testbed_error_median"] < 0.5 * before["testbed_error_median"]
    assert left_out["testbed_error_median"] < before["testbed_error_median"], "other models teach it, too"
    assert after["simulated_error_median"] < 0.25 * (SLOWER - 1), "it does not take the whole world for slower"


def test_only_the_last_layer_changes(refined: tuple[MetaNetwork, dict[str, object]]) -> None:
    (network, _), untouched = refined, shipped_network().state_dict()
    changed = {name for name, value in network.state_dict().items() if not value.equal(untouched[name])}
    assert changed == {"speed.weight"}


def test_weights_and_report_say_so_and_it_happens_once(
    tmp_path: Path, measured: list[Measured], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(refining, "NUM_SIMULATED", 256)
    shipped_network().write(tmp_path / WEIGHTS, {"recipe": "{}"})
    with as_file(files("legato.tuning.autobyte") / "data" / REPORT) as report:
        shutil.copy(report, tmp_path)
    outcome = refine_weights(tmp_path, measured, processes=1)
    assert json.loads((tmp_path / REPORT).read_text())[REFINED] == outcome
    assert json.loads(MetaNetwork.read(tmp_path / WEIGHTS)[1][REFINED]) == outcome
    with pytest.raises(InputError, match="has been fine-tuned already"):
        refine_weights(tmp_path, measured, processes=1)


def test_without_trained_weights_it_says_what_makes_them(tmp_path: Path, measured: list[Measured]) -> None:
    with pytest.raises(InputError, match="`legato tune train` leaves"):
        refine_weights(tmp_path, measured, processes=1)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("nonsense", "`python -m bench.plans` makes"),
        ("[]", "no measured plans"),
        (json.dumps([{"model": "vgg16"}]), "row 0: not a job's measured plans"),
        (json.dumps([{**row("vgg16"), "model": "vgg17"}]), "vgg17"),
        (json.dumps([{**row("vgg16"), "plans": [["bytescheduler", 4, 4, 0.0]]}]), "a step of 0.0 s"),
    ],
)
def test_a_wrong_file_is_named(tmp_path: Path, text: str, complaint: str) -> None:
    path = tmp_path / "plans.json"
    path.write_text(text)
    with pytest.raises(InputError, match=complaint) as caught:
        read_measured(path)
    assert "plans.json" in str(caught.value)
