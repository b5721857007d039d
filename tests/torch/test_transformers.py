"""transformers.Trainer: what `LegatoTrainer` trains is what `Trainer` trains over DDP, and updates overlap."""

import os
import time
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import Dataset

import legato.torch as lg
from legato.torch.scheduling.attachments import owners_of
from tests.observe.picture import read
from tests.torch.crew import Crew

pytestmark = pytest.mark.skipif(find_spec("transformers") is None, reason="needs transformers")

STEPS = 6
BATCH = 2
LENGTH = 8
TOLERANCE = 1e-4
"""Of losses, norms and weights where gradients are clipped: torch adds norms up in float32, legato in float64, and
AdamW's first steps make much of small differences."""


class Sequences(Dataset[dict[str, torch.Tensor]]):
    def __init__(self, num_sequences: int) -> None:
        generator = torch.Generator().manual_seed(7)
        self.tokens = torch.randint(32, (num_sequences, LENGTH), generator=generator)

    def __len__(self) -> int:
        return len(self.tokens)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return {"input_ids": self.tokens[index], "labels": self.tokens[index]}


def fit(trainer_class: Any, folder: str, **options: Any) -> Any:
    """A trainer that has trained a tiny GPT-2, dropout included, on two shares of the same sequences."""
    from transformers import GPT2Config, GPT2LMHeadModel, TrainingArguments

    schedule = {"schedule": options.pop("schedule")} if "schedule" in options else {}
    evaluates_first = options.pop("evaluates_first", False)
    resumed_from = options.pop("resumed_from", None)
    torch.manual_seed(3)
    model = GPT2LMHeadModel(GPT2Config(vocab_size=32, n_positions=LENGTH, n_embd=32, n_layer=3, n_head=2))
    arguments: dict[str, Any] = {
        "output_dir": folder,
        "use_cpu": True,
        "max_steps": STEPS,
        "per_device_train_batch_size": BATCH,
        "learning_rate": 1e-2,
        "logging_steps": 1,
        "save_strategy": "no",
        "report_to": "none",
        "disable_tqdm": True,
        **options,
    }
    sequences = Sequences(2 * BATCH * STEPS)
    trainer = trainer_class(
        model=model,
        args=TrainingArguments(**arguments),
        train_dataset=sequences,
        eval_dataset=sequences,
        **schedule,
    )
    if evaluates_first:
        trainer.evaluate()
    trainer.train(resume_from_checkpoint=resumed_from)
    return trainer


def weights(trainer: Any) -> torch.Tensor:
    return torch.cat([value.reshape(-1) for value in trainer.model.state_dict().values()])


def logged(trainer: Any, name: str) -> list[float]:
    return [entry[name] for entry in trainer.state.log_history if name in entry]


def saved(folder: str, step: int) -> torch.Tensor:
    """The weights of a checkpoint, and the first moments of its optimizer."""
    from safetensors.torch import load_file

    checkpoint = Path(folder) / f"checkpoint-{step}"
    tensors = load_file(checkpoint / "model.safetensors")
    states = torch.load(checkpoint / "optimizer.pt", weights_only=True)["state"]
    moments = [states[index]["exp_avg"].reshape(-1) for index in sorted(states)]
    return torch.cat([tensors[name].reshape(-1) for name in sorted(tensors)] + moments)


def difference(ours: list[float] | torch.Tensor, theirs: list[float] | torch.Tensor) -> float:
    ours, theirs = torch.as_tensor(ours), torch.as_tensor(theirs)
    assert ours.shape == theirs.shape
    return ((ours - theirs).abs() / theirs.abs().clamp(min=1.0)).max().item()


def trained() -> Iterator[Any]:
    """A `transformers.Trainer` that is ours, and then theirs."""
    os.environ["HF_HUB_OFFLINE"] = "1"
    from transformers import Trainer

    from legato.integrations.transformers import LegatoTrainer

    yield LegatoTrainer
    yield Trainer


def forget_accelerate() -> None:
    """Its state is the process's; the next test of this process starts anew."""
    from accelerate.state import AcceleratorState, GradientState

    AcceleratorState._reset_state(reset_partial_state=True)
    GradientState._reset_state()


