"""AutoByte's meta-network: predicts the speed of a job under every candidate at once.

    layer times, embedded  ──► LSTM, two layers ──┐
    rates, the last ten    ──────────────────────►├─ concatenated ──► dense ──► dense ──► speed (T* over a step's time)
    static features        ──────────────────────►│
    candidate              ──────────────────────►┘

The one file of this room that imports torch; it is imported when a network is wanted, not before.
"""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import cast

import numpy as np
import torch
from torch import Tensor, nn

from legato.errors import InputError
from legato.tuning.autobyte.features import CANDIDATE, LAYER_CHANNELS, SERIES, STATIC, Array, JobFeatures
from legato.tuning.autobyte.safetensors import load, save

LSTM_WIDTH = 128
DENSE_WIDTH = 384
RIDGE = 0.05
"""How much of a measurement is taken for noise when the network adapts."""


class MetaNetwork(nn.Module):
    """The four components of the paper's figure 4(a)."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(LAYER_CHANNELS, LSTM_WIDTH, num_layers=2, batch_first=True)
        self.dense = nn.Linear(LSTM_WIDTH + SERIES + STATIC + CANDIDATE, DENSE_WIDTH)
        self.hidden = nn.Linear(DENSE_WIDTH, DENSE_WIDTH)
        self.speed = nn.Linear(DENSE_WIDTH, 1)

    def forward(self, layers: Tensor, rates: Tensor, static: Tensor, candidates: Tensor) -> Tensor:
        """(jobs, segments, channels), (jobs, series), (jobs, static), (jobs, candidates, 4) → (jobs, candidates)."""
        return cast(Tensor, self.speed(self._activations(self._encoded(layers), rates, static, candidates))[..., 0])

    def _encoded(self, layers: Tensor) -> Tensor:
        """The LSTM's last state."""
        return cast(Tensor, self.lstm(layers)[1][0][-1])

    def _activations(self, encoded: Tensor, rates: Tensor, static: Tensor, candidates: Tensor) -> Tensor:
        """What the last layer sees."""
        job = torch.cat([encoded, rates, static], dim=1)
        # A job is looked at once, however many candidates it has.
        width = job.shape[1]
        of_job = nn.functional.linear(job, self.dense.weight[:, :width], self.dense.bias)
        of_candidates = nn.functional.linear(candidates, self.dense.weight[:, width:])
        both = nn.functional.gelu(of_job[:, None] + of_candidates)
        return nn.functional.gelu(cast(Tensor, self.hidden(both)))

    def _encoded_alone(self, layers: Array) -> Array:
        """The same for one job, in a third of the time: for so little, calling torch costs more than computing."""
        weights = {name: value.detach().numpy() for name, value in self.lstm.named_parameters()}
        sequence = layers
        for place in range(self.lstm.num_layers):
            bias = weights[f"bias_ih_l{place}"] + weights[f"bias_hh_l{place}"]
            recurrent = weights[f"weight_hh_l{place}"]
            state = memory = np.zeros(LSTM_WIDTH, np.float32)
            states = []
            for entering in sequence @ weights[f"weight_ih_l{place}"].T + bias:
                gates = entering + recurrent @ state
                admit, keep, new, emit = gates.reshape(4, LSTM_WIDTH)
                memory = _sigmoid(keep) * memory + _sigmoid(admit) * np.tanh(new)
                state = _sigmoid(emit) * np.tanh(memory)
                states.append(state)
            sequence = np.stack(states)
        return cast(Array, sequence[-1])

    def predict(self, job: JobFeatures, candidates: Array) -> Array:
        """The speed under each candidate, as a fraction of the highest that T* allows."""
        with torch.inference_mode():
            activations = self._activations(
                torch.from_numpy(self._encoded_alone(job.layers))[None],
                torch.from_numpy(job.rates)[None],
                torch.from_numpy(job.static)[None],
                torch.from_numpy(candidates)[None],
            )
            speeds = cast(Tensor, self.speed(activations))[0, :, 0]
        return np.clip(cast(Array, speeds.numpy()), 0.02, 1.0)

    def adapt(self, jobs: Sequence[JobFeatures], candidates: Array, speeds: Array, counts: Array | None = None) -> None:
        """Transfer learning: change the last layer, and only that, so that it says what was measured here.

        Of all weights that do, those nearest to what training has found (ridge regression on what is missing): a few
        samples must not undo what many have taught. `counts` says how often each sample counts, once by default.
        """
        layers, rates, static = (
            torch.from_numpy(np.stack([getattr(job, name) for job in jobs])) for name in ("layers", "rates", "static")
        )
        with torch.no_grad():
            seen = self._activations(self._encoded(layers), rates, static, torch.from_numpy(candidates)[:, None])[:, 0]
            missing = torch.from_numpy(speeds) - self.speed(seen)[:, 0]
            kernel = seen @ seen.T
            noise = torch.ones(len(jobs)) if counts is None else 1 / torch.from_numpy(counts)
            kernel += RIDGE * kernel.diagonal().mean() * torch.diag(noise)
            self.speed.weight += (seen.T @ torch.linalg.solve(kernel, missing))[None]

    def write(self, path: Path, metadata: dict[str, str]) -> None:
        save(path, {name: value.detach().cpu().float().numpy() for name, value in self.state_dict().items()}, metadata)

    @classmethod
    def read(cls, path: Path) -> "tuple[MetaNetwork, dict[str, str]]":
        """The network in a file, and what the file says of itself."""
        weights, metadata = load(path)
        network = cls()
        expected = {name: tuple(value.shape) for name, value in network.state_dict().items()}
        if {name: array.shape for name, array in weights.items()} != expected:
            raise InputError(f"{path.name}: these are not the weights of this version's meta-network")
        network.load_state_dict({name: torch.from_numpy(array) for name, array in weights.items()})
        return network.eval(), metadata


def num_parameters(parameters: Iterable[Tensor]) -> int:
    return sum(parameter.numel() for parameter in parameters)


def _sigmoid(values: Array) -> Array:
    """By tanh, which does not overflow."""
    return cast(Array, np.tanh(values * np.float32(0.5)) * np.float32(0.5) + np.float32(0.5))
