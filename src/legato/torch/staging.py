"""Staging: gradients of an accelerator pass through pinned memory of the host.

    main stream   backward of layer i ─ event ─┐                        ┌─ copy back, then the update
    side stream                                └─ copy to pinned ─ event ┤
    this thread                                      waits for it, submits to the engine

The device is never synchronised: the side stream waits for the gradient's event, the thread for the copy's, and the
next copy into the same pinned memory for the event of the copy back. So one gradient is copied while another is sent.
"""

import threading
from collections.abc import Callable
from concurrent.futures import Future
from queue import SimpleQueue

import torch

from legato.transports.handle import TaskHandle

Send = Callable[[torch.Tensor], TaskHandle[object]]


class Staging:
    """Owns the side stream, the pinned memory and the thread that waits for copies."""

    def __init__(self) -> None:
        self._stream = torch.cuda.Stream()
        self._pinned: dict[int, torch.Tensor] = {}
        self._back: dict[int, torch.cuda.Event] = {}
        self._copies: SimpleQueue[tuple[torch.cuda.Event, torch.Tensor, Send, Staged] | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._submit_copied, name="legato-staging", daemon=True)
        self._thread.start()

    def send(self, index: int, tensor: torch.Tensor, send: Send) -> tuple[torch.Tensor, "Staged"]:
        """Copy a tensor to the host behind what computes it, then send it from there; gives the copy and a handle."""
        pinned = self._pinned.get(index)
        if pinned is None or pinned.shape != tensor.shape or pinned.dtype != tensor.dtype:
            pinned = torch.empty_like(tensor, device="cpu", pin_memory=True)
            self._pinned[index] = pinned
        self._stream.wait_stream(torch.cuda.current_stream(tensor.device))
        if index in self._back:
            self._stream.wait_event(self._back[index])
        copied = torch.cuda.Event()
        with torch.cuda.stream(self._stream):
            pinned.copy_(tensor, non_blocking=True)
            copied.record(self._stream)
        # The allocator must not give the gradient's memory away while the side stream still reads it.
        tensor.record_stream(self._stream)
        staged = Staged()
        self._copies.put((copied, pinned, send, staged))
        return pinned, staged

    def returned(self, index: int) -> None:
        """The copy back has been queued on the current stream: the pinned memory is free when it is through."""
        back = torch.cuda.Event()
        back.record()
        self._back[index] = back

    def close(self) -> None:
        self._copies.put(None)
        self._thread.join()

    def _submit_copied(self) -> None:
        while (entry := self._copies.get()) is not None:
            copied, pinned, send, staged = entry
            try:
                copied.synchronize()
                staged.sent.set_result(send(pinned))
            except BaseException as error:  # noqa: BLE001 - carried to the thread that waits for the gradient
                staged.sent.set_exception(error)


class Staged:
    """The handle of something that is sent as soon as it has been copied."""

    def __init__(self) -> None:
        self.sent: Future[TaskHandle[object]] = Future()

    def poll(self) -> bool:
        return self.sent.done() and self.sent.result().poll()

    @property
    def empty(self) -> bool:
        return self.sent.result().empty

    @property
    def without(self) -> list[int]:
        return self.sent.result().without

    def wait(self, timeout_s: float | None = None) -> object:
        return self.sent.result(timeout_s).wait(timeout_s)
