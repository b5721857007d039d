"""From a gradient's memory to the exchange and back."""

import logging
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from legato._native import Collector, GradientHook
from legato.compression import PLAIN, Selection
from legato.core import Plan
from legato.errors import InputError, JobError
from legato.exchange import Exchange, NativePlanner, TensorSpec
from legato.exchange.measure import Measure
from legato.torch.compression import Compression, Compressor, NoneCompressor
from legato.torch.sync.device_codecs import Coder, Parts, codes_on, device_codec
from legato.torch.sync.devices import can_wait, sleep_while_waiting
from legato.torch.sync.pieces import PieceStaging
from legato.torch.sync.rows import RowsPassage
from legato.torch.sync.staging import Staging
from legato.torch.sync.synchronizer import Slot
from legato.transports.declaration import ITEM_BYTES
from legato.transports.native.group import NativeGroup
from legato.transports.native.handle import TaskHandle
from legato.tuning.candidate import Candidate

_log = logging.getLogger(__name__)


def dtype_name(dtype: torch.dtype) -> str:
    """The name that ranks agree on: `float32` for torch.float32."""
    name = str(dtype).removeprefix("torch.")
    if name not in ITEM_BYTES:
        raise InputError(f"dtype {dtype} cannot be synchronised; accepted are {', '.join(ITEM_BYTES)}")
    return name


def raw(tensor: torch.Tensor) -> tuple[int, int, str]:
    """A tensor's memory as the transports take it."""
    return tensor.data_ptr(), tensor.numel() * tensor.element_size(), dtype_name(tensor.dtype)


_FORMATS = {4: torch.channels_last, 5: torch.channels_last_3d}


def is_in_one_stretch(tensor: torch.Tensor) -> bool:
    """Whether its elements fill one stretch of memory, in the order of its layout."""
    return tensor.is_contiguous() or (
        tensor.dim() in _FORMATS and tensor.is_contiguous(memory_format=_FORMATS[tensor.dim()])
    )


def _reals(slot: Slot, tensor: torch.Tensor) -> torch.Tensor:
    """What travels of a tensor; at least an item, since ranks tell each other also whether anybody has a gradient."""
    return slot.as_reals(tensor if tensor.numel() else tensor.new_zeros(1))


def _is_sent_as_it_is(slot: Slot) -> bool:
    """Whether what travels of a gradient, before anything compresses it, is the gradient in its slot's order."""
    weight = slot.weight()
    return not slot.is_complex and weight.numel() > 0 and is_in_one_stretch(weight)


def _items(tensor: torch.Tensor) -> torch.Tensor:
    """Of a tensor in one stretch, as they lie in memory."""
    return tensor.as_strided((tensor.numel(),), (1,))


Late = Callable[[int, Sequence[int]], None]
"""Told of a step and the ranks that were too late for a gradient in it."""


@dataclass(frozen=True, slots=True)
class _Encoding:
    """What a gradient was encoded from."""

    reals: torch.Tensor
    """Where the average is decoded to."""
    step: int
    parts: Parts


@dataclass(slots=True)
class _Passage:
    """One gradient on its way through one step."""

    gradient: torch.Tensor
    """What was submitted, and holds the average in the end."""
    wire: torch.Tensor
    """What is sent of it, on its device."""
    context: Any
    """What is needed to decompress it; of one that is encoded, an `_Encoding`."""
    absent: bool
    """This rank had no gradient."""
    staged: "Future[None] | None" = None
    """Done when it has been copied to the host and added there; None where it is there already, or comes in pieces."""
    mark: int | None = None
    """Of its step, where it passes through the host in pieces."""


