"""The seam between the hooks and what moves gradients."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch

from legato._native import measure
from legato.core import Plan
from legato.errors import InputError
from legato.exchange.measure import Measure, total


@dataclass(frozen=True, slots=True)
class Slot:
    """A place in the order of gradients: one parameter of the schedule, as all ranks have agreed on it.

    Of a parameter that is sharded (a DTensor), all of this is of this rank's shard, and so is what travels.
    """

    name: str
    """The parameter's name in the model; the same on every rank."""
    parameter: torch.nn.Parameter
    is_sparse: bool = False
    """Its gradients are rows: of an embedding that says so."""
    shape: torch.Size = field(init=False)
    dtype: torch.dtype = field(init=False)
    is_complex: bool = field(init=False)
    """Its elements travel as pairs of reals."""
    device: torch.device = field(init=False)
    strides: tuple[int, ...] = field(init=False)
    """The order in which elements travel: the parameter's, without gaps."""

    def __post_init__(self) -> None:
        parameter = local_of(self.parameter)
        for key, value in (
            ("shape", parameter.shape),
            ("dtype", parameter.dtype),
            ("is_complex", parameter.is_complex()),
            ("device", parameter.device),
            ("strides", strides_of(parameter)),
        ):
            object.__setattr__(self, key, value)

    def check(self, tensor: torch.Tensor) -> None:
        """An InputError where a gradient, or the parameter itself, is not of the kind that ranks have agreed on."""
        tensor = local_of(tensor)
        if tensor.dtype is not self.dtype or tensor.shape != self.shape or tensor.device != self.device:
            raise InputError(
                f"parameter {self.name!r} was declared as {self.dtype} {tuple(self.shape)} on {self.device}, "
                f"but now it is {tensor.dtype} {tuple(tensor.shape)} on {tensor.device}; cast or move a model before "
                "it is scheduled, or take the schedule off (legato.torch.unschedule) and schedule it again"
            )

    def in_order(self, gradient: torch.Tensor) -> torch.Tensor:
        """The gradient where its elements lie in the order in which they travel, else a copy that does; checked."""
        if gradient.dtype is not self.dtype or gradient.shape != self.shape or gradient.device != self.device:
            self.check(gradient)
        strides = gradient.stride()
        if strides == self.strides or same_order(self.shape, strides, self.strides):
            return gradient
        return torch.empty_strided(self.shape, self.strides, dtype=self.dtype, device=self.device).copy_(gradient)

    def written(self, gradient: torch.Tensor) -> torch.Tensor:
        """The gradient, or a copy where its memory holds the conjugate or the negative of what it is, as autograd may
        leave it."""
        return gradient.resolve_conj().resolve_neg()

    def as_reals(self, tensor: torch.Tensor) -> torch.Tensor:
        """The same memory, with a pair of reals for a complex number: what travels."""
        return torch.view_as_real(tensor) if self.is_complex else tensor

    def as_declared(self, reals: torch.Tensor) -> torch.Tensor:
        """The way back from `as_reals`."""
        return torch.view_as_complex(reals) if self.is_complex else reals

    def measure(self, gradient: torch.Tensor, parts: Iterable[tuple[int, int]] | None = None) -> Measure:
        """Of a gradient that is here, over stretches of (first item, number of items), in the order in which they
        travel; by default over all of it."""
        items = self.in_order(gradient.detach()).as_strided((gradient.numel(),), (1,)).cpu()
        dtype, width = str(items.dtype).removeprefix("torch."), items.element_size()
        memory = items.view(torch.uint8).numpy()
        return total(
            Measure(*measure(dtype, memory[first * width : (first + length) * width]))
            for first, length in ([(0, gradient.numel())] if parts is None else parts)
        )

    def weight(self) -> torch.Tensor:
        """The parameter's memory, which `module.to` and `parameter.data` may have replaced; checked."""
        self.check(self.parameter)
        return local_of(self.parameter).detach()

    def whole(self, local: torch.Tensor) -> torch.Tensor:
        """The gradient of which this is what is here: what the parameter and its optimizer take."""
        return of_shard(self.parameter, local) if is_shard(self.parameter) else local


