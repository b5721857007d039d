"""Staging: gradients of an accelerator pass through pinned memory of the host.

Note: streams. Each arrow is a wait; the side stream is one for each device.

    caller's stream   backward of layer i ─┐                                   ┌─ copy back ─┬─► cast, update
                                           ▼                                   ▲             ▼
    side stream                          copy to pinned ─┐ copied              │   the next copy to pinned memory
                                                         ▼                     │
    this thread                            adds it to the exchange ────────────┘ the host waits for the sum

The device is never synchronised, so one gradient is copied while another is sent. What is copied stays alive in its
passage (native.py) until its sum is back, which is after the copy: the allocator cannot give its memory away before.
"""

import threading
from collections.abc import Callable
from concurrent.futures import Future
from queue import SimpleQueue

import torch

Send = Callable[[torch.Tensor], None]
"""Sends what lies in pinned memory."""


class Staging:
    """Owns the side streams, the pinned memory and the thread that waits for copies."""

    def __init__(self) -> None:
        self._streams: dict[torch.device, torch.cuda.Stream] = {}
        self._pinned: dict[int, torch.Tensor] = {}
        self._copies: SimpleQueue[tuple[torch.cuda.Event, torch.Tensor, Send, Future[None]] | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._send_copied, name="legato-staging", daemon=True)
        self._thread.start()

    def send(self, index: int, tensor: torch.Tensor, send: Send) -> "Future[None]":
        """Copy a tensor to the host behind what computes it on the current stream, and send it from there."""
        pinned = self._pinned.get(index)
        if pinned is None or pinned.shape != tensor.shape or pinned.dtype != tensor.dtype:
            pinned = torch.empty_like(tensor, device="cpu", pin_memory=True)
            self._pinned[index] = pinned
        stream = self._stream(tensor.device)
        stream.wait_stream(torch.cuda.current_stream(tensor.device))
        with torch.cuda.stream(stream):
            pinned.copy_(tensor, non_blocking=True)
        sent: Future[None] = Future()
        self._copies.put((stream.record_event(), pinned, send, sent))
        return sent

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

    def _send_copied(self) -> None:
        while (entry := self._copies.get()) is not None:
            copied, pinned, send, sent = entry
            try:
                copied.synchronize()
                send(pinned)
                sent.set_result(None)
            except BaseException as error:  # noqa: BLE001 - carried to the thread that waits for the gradient
                sent.set_exception(error)
