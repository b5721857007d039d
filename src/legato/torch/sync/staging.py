"""Staging: gradients of an accelerator pass through pinned memory of the host.

Note: streams. Each arrow is a wait; the side stream is one for each device.

    caller's stream   backward of layer i ─┐                                   ┌─ copy back ─┬─► cast, update
                                           ▼                                   ▲             ▼
    side stream                          copy to pinned ─┐ copied              │   the next copy to pinned memory
                                                         ▼                     │
    this thread                            submits a bucket to the engine ─────┘ the host waits for the sum

The device is never synchronised, so one gradient is copied while another is sent. What is copied stays alive in its
passage (buffers.py) until its sum is back, which is after the copy: the allocator cannot give its memory away before.
"""

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from queue import SimpleQueue
from typing import Any

import torch

from legato.transports.native.handle import TaskHandle

Send = Callable[[Sequence[torch.Tensor]], Sequence[TaskHandle[Any]]]


class Staging:
    """Owns the side streams, the pinned memory and the thread that waits for copies."""

    def __init__(self) -> None:
        self._streams: dict[torch.device, torch.cuda.Stream] = {}
        self._pinned: dict[int, torch.Tensor] = {}
        self._copies: SimpleQueue[tuple[list[torch.cuda.Event], list[int], Send, list[Staged]] | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._submit_copied, name="legato-staging", daemon=True)
        self._thread.start()

    def copy(self, index: int, tensor: torch.Tensor) -> None:
        """Copy a tensor to the host behind what computes it."""
        pinned = self._pinned.get(index)
        if pinned is None or pinned.shape != tensor.shape or pinned.dtype != tensor.dtype:
            pinned = torch.empty_like(tensor, device="cpu", pin_memory=True)
            self._pinned[index] = pinned
        stream = self._stream(tensor.device)
        stream.wait_stream(torch.cuda.current_stream(tensor.device))
        with torch.cuda.stream(stream):
            pinned.copy_(tensor, non_blocking=True)

    def send(self, indices: Sequence[int], send: Send) -> "list[Staged]":
        """Send what has been copied, as soon as all of it has."""
        copied = [stream.record_event() for stream in self._streams.values()]
        staged = [Staged() for _ in indices]
        self._copies.put((copied, list(indices), send, staged))
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
            events, indices, send, staged = entry
            try:
                for copied in events:
                    copied.synchronize()
                for each, handle in zip(staged, send([self._pinned[index] for index in indices]), strict=True):
                    each.sent.set_result(handle)
            except BaseException as error:  # noqa: BLE001 - carried to the thread that waits for the gradients
                for each in staged:
                    each.sent.set_exception(error)


class Staged:
    """The handle of something that is sent as soon as it has been copied."""

    def __init__(self) -> None:
        self.sent: Future[TaskHandle[Any]] = Future()

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