def is_shard(tensor: torch.Tensor) -> bool:
    """Whether a tensor is a DTensor, of which a rank has a part; importing that class takes a second."""
    return hasattr(tensor, "to_local")


def local_of(tensor: torch.Tensor) -> torch.Tensor:
    """What of a tensor is here, in the same memory: all of it, or this rank's shard."""
    # Without autograd, which `to_local` would have look at it.
    return tensor._local_tensor if is_shard(tensor) else tensor  # type: ignore[attr-defined]


def of_shard(like: torch.Tensor, local: torch.Tensor) -> torch.Tensor:
    """The DTensor of which `local` is this rank's shard; it is spread over ranks `like` another one."""
    # `from_local` makes the same in twenty times the time, and this runs for every tensor of every step.
    kind: Any = type(like)
    whole: torch.Tensor = kind(local, like._spec, requires_grad=False)  # type: ignore[attr-defined]
    return whole


def strides_of(tensor: torch.Tensor) -> tuple[int, ...]:
    """Of a copy that keeps the order of the tensor's elements and has no gaps."""
    return torch.empty_like(tensor, device="meta").stride()


def same_order(shape: torch.Size, strides: tuple[int, ...], others: tuple[int, ...]) -> bool:
    """Whether elements lie in the same order: the stride of a dimension with one place says nothing."""
    return all(size == 1 or stride == other for size, stride, other in zip(shape, strides, others, strict=True))


class Synchronizer(Protocol):
    """Averages gradients over all ranks, each as soon as it can. Indices are those of the slots it was made with."""

    def submit(self, index: int, gradient: torch.Tensor | None) -> bool:
        """Take a gradient, in place; None where this rank has none. Its memory is the synchronizer's until `wait`.

        Whether its memory is all that is needed until then: nobody here uses the tensor. It is checked here, and
        nowhere before (`Slot.check`): beyond, there are only addresses.
        """

    def poll(self, index: int) -> bool:
        """Whether `wait` would return at once."""

    def wait(self, index: int) -> bool:
        """Wait until the average is in the gradient's memory; False when no rank had one.

        On an accelerator it is enough that the current stream waits: see `confirm`.
        """

    def arrives_in_place(self, index: int) -> bool:
        """Whether `wait_first` can be asked for what was submitted last, until `wait`."""

    def wait_first(self, index: int, num_items: int) -> int:
        """Wait until so many of the average's first items are in the gradient's memory; how many are. They are the
        caller's, who may change them."""

    def result(self, index: int) -> torch.Tensor:
        """The averaged gradient, after `wait` was true: the tensor submitted, or a new one where there was none, or
        where that was not written down (`Slot.written`)."""

    def set_measured(self) -> None:
        """From now on measure what is submitted, where that is possible."""

    def is_measured(self, index: int) -> bool:
        """Whether what was submitted last is measured: then `measure` can be asked for it until `wait`, and
        `measure_here` after it. The same on all ranks."""

    def measure(self, index: int) -> Measure:
        """Wait for the measure of an average, which is there before the average itself; the same bits on all ranks."""

    def measure_here(self, index: int, average: torch.Tensor) -> Measure:
        """The same of an average that is here: to the bit, as long as nobody has changed it."""

    def confirm(self) -> None:
        """Return when every average that was waited for is there, and raise if one is not: before anybody outside a
        step looks at what was made of it."""

    def set_order(self, order: Sequence[int]) -> None:
        """Priorities from the observed order of first use: the most urgent index first."""

    @property
    def plan(self) -> Plan:
        """What the newest step follows."""

    def close(self) -> None:
        """Let go of the slots; nothing is under way."""
