"""Staging: gradients of an accelerator pass through pinned memory of the host.

Note: streams. Each arrow is a wait; the side stream is one for each device.

    caller's stream   backward of layer i ─┐                                   ┌─ copy back ─┬─► cast, update
                                           ▼                                   ▲             ▼
    side stream                          copy to pinned ─┐ copied              │   the next copy to pinned memory
                                                         ▼                     │
    this thread                                       submits to the engine ───┘ the host waits for the sum

The device is never synchronised, so one gradient is copied while another is sent. What is copied stays alive in its
passage (buffers.py) until its sum is back, which is after the copy: the allocator cannot give its memory away before.
"""

import threading
from collections.abc import Callable
from concurrent.futures import Future
from queue import SimpleQueue

import torch

from legato.transports.handle import TaskHandle

Send = Callable[[torch.Tensor], TaskHandle[object]]


class Staging:
    """Owns the side streams, the pinned memory and the thread that waits for copies."""

    def __init__(self) -> None:
        self._streams: dict[torch.device, torch.cuda.Stream] = {}
        self._pinned: dict[int, torch.Tensor] = {}
        self._copies: SimpleQueue[tuple[torch.cuda.Event, torch.Tensor, Send, Staged] | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._submit_copied, name="legato-staging", daemon=True)
        self._thread.start()

    def send(self, index: int, tensor: torch.Tensor, send: Send) -> "Staged":
        """Copy a tensor to the host behind what computes it, then send it from there."""
        pinned = self._pinned.get(index)
        if pinned is None or pinned.shape != tensor.shape or pinned.dtype != tensor.dtype:
            pinned = torch.empty_like(tensor, device="cpu", pin_memory=True)
            self._pinned[index] = pinned
        stream = self._stream(tensor.device)
        stream.wait_stream(torch.cuda.current_stream(tensor.device))
        copied = torch.cuda.Event()
        with torch.cuda.stream(stream):
            pinned.copy_(tensor, non_blocking=True)
            copied.record(stream)
        staged = Staged()
        self._copies.put((copied, pinned, send, staged))
        return staged

    def bring_back(self, index: int, tensor: torch.Tensor) -> None:
        """Copy what has arrived into the tensor that was sent, on the current stream, whichever that is."""
        current = torch.cuda.current_stream(tensor.device)
        tensor.copy_(self._pinned[index], non_blocking=True)
        tensor.record_stream(current)
        self._stream(tensor.device).wait_stream(current)

    def close(self) -> None:
        self._copies.put(None)
        self._thread.join()

    def _stream(self, device: torch.device) -> torch.cuda.Stream:
        if device not in self._streams:
            self._streams[device] = torch.cuda.Stream(device)
        return self._streams[device]

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