class NativeSynchronizer:
    """Averages gradients in their own memory: from a parameter's gradient to the exchange and back."""

    def __init__(
        self,
        group: NativeGroup,
        prefix: str,
        slots: Sequence[Slot],
        compressor: type[Compressor],
        selection: Selection = PLAIN,
        *,
        planner: NativePlanner | None = None,
        staleness: int | None = None,
        backups: int = 0,
        late: Late | None = None,
        runs_ahead: bool = False,
        homes: "list[torch.Tensor | None] | None" = None,
        first_steps: Sequence[int] | None = None,
        order: Sequence[int] | None = None,
    ) -> None:
        """With a `staleness`, what comes back is the average of all that has ever been submitted (`Declaration`).

        With `backups`, it is the average of those who came in time, and `late` is told of the others.

        A caller that `runs_ahead` does not wait for an accelerator's averages: its stream does. Where one does not
        come after all, its memory is NaN, and the next call says why; `confirm` is such a call.

        With `homes`, an average arrives in memory of its own, which is kept there by index, and a gradient stays as it
        was submitted until then: an elastic job may need either once more. `first_steps` and `order` are where an
        earlier synchronizer of the same gradients has come to.
        """
        if backups and any(slot.is_sparse for slot in slots):
            raise InputError(f"backups={backups} do not go with sparse gradients; use sparse=False")
        self._group = group
        self._prefix = prefix
        self._slots = slots
        self._compressor = compressor
        self._late = late
        self._passages: list[_Passage | torch.Tensor | None] = [None] * len(slots)
        """Of a gradient whose average arrives in its own memory, so that nothing is left to do then, the gradient."""
        devices = {slot.parameter.device for slot in slots if slot.parameter.is_cuda}
        for device in devices:
            sleep_while_waiting(device)
        self._num_staged = [0] * len(slots)
        """Steps of each slot that have been given to the staging: they have begun, wherever the accelerator is."""
        self._rows: dict[int, RowsPassage] = {}
        self._dense = [index for index, slot in enumerate(slots) if not slot.is_sparse]
        """The slots that the exchange has, by their place there."""
        self._places = {index: place for place, index in enumerate(self._dense)}
        self._homes = homes
        self._exchange = Exchange(
            group,
            prefix,
            [self._spec(slots[index]) for index in self._dense],
            planner=planner,
            selection=selection,
            staleness=staleness,
            backups=backups,
            first_steps=None if first_steps is None else [first_steps[index] for index in self._dense],
            order=None if order is None else [self._places[index] for index in order if index in self._places],
        )
        # A compressor of a user's own may make anything of what arrives.
        self._can_measure = self._exchange.can_measure and compressor in vars(Compression).values()
        self._measures = False
        self._measured = [False] * len(slots)
        """Whether the ranks that sum a gradient tell the measure of what was submitted last; of what is sent from its
        own memory the collector knows."""
        self._add, self._add_like = self._exchange.collector.add, self._exchange.collector.add_like
        # A total, and an average without some ranks, may come as it likes.
        can_flow = staleness is None and not backups and all(map(can_wait, devices))
        coders = self._make_coders() if can_flow else None
        self._coders = coders or {}
        """Of slots whose gradients are encoded on their device, before they are copied to the host."""
        # What is on the host already is ready as a whole.
        most_bytes = [
            num_bytes if slots[index].parameter.is_cuda else 0
            for index, num_bytes in zip(self._dense, self._exchange.num_bytes, strict=True)
        ]
        for index, coder in self._coders.items():
            most_bytes[self._places[index]] = coder.most_bytes
            self._exchange.collector.set_coded(self._places[index], coder.most_bytes)
        in_pieces = bool(devices) and coders is not None
        self._pieces = PieceStaging(self._exchange.collector, most_bytes) if in_pieces else None
        if self._pieces is not None:
            self._exchange.watch()  # a stream that waits has no deadline of its own
        self._staging = Staging() if devices and not in_pieces else None
        if devices:
            self._log_host_codecs()
        self._runs_ahead = runs_ahead
        self._unconfirmed: dict[int, TaskHandle[None]] = {}
        """Averages that streams wait for, and this thread has not."""
        self._as_it_is = [
            compressor is NoneCompressor and index not in self._coders and _is_sent_as_it_is(slot)
            for index, slot in enumerate(slots)
        ]
        """Whether a gradient in its slot's order is what is sent of it."""
        self._in_place: list[int | None] = [None] * len(slots)
        """Places of slots whose gradients are sent from their own memory, to which the averages come back."""
        if homes is None:
            for index, place in self._places.items():
                if self._as_it_is[index] and not slots[index].parameter.is_cuda:
                    self._in_place[index] = place
                    self._exchange.collector.set_like(place, slots[index].weight())

    def submit(self, index: int, gradient: torch.Tensor | None) -> bool:
        place = self._in_place[index]
        if place is not None and gradient is not None and not gradient.is_neg():
            try:
                is_added = self._add_like(place, gradient)
            except (ValueError, RuntimeError) as error:
                raise self._exchange.refusal(place, error) from None
            if is_added:
                self._passages[index] = gradient
                return True
        return self._submit_otherwise(index, gradient)

    def attend(self, index: int, *, reads: bool) -> None:
        """Take part in a step with nothing to add and, unless this rank `reads` it, without need of the average."""
        self._submit_otherwise(index, None, unread=not reads)

    def _submit_otherwise(self, index: int, gradient: torch.Tensor | None, *, unread: bool = False) -> bool:
        """What has to be looked at, copied, compressed or staged first."""
        slot = self._slots[index]
        if slot.is_sparse:
            self._rows[index] = RowsPassage(self._group, f"{self._prefix}/{slot.name}", slot, gradient)
            return False
        absent = gradient is None
        if gradient is None:
            gradient = torch.empty_like(slot.weight())
        elif gradient.is_sparse:
            raise InputError(f"parameter {slot.name!r} has a sparse gradient, but is not of an embedding")
        else:
            gradient = slot.written(gradient)
        wire, context = slot.in_order(gradient), None
        if not self._as_it_is[index]:
            wire, context = self._prepare(index, wire, absent)
        passage = self._passages[index] = _Passage(gradient, wire, context, absent)
        self._measured[index] = self._measures
        place = self._places[index]
        if self._pieces is not None and wire.is_cuda:
            self._submit_in_pieces(index, passage)
            return False
        if self._staging is not None and wire.is_cuda:
            self._num_staged[index] += 1
            passage.staged = self._staging.send(index, wire, partial(self._add_staged, place, absent))
            return False
        home = None if self._homes is None else self._home(index, wire)
        destination = None if home is None else home.data_ptr()
        memory = wire if home is None else (wire, home)
        try:
            self._add(place, wire.data_ptr(), wire.nbytes, absent, memory, destination, unread)
        except (ValueError, RuntimeError) as error:
            raise self._exchange.refusal(place, error) from None
        in_place = self._as_it_is[index] and wire is gradient and home is None and not absent
        if in_place:
            self._passages[index] = gradient
        return in_place

    def aim(self, hook: GradientHook, index: int, tell: Callable[[int], None] | None) -> None:
        """Have a hook do what `submit` does, for gradients that are like their parameter; it tells of them first."""
        place = self._in_place[index]
        if place is None:
            hook.rest()
        else:
            hook.aim(self._exchange.collector, place, self._passages, self._exchange.refusal, tell)

    def _home(self, index: int, wire: torch.Tensor) -> torch.Tensor:
        assert self._homes is not None
        home = self._homes[index]
        if home is None:
            home = self._homes[index] = torch.empty_like(wire)
        return home

    def poll(self, index: int) -> bool:
        if index in self._rows:
            return self._rows[index].poll()
        passage = self._passage(index)
        is_staged = passage is None or passage.staged is None or passage.staged.done()
        return is_staged and self._exchange.poll(self._places[index])

    def wait(self, index: int) -> bool:
        if index in self._rows:
            return self._rows[index].wait()
        passage = self._passage(index)
        if passage is None:
            pass
        elif passage.staged is not None:
            passage.staged.result()
        elif passage.mark is not None and self._runs_ahead and not passage.absent:
            # This rank had a gradient, so there is an average: nothing has to be known of it here.
            self._check()
            self._unconfirmed[index] = self._exchange.sent(self._places[index])
            self._bring_home(index, passage)
            return True
        try:
            handle = self._exchange.wait(self._places[index])
        except JobError:
            self._check()
            raise
        if self._late is not None:
            self._late(handle.step, handle.without)
        if handle.empty:
            return False
        if passage is not None:
            self._bring_home(index, passage)
        return True

    def arrives_in_place(self, index: int) -> bool:
        is_in_place = self._passages[index] is not None and self._passage(index) is None
        return is_in_place and self._late is None  # of whom only the whole answer tells

    def wait_first(self, index: int, num_items: int) -> int:
        width = self._slots[index].dtype.itemsize
        return self._exchange.wait_first(self._places[index], num_items * width) // width

    def outcome(self, index: int, step: int) -> bool | None:
        """After the end of the group, of a gradient's step: None where its average has not arrived, else whether there
        is one."""
        return self._exchange.outcome(self._places[index], step)

    def take_home(self, index: int) -> None:
        """Of what was submitted and not waited for: the average is in its home, whoever has put it there."""
        passage = self._passage(index)
        assert passage is not None
        self._bring_home(index, passage)

    def result(self, index: int) -> torch.Tensor:
        if index in self._rows:
            return self._rows.pop(index).result()
        passage, self._passages[index] = self._passages[index], None
        assert passage is not None
        return passage.gradient if isinstance(passage, _Passage) else passage

    def set_measured(self) -> None:
        if self._can_measure and not self._measures:
            self._exchange.set_measured()
            self._measures = True

    def is_measured(self, index: int) -> bool:
        place = self._in_place[index]
        return self._measured[index] if place is None else self._exchange.collector.is_measured(place)

    def measure(self, index: int) -> Measure:
        passage = self._passage(index)
        if passage is not None and passage.staged is not None:
            passage.staged.result()
        try:
            return self._exchange.measure(self._places[index])
        except JobError:
            self._check()
            raise

    def measure_here(self, index: int, average: torch.Tensor) -> Measure:
        if index not in self._places or not average.numel():
            return self._slots[index].measure(average)
        place = self._places[index]
        width = self._exchange.num_bytes[place] // max(average.numel(), 1)
        parts = [(offset // width, length // width) for offset, length in self._exchange.parts(place)]
        return self._slots[index].measure(average, parts)

    def confirm(self) -> None:
        for index in list(self._unconfirmed):
            self._confirm(index)

    def set_order(self, order: Sequence[int]) -> None:
        self._exchange.set_order([self._places[index] for index in order if index in self._places])

    @property
    def plan(self) -> Plan:
        return self._exchange.plan_at(self.num_steps - 1)

    @property
    def is_planned(self) -> bool:
        """Whether its steps are those that the job's plans count."""
        return self._exchange.is_planned

    def plan_for(self, candidate: Candidate) -> Plan:
        """What a tuner has chosen, for these gradients."""
        return self._exchange.plan_for(candidate)

    @property
    def num_bytes(self) -> Sequence[int]:
        """What travels of each slot; 0 for sparse ones, whose rows no plan cuts."""
        num_bytes = [0] * len(self._slots)
        for index, place in self._places.items():
            num_bytes[index] = self._exchange.num_bytes[place]
        return num_bytes

    @property
    def num_steps(self) -> int:
        """Steps that have begun here, as plans count them."""
        return max(self._exchange.num_steps, *self._num_staged, 0)

    def end_totals(self) -> None:
        """What is submitted next is this rank's last: nobody waits for it any more."""
        self._exchange.end_totals()

    def close(self) -> None:
        if self._staging is not None:
            self._staging.close()
        if self._pieces is not None:
            self._pieces.close()
        self._exchange.close()

    def _submit_in_pieces(self, index: int, passage: _Passage) -> None:
        self._confirm(index)  # the engine has one step of a tensor at a time
        self._check()
        assert self._pieces is not None
        place, wire = self._places[index], passage.wire
        pinned = self._pieces.address(place, wire)
        try:
            step = self._add(place, pinned, wire.nbytes, passage.absent, self._pieces)
        except (ValueError, RuntimeError) as error:
            raise self._exchange.refusal(place, error) from None
        passage.mark = Collector.mark_of(step)
        self._pieces.send(place, wire, passage.mark, absent=passage.absent)

    def _bring_home(self, index: int, passage: _Passage) -> None:
        """From the host's memory into the gradient's, on the current stream."""
        if self._homes is not None:
            passage.wire.copy_(self._home(index, passage.wire))
        elif passage.staged is not None:
            assert self._staging is not None
            self._staging.bring_back(index, passage.wire)
        elif passage.mark is not None:
            assert self._pieces is not None
            self._pieces.bring_home(self._places[index], passage.wire, passage.mark)
        # On an accelerator a cast is its own: what travels to the host and back has the size of what is sent.
        if index in self._coders:
            reals = self._decode(index, passage)
        else:
            reals = self._compressor.decompress(passage.wire, passage.context)
        average = self._slots[index].as_declared(reals)
        if average.data_ptr() != passage.gradient.data_ptr():
            passage.gradient.copy_(average)

    def _prepare(self, index: int, gradient: torch.Tensor, absent: bool) -> tuple[torch.Tensor, Any]:
        """What is sent of a gradient in its slot's order, and what is needed to make one of what comes back."""
        reals = _reals(self._slots[index], gradient)
        if index in self._coders:
            return self._encode(index, reals, absent)
        compressed, context = self._compressor.compress(reals)
        return compressed if is_in_one_stretch(compressed) else compressed.contiguous(), context

    def _encode(self, index: int, reals: torch.Tensor, absent: bool) -> tuple[torch.Tensor, _Encoding]:
        """What travels of a gradient, as its parts will be cut, on the current stream."""
        coder = self._coders[index]
        step, parts = self._exchange.begin(self._places[index])
        reals = reals.detach()  # of a graph, if it has one: what is remembered must not keep it
        if not is_in_one_stretch(reals):
            reals = reals.contiguous()
        if absent:
            wire = torch.empty(coder.num_bytes(parts), dtype=torch.uint8, device=reals.device)
        else:
            wire = coder.encode(_items(reals), step, parts)
        return wire, _Encoding(reals, step, parts)

    def _decode(self, index: int, passage: _Passage) -> torch.Tensor:
        encoding: _Encoding = passage.context
        reals = encoding.reals
        _items(reals).copy_(self._coders[index].decode(passage.wire, encoding.step, encoding.parts))
        if reals.is_cuda:  # the caller may have computed it on another stream
            reals.record_stream(torch.cuda.current_stream(reals.device))
        return reals

    def _make_coders(self) -> dict[int, Coder] | None:
        """None where ranks agree on a scale before they encode: all of a gradient has to be on the host then."""
        coders: dict[int, Coder] = {}
        for index, place in self._places.items():
            scheme = self._exchange.scheme(place)
            if scheme is None or not codes_on(self._slots[index].device):
                continue
            if scheme.codec.agrees_on_scale:
                return None
            num_items = self._exchange.num_bytes[place] // torch.float32.itemsize
            codec = device_codec(scheme, num_items)
            if codec is not None:
                coders[index] = Coder(scheme, codec, self._exchange.number(place), num_items, self._group.rank)
        return coders

    def _log_host_codecs(self) -> None:
        others = (place for index, place in self._places.items() if index not in self._coders)
        names = {scheme.codec.name for place in others if (scheme := self._exchange.scheme(place)) is not None}
        if names:
            _log.info(
                "codec %s works on the host: gradients are copied there whole, and the network alone carries less",
                ", ".join(sorted(names)),
            )

    def _confirm(self, index: int) -> None:
        """Wait here for an average that so far only a stream waits for."""
        handle = self._unconfirmed.pop(index, None)
        if handle is None:
            return
        try:
            handle.wait()
        except JobError:
            self._check()
            raise
        self._exchange.collector.forget(self._places[index])

    def _check(self) -> None:
        """What has ended the job, if it has ended: a stream that was released cannot say so, nor can the engine where
        the watch has closed it."""
        if self._pieces is not None:
            self._exchange.check()

    def _add_staged(self, place: int, absent: bool, pinned: torch.Tensor) -> None:
        self._exchange.add(place, pinned.data_ptr(), pinned.nbytes, absent, pinned)

    def _passage(self, index: int) -> _Passage | None:
        """None of a gradient in its own memory."""
        passage = self._passages[index]
        assert passage is not None
        return passage if isinstance(passage, _Passage) else None

    def _spec(self, slot: Slot) -> TensorSpec:
        reals = _reals(slot, slot.weight())
        compressed, _ = self._compressor.compress(reals[:0] if reals.dim() else reals)
        return TensorSpec(slot.name, (reals.numel(),), dtype_name(compressed.dtype))
