"""Fine-tuning the meta-network: what the simulator has taught, corrected by steps that a testbed has measured.

A testbed has a few models and links. So only the last layer changes, and samples of the simulator are among those that
it is fitted to: they hold it where nothing was measured. Whether it helps with a model that was not measured is asked
of the testbed as well: each model's steps are predicted by a network that was fine-tuned with the others' alone.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from math import inf
from pathlib import Path
from typing import Any

import numpy as np
import torch

from legato.core import Workload
from legato.errors import InputError
from legato.sim.cluster import Cluster
from legato.sim.zoo import workload
from legato.tuning.autobyte.dataset import Samples, generate
from legato.tuning.autobyte.features import (
    CANDIDATE,
    Array,
    JobFeatures,
    as_trained,
    candidate_features,
    job_features,
)
from legato.tuning.autobyte.metanet import MetaNetwork
from legato.tuning.autobyte.train import REPORT, WEIGHTS
from legato.tuning.candidate import Candidate
from legato.tuning.twin.transports import LATENCY_S, OVERHEAD_S

MEASURED_COUNT = 8.0
"""What a measured plan counts, in simulated ones."""
NUM_SIMULATED = 12_288
HELD_OUT = 6
"""One of so many simulated jobs judges whether the network stayed where it was; the others hold it there."""
SEED = 1
"""Another than that of training."""
REFINED = "refined"
"""Under which name weights and report say what was done here."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """One job on one network: what a step takes under each plan."""

    workload: Workload
    cluster: Cluster
    steps_s: Mapping[Candidate, float]

    @property
    def samples(self) -> Samples:
        job = job_features(self.workload, self.cluster, [1 / self.cluster.seconds_per_byte])
        candidates = candidate_features(self.workload, [as_trained(each, self.cluster) for each in self.steps_s])
        best_s = self.workload.bound_s(self.cluster.seconds_per_byte)
        speeds = np.array([best_s / step_s for step_s in self.steps_s.values()], dtype=np.float32)
        return Samples(job.layers[None], job.rates[None], job.static[None], candidates[None], speeds[None])


def read_measured(path: Path) -> list[Measured]:
    """The rows that `python -m bench.plans` leaves."""
    try:
        rows = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise InputError(f"{path}: {error}; `python -m bench.plans` makes a file of measured plans") from None
    if not isinstance(rows, list) or not rows:
        raise InputError(f"{path}: there are no measured plans in it; `python -m bench.plans` makes such a file")
    return [_measured(row, f"{path}: row {place}") for place, row in enumerate(rows)]


def _measured(row: Mapping[str, Any], where: str) -> Measured:
    try:
        shape = workload(row["model"])
        return Measured(
            workload=shape.scaled(
                bytes_by=row["num_bytes"] / shape.num_bytes, time_by=row["compute_s"] / shape.compute_s
            ),
            cluster=Cluster(
                workers=row["workers"],
                gbps=row["gbps"],
                overtaking=True,
                latency_s=LATENCY_S,
                overhead_s=OVERHEAD_S,
            ),
            steps_s={Candidate(*plan): _seconds(step_s) for *plan, step_s in row["plans"]},
        )
    except (KeyError, TypeError, ValueError) as error:
        raise InputError(f"{where}: not a job's measured plans ({error})") from None


def _seconds(step_s: float) -> float:
    if not 0 < step_s < inf:
        raise ValueError(f"a step of {step_s} s")
    return step_s


def refine_weights(folder: Path, measured: Sequence[Measured], *, processes: int) -> dict[str, object]:
    """Fine-tune the weights that `train` has left in a folder; the answer goes into their report, too."""
    for needed in (WEIGHTS, REPORT):
        if not (folder / needed).is_file():
            raise InputError(f"{folder} has no {needed}: `legato tune train` leaves weights and report in a folder")
    network, metadata = MetaNetwork.read(folder / WEIGHTS)
    if REFINED in metadata:
        raise InputError(f"{folder / WEIGHTS} has been fine-tuned already: begin with what `legato tune train` leaves")
    simulated = Samples.joined(list(generate(NUM_SIMULATED, seed=SEED, processes=processes)))
    outcome = refine(network, measured, simulated)
    network.write(folder / WEIGHTS, {**metadata, REFINED: json.dumps(outcome)})
    report = {**json.loads((folder / REPORT).read_text()), REFINED: outcome}
    (folder / REPORT).write_text(json.dumps(report, indent=1) + "\n")
    return outcome


def refine(network: MetaNetwork, measured: Sequence[Measured], simulated: Samples) -> dict[str, object]:
    """Change the network's last layer; the answer is what it is wrong by, before and after."""
    num_held = len(simulated.speeds) // HELD_OUT
    held, kept = simulated.of_jobs(slice(num_held)), simulated.of_jobs(slice(num_held, None))
    before = deepcopy(network)
    _fit(network, measured, kept)
    without = {}
    for model in dict.fromkeys(each.workload.name for each in measured):
        without[model] = deepcopy(before)
        _fit(without[model], [each for each in measured if each.workload.name != model], kept)
    return {
        "models": list(without),
        "measured_plans": sum(len(each.steps_s) for each in measured),
        "before": _testbed_errors(lambda _: before, measured) | _simulated_errors(before, held),
        "after": _testbed_errors(lambda _: network, measured) | _simulated_errors(network, held),
        "models_left_out": _testbed_errors(without.__getitem__, measured),
    }


