"""Hugging Face Accelerate over legato: `LegatoAccelerator()` in place of `Accelerator()`.

Accelerate keeps its process group, its data loaders and its collectives. Where it would wrap a model in torch's
DistributedDataParallel, the model stays as it is and is scheduled together with its optimizer.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from accelerate import Accelerator, DistributedType
from accelerate.optimizer import AcceleratedOptimizer
from accelerate.utils.dataclasses import DDPCommunicationHookType
from torch import nn
from torch.utils.hooks import RemovableHandle

import legato.torch as lg
from legato.errors import InputError
from legato.torch.scheduling.attachments import Hook, is_covered, owners_of
from legato.torch.scheduling.measures import Parameters

_SHARDED = (DistributedType.DEEPSPEED, DistributedType.FSDP, DistributedType.MEGATRON_LM, DistributedType.XLA)
"""What moves gradients in a way of its own."""


class LegatoAccelerator(Accelerator):
    """An `Accelerator` that schedules models instead of wrapping them.

    Prepare a model before its optimizer, or both in one call, in any order.
    """

    scaler: torch.amp.GradScaler | None

    def __init__(self, *args: Any, schedule: Mapping[str, Any] | None = None, **kwargs: Any) -> None:
        """`schedule` are options of `legato.torch.schedule`; everything else is Accelerate's."""
        super().__init__(*args, **kwargs)
        self._begin(schedule)

    @classmethod
    def adopt(cls, accelerator: Accelerator, schedule: Mapping[str, Any] | None = None) -> None:
        """Make one of these of an accelerator that somebody else has made, before it has prepared anything."""
        accelerator.__class__ = cls
        accelerator._begin(schedule)

    def _begin(self, schedule: Mapping[str, Any] | None) -> None:
        if self.distributed_type in _SHARDED:
            raise InputError(
                f"distributed_type is {self.distributed_type.value}; legato takes the place of "
                "DistributedDataParallel: accepted are the types that use it (MULTI_GPU, MULTI_CPU), and NO"
            )
        if self.ddp_handler is not None and self.ddp_handler.comm_hook != DDPCommunicationHookType.NO:
            raise InputError(
                f"comm_hook is {self.ddp_handler.comm_hook.value}, a hook of DistributedDataParallel, which is not "
                "there; use schedule={'compression': ...}"
            )
        self._job = lg.init()
        if (self._job.rank, self._job.size) != (self.process_index, self.num_processes):
            raise InputError(
                f"this is rank {self._job.rank} of {self._job.size}, told by {self._job.settings.told_by}, but "
                f"process {self.process_index} of {self.num_processes} to Accelerate; start with torchrun or "
                "accelerate launch, and on processors with cpu=True (TrainingArguments: use_cpu=True)"
            )
        if isinstance(self.scaler, torch.amp.GradScaler):
            options = {} if self.scaler_handler is None else self.scaler_handler.to_kwargs()
            self.scaler = lg.GradScaler(self.device.type, **options)
        self._options = dict(schedule or {})
        self._waiting: dict[nn.Module, RemovableHandle] = {}
        """Prepared for training and not scheduled yet, each with a hook that refuses to train it so."""
        self._scheduled: list[nn.Module] = []

    # ---- what is trained ----

    def prepare(self, *args: Any, device_placement: Sequence[bool | None] | None = None) -> Any:
        """As Accelerate's, models first: an optimizer is scheduled with the model whose parameters it has."""
        order = sorted(range(len(args)), key=lambda index: not isinstance(args[index], nn.Module))
        placement = device_placement and [device_placement[index] for index in order]
        prepared = super().prepare(*(args[index] for index in order), device_placement=placement)
        if len(args) == 1:
            return prepared
        return tuple(each for _, each in sorted(zip(order, prepared, strict=True), key=lambda pair: pair[0]))

    def prepare_model(
        self, model: nn.Module, device_placement: bool | None = None, evaluation_mode: bool = False
    ) -> nn.Module:
        """Place, cast and compile it as asked, with nothing around it."""
        prepared: nn.Module = super().prepare_model(model, device_placement, evaluation_mode=True)
        is_new = prepared not in self._waiting and prepared not in self._scheduled
        if not evaluation_mode and self._job.size > 1 and is_new:
            self._waiting[prepared] = prepared.register_forward_pre_hook(Hook(_refuse_to_train))
        return prepared

    def prepare_optimizer(
        self, optimizer: torch.optim.Optimizer, device_placement: bool | None = None
    ) -> AcceleratedOptimizer:
        """Schedule it, then wrap it as Accelerate does, whose wrapper keeps the `step` it finds."""
        bare = optimizer
        while isinstance(bare, AcceleratedOptimizer):
            bare = bare.optimizer
        if self._job.size == 1 or is_covered(bare):
            return super().prepare_optimizer(optimizer, device_placement)
        self._schedule(bare)
        return super().prepare_optimizer(bare, device_placement)

    def _schedule(self, optimizer: torch.optim.Optimizer) -> None:
        trained = {parameter for group in optimizer.param_groups for parameter in group["params"]}
        models = [model for model in (*self._waiting, *self._scheduled) if trained <= set(model.parameters())]
        if not models:
            raise InputError(
                f"no model prepared for training has all parameters of this {type(optimizer).__name__}; prepare a "
                "model before its optimizer or together with it, and give each model an optimizer of its own"
            )
        model = models[0]
        lg.schedule(model, optimizer, job=self._job, **self._options)
        if model in self._waiting:
            self._waiting.pop(model).remove()
            self._scheduled.append(model)

    def release(self) -> None:
        """Apply what is still due and leave models and optimizers as they were; prepare them again to train on."""
        for handle in self._waiting.values():
            handle.remove()
        self._waiting.clear()
        while self._scheduled:
            lg.unschedule(self._scheduled.pop(), job=self._job)

    def free_memory(self, *objects: Any) -> Any:
        self.release()
        return super().free_memory(*objects)

    def end_training(self) -> None:
        self.release()
        super().end_training()

    # ---- what happens to its gradients ----

    @contextmanager
    def no_sync(self, model: nn.Module) -> Iterator[None]:
        """Gradients that are only accumulated do not travel."""
        with lg.no_sync(model) if owners_of(model) else super().no_sync(model):
            yield

    def clip_grad_norm_(self, parameters: Parameters, max_norm: float, norm_type: float = 2) -> torch.Tensor:
        """As Accelerate's, without waiting for the averages."""
        self.unscale_gradients()
        return lg.clip_grad_norm_(parameters, max_norm, norm_type)


def _refuse_to_train(model: nn.Module, inputs: Any) -> None:
    """A model that trains without its schedule trains alone, and nobody notices."""
    del inputs
    if model.training and torch.is_grad_enabled() and any(each.requires_grad for each in model.parameters()):
        raise InputError(
            "this model was prepared, but not its optimizer: nobody would average its gradients; call "
            "prepare(model, optimizer), or prepare_model(model, evaluation_mode=True) where it is not trained"
        )
