"""The trainer of transformers over legato: `LegatoTrainer` in place of `Trainer`, with the same TrainingArguments."""

from collections.abc import Mapping
from typing import Any

from transformers import Trainer

from legato.integrations.accelerate import LegatoAccelerator


class LegatoTrainerMixin:
    """Before the class of any trainer that is a `transformers.Trainer`.

    class LegatoSeq2SeqTrainer(LegatoTrainerMixin, Seq2SeqTrainer): ...
    """

    accelerator: LegatoAccelerator

    def __init__(self, *args: Any, schedule: Mapping[str, Any] | None = None, **kwargs: Any) -> None:
        """`schedule` are options of `legato.torch.schedule`; everything else is the trainer's."""
        self._schedule_options = schedule
        super().__init__(*args, **kwargs)

    def create_accelerator_and_postprocess(self) -> None:
        """The trainer calls this first; what it has made then wraps, accumulates and clips for it."""
        super().create_accelerator_and_postprocess()  # type: ignore[misc]  # the trainer's
        LegatoAccelerator.adopt(self.accelerator, self._schedule_options)

    def train(self, *args: Any, **kwargs: Any) -> Any:
        """Afterwards, the model is a plain one again."""
        output = super().train(*args, **kwargs)  # type: ignore[misc]  # the trainer's
        self.accelerator.release()
        return output


class LegatoTrainer(LegatoTrainerMixin, Trainer):
    """A `transformers.Trainer` that schedules its model instead of wrapping it in DistributedDataParallel."""