def compare(folder: str) -> dict[str, Any]:
    """With the defaults (clipping included), evaluations and checkpoints; then accumulated, without clipping."""
    found: dict[str, Any] = {}
    clipped, exact, again = [], [], []
    for trainer_class in trained():
        place = f"{folder}/{trainer_class.__name__}"
        evaluating: dict[str, Any] = {"eval_strategy": "steps", "eval_steps": 2}
        trainer = fit(trainer_class, place, save_strategy="steps", save_steps=3, **evaluating)
        args = trainer.args
        found["place"] = (args.world_size, args.process_index, trainer.accelerator.num_processes)
        found["wrapped"] = isinstance(trainer.model_wrapped, DistributedDataParallel)
        found["plain again"] = not owners_of(trainer.model)
        clipped.append((trainer, saved(place, 3)))
        trainer = fit(trainer_class, place, max_grad_norm=0.0, gradient_accumulation_steps=2, max_steps=3)
        exact.append((weights(trainer), logged(trainer, "loss"), logged(trainer, "grad_norm")))
        trainer.train()
        again.append(weights(trainer))
        if trainer_class.__name__ == "LegatoTrainer":
            ours = dict(found)
            resumed = weights(fit(trainer_class, place, resumed_from=f"{place}/checkpoint-3", **evaluating))
            # Trainer itself would not wrap its model after this, and ranks would train alone.
            together = weights(fit(trainer_class, place, evaluates_first=True, max_steps=3)).double().sum().item()
    (trainer, ours_saved), (theirs, theirs_saved) = clipped
    forget_accelerate()
    return {
        "places": ours["place"] == found["place"] and found["place"][:2],
        "wrapped": (ours["wrapped"], found["wrapped"]),
        "plain again": ours["plain again"],
        "losses": difference(logged(trainer, "loss"), logged(theirs, "loss")),
        "evaluated": difference(logged(trainer, "eval_loss"), logged(theirs, "eval_loss")),
        "norms": difference(logged(trainer, "grad_norm"), logged(theirs, "grad_norm")),
        "clipped": max(logged(theirs, "grad_norm")) > 1.0,
        "weights": difference(weights(trainer), weights(theirs)),
        "saved": difference(ours_saved, theirs_saved),
        "resumed": difference(resumed, weights(theirs)),
        "exact": bool((exact[0][0] == exact[1][0]).all()) and exact[0][1] == exact[1][1],
        "exact norms": difference(exact[0][2], exact[1][2]),
        "again": bool((again[0] == again[1]).all()),
        "together": together,
    }


def test_trains_as_over_ddp_with_clipping_accumulation_evaluation_and_checkpoints(crew: Crew, tmp_path: Path) -> None:
    ranks = crew.run(compare, str(tmp_path))
    assert len({found.pop("together") for found in ranks}) == 1
    for rank, found in enumerate(ranks):
        for name in ("losses", "evaluated", "norms", "weights", "saved", "resumed", "exact norms"):
            assert found.pop(name) < TOLERANCE, name
        assert found == {
            "places": (2, rank),
            "wrapped": (False, True),
            "plain again": True,
            "clipped": True,
            "exact": True,
            "again": True,
        }


def overlap(folder: str, timeline: str) -> None:
    from transformers import TrainerCallback

    from legato.integrations.transformers import LegatoTrainer

    class Notes(TrainerCallback):  # type: ignore[misc]  # it has no types here
        def on_train_begin(self, *_: Any, **__: Any) -> None:
            lg.start_timeline(timeline)

    class Noted(LegatoTrainer):
        def __init__(self, **options: Any) -> None:
            super().__init__(**options, callbacks=[Notes()])

        def compute_loss(self, *args: Any, **kwargs: Any) -> Any:
            begin_ns = time.monotonic_ns()
            loss = super().compute_loss(*args, **kwargs)
            lg.init().timeline.stretch("forward", "compute_loss", begin_ns, self.state.global_step)
            return loss

    fit(Noted, folder, schedule={"transport": "native", "tuner": "off"})
    lg.stop_timeline()
    forget_accelerate()


def test_updates_wait_for_the_next_forward_pass_although_gradients_are_clipped(crew: Crew, tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    crew.run(overlap, str(tmp_path), str(path))
    for rows in read(path).values():
        passes = {details["step"]: (begin, end) for name, begin, end, details in rows["forward"] if "compute" in name}
        updates = [(details["step"], begin) for name, begin, _, details in rows["forward"] if "update" in name]
        inside = {step for step, begin in updates if step in passes and passes[step][0] <= begin <= passes[step][1]}
        # The first step shows that the optimizer can be divided; nothing but the end of training applies the last one.
        assert inside == set(range(2, STEPS))
        assert {step for step, _ in updates} - inside == {STEPS}
