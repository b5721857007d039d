"""Training the meta-network: samples from the simulator, L2 loss, a report of what it is wrong by.

It needs numpy and torch alone. Samples and weights are written as they come to be, so a run that is stopped goes on
where it was: a checkpoint is the weights and the epoch; the optimizer starts anew.
"""

import json
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from math import cos, pi
from pathlib import Path

import numpy as np
import torch
from torch import nn

from legato.errors import InputError
from legato.tuning.autobyte.dataset import CANDIDATES_PER_JOB, Samples, generate
from legato.tuning.autobyte.metanet import MetaNetwork, num_parameters

WEIGHTS = "autobyte.safetensors"
REPORT = "autobyte.json"
WARM_UP = 0.1
_SAMPLES = "samples.npz"
_CHECKPOINT = "checkpoint.safetensors"
Progress = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """Everything that the weights depend on."""

    samples: int = 400_000
    """Samples from the simulator, the held out ones among them."""
    held_out: float = 0.05
    """Share of the jobs that are kept for judging."""
    epochs: int = 80
    batch_jobs: int = 128
    """Jobs in a batch, each with its candidates."""
    learning_rate: float = 1e-3
    """The highest; it rises over the first tenth and falls to nothing as a cosine."""
    seed: int = 0

    def __post_init__(self) -> None:
        if self.samples < 4 * CANDIDATES_PER_JOB or self.epochs < 1 or self.batch_jobs < 1:
            raise InputError(
                f"train: samples={self.samples}, epochs={self.epochs}, batch_jobs={self.batch_jobs}: too few"
            )
        if not (0 < self.held_out < 1 and self.learning_rate > 0):
            raise InputError(f"train: held_out={self.held_out} must be within 0 and 1, learning_rate above 0")


def train(folder: Path, recipe: Recipe, *, processes: int, device: str | None, progress: Progress) -> dict[str, object]:
    """Leave weights and report in the folder; the answer is the report. Without a device, a GPU where there is one."""
    folder.mkdir(parents=True, exist_ok=True)
    device = device or ("cuda" if torch.cuda.is_available() else "cpu")
    begin = time.monotonic()
    samples = _samples(folder, recipe, processes, progress)
    generated_s = time.monotonic() - begin
    held = max(1, round(len(samples.speeds) * recipe.held_out))
    network = _fit(folder, samples, held, recipe, device, progress)
    report: dict[str, object] = {
        "recipe": asdict(recipe),
        "samples": len(samples),
        "parameters": num_parameters(network.parameters()),
        "generation_s": round(generated_s, 1),
        "training_s": round(time.monotonic() - begin - generated_s, 1),
        "device": torch.cuda.get_device_name() if device == "cuda" else device,
        "torch": torch.__version__,
        **_error(network, samples, held, device),
    }
    network.cpu().write(folder / WEIGHTS, {"recipe": json.dumps(asdict(recipe))})
    (folder / REPORT).write_text(json.dumps(report, indent=1) + "\n")
    (folder / _CHECKPOINT).unlink(missing_ok=True)
    return report


def _samples(folder: Path, recipe: Recipe, processes: int, progress: Progress) -> Samples:
    path = folder / _SAMPLES
    key = f"{recipe.samples}/{recipe.seed}"
    if path.exists():
        with np.load(path, allow_pickle=False) as file:
            if str(file["key"]) == key:
                progress(f"samples: those in {path.name}")
                return Samples(*(file[name] for name in Samples.__dataclass_fields__))
    pieces: list[Samples] = []
    done, said = 0, time.monotonic()
    for piece in generate(recipe.samples, seed=recipe.seed, processes=processes):
        pieces.append(piece)
        done += len(piece)
        if time.monotonic() - said > 5:
            said = time.monotonic()
            progress(f"samples: {done:,} of {recipe.samples:,}")
    samples = Samples.joined(pieces)
    np.savez(path, key=np.array(key), **{name: getattr(samples, name) for name in Samples.__dataclass_fields__})
    return samples


def _fit(folder: Path, samples: Samples, held: int, recipe: Recipe, device: str, progress: Progress) -> MetaNetwork:
    torch.manual_seed(recipe.seed)
    network, first = MetaNetwork(), 0
    if (folder / _CHECKPOINT).exists():
        network, metadata = MetaNetwork.read(folder / _CHECKPOINT)
        first = int(metadata["epoch"])
        progress(f"training: going on after epoch {first}")
    network = network.to(device).train()
    data = [tensor[held:] for tensor in _tensors(samples, device)]
    jobs = len(data[0])
    per_epoch = -(-jobs // recipe.batch_jobs)
    optimizer = torch.optim.AdamW(network.parameters(), lr=recipe.learning_rate, weight_decay=1e-4)
    shuffle = torch.Generator().manual_seed(recipe.seed + first)
    for epoch in range(first, recipe.epochs):
        order = torch.randperm(jobs, generator=shuffle).to(device)
        total = torch.zeros((), device=device)
        for place, batch in enumerate(order.split(recipe.batch_jobs)):
            optimizer.param_groups[0]["lr"] = _learning_rate(recipe, epoch + place / per_epoch)
            *inputs, speeds = (tensor[batch] for tensor in data)
            optimizer.zero_grad(set_to_none=True)
            loss = nn.functional.mse_loss(network(*inputs), speeds)
            loss.backward()
            nn.utils.clip_grad_norm_(network.parameters(), 1.0)
            optimizer.step()
            total += loss.detach() * len(batch)
        progress(f"training: epoch {epoch + 1} of {recipe.epochs}, loss {(total / jobs).item():.2e}")
        network.write(folder / _CHECKPOINT, {"epoch": str(epoch + 1)})
    return network.eval()


def _learning_rate(recipe: Recipe, epoch: float) -> float:
    """Rising over the first tenth, then falling to nothing as a cosine."""
    done = epoch / recipe.epochs
    if done < WARM_UP:
        return recipe.learning_rate * (0.05 + 0.95 * done / WARM_UP)
    return recipe.learning_rate * 0.5 * (1 + cos(pi * (done - WARM_UP) / (1 - WARM_UP)))


def _error(network: MetaNetwork, samples: Samples, held: int, device: str) -> dict[str, object]:
    """What the network is wrong by on jobs that it has not seen."""
    *inputs, speeds = (tensor[:held] for tensor in _tensors(samples, device))
    with torch.inference_mode():
        predicted = torch.cat(
            [network(*(tensor[begin : begin + 1024] for tensor in inputs)) for begin in range(0, held, 1024)]
        )
    relative = ((predicted - speeds).abs() / speeds).cpu().numpy()
    # Of the candidates that were drawn for a job: how much slower is the one that the network would choose?
    best = speeds.max(dim=1).values
    chosen = speeds.gather(1, predicted.argmax(dim=1, keepdim=True))[:, 0]
    regret = (best / chosen - 1).cpu().numpy()
    return {
        "held_out_samples": int(speeds.numel()),
        "rms_error_of_speed": float((predicted - speeds).square().mean().sqrt()),
        "relative_error_median": float(np.median(relative)),
        "relative_error_p95": float(np.quantile(relative, 0.95)),
        "regret_median": float(np.median(regret)),
        "regret_p95": float(np.quantile(regret, 0.95)),
    }


def _tensors(samples: Samples, device: str) -> list[torch.Tensor]:
    return [torch.from_numpy(getattr(samples, name)).to(device) for name in Samples.__dataclass_fields__]