def _fit(network: MetaNetwork, measured: Sequence[Measured], simulated: Samples) -> None:
    pieces = [_rows(each.samples) for each in measured]
    counts = [MEASURED_COUNT] * sum(len(jobs) for jobs, _, _ in pieces) + [1.0] * len(simulated)
    pieces.append(_rows(simulated))
    network.adapt(
        [job for jobs, _, _ in pieces for job in jobs],
        np.concatenate([candidates for _, candidates, _ in pieces]),
        np.concatenate([speeds for _, _, speeds in pieces]),
        np.array(counts, dtype=np.float32),
    )


def _rows(samples: Samples) -> tuple[list[JobFeatures], Array, Array]:
    """A row for each sample: its job, its candidate and its speed."""
    jobs = [JobFeatures(*features) for features in zip(samples.layers, samples.rates, samples.static, strict=True)]
    width = samples.speeds.shape[1]
    return (
        [job for job in jobs for _ in range(width)],
        samples.candidates.reshape(-1, CANDIDATE),
        samples.speeds.reshape(-1),
    )


def _testbed_errors(network_for: Callable[[str], MetaNetwork], measured: Sequence[Measured]) -> dict[str, float]:
    """Relative errors of predictions, and how much slower than the best the plans are that they would choose."""
    wrong, regrets = [], []
    for each in measured:
        samples = each.samples
        predicted, speeds = _predicted(network_for(each.workload.name), samples)[0], samples.speeds[0]
        wrong.append(np.abs(predicted / speeds - 1))
        regrets.append(float(speeds.max() / speeds[predicted.argmax()] - 1))
    return {
        "testbed_error_median": float(np.median(np.concatenate(wrong))),
        "testbed_error_p95": float(np.quantile(np.concatenate(wrong), 0.95)),
        "testbed_regret_median": float(np.median(regrets)),
        "testbed_regret_worst": max(regrets),
    }


def _simulated_errors(network: MetaNetwork, simulated: Samples) -> dict[str, float]:
    wrong = np.abs(_predicted(network, simulated) / simulated.speeds - 1)
    return {
        "simulated_error_median": float(np.median(wrong)),
        "simulated_error_p95": float(np.quantile(wrong, 0.95)),
    }


def _predicted(network: MetaNetwork, samples: Samples) -> Array:
    inputs = (samples.layers, samples.rates, samples.static, samples.candidates)
    with torch.inference_mode():
        predicted: Array = network(*map(torch.from_numpy, inputs)).numpy()
    return predicted
