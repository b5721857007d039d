"""Pieces: gradients of an accelerator pass through pinned memory of the host, and no thread of the host waits for them.

Note: streams. Each arrow is a wait, and its letter is beside the line that makes it. Every piece of a gradient, of
`PIECE_BYTES`, goes this way for itself, so that one is sent while the next is copied, in either direction:

    caller's stream   backward of layer i ─┐ a                                                 ┌─ f ─► cast, update
                                           ▼                                                   │
    stream out                           copy to pinned memory ─┐ b          ▲ d               │
                                                                ▼            │                 │
    stream of signals                                host function: ready    │                 │
                                                                │            │                 │
    engine, in C++                                              └─► sends, receives, sets a word
                                                                                         │ c   │
    stream home                                                                          └─► copy home

`d` is for the next step: what is in pinned memory has to be copied home before the next gradient is copied there. The
thread that trains only queues all of this and goes on; it meets the engine again when it has a gradient for a tensor
whose last average has not come yet (native.py), so it is a step ahead at most.

What is encoded on the device (device_codecs.py) is made on the caller's stream before `a`, and its average is decoded
there after `f`.

Two more, which no data needs. A host function has a stream of its own, or copies would pause while it runs. And the
copy home waits for the copy to the host, although its word says more: CUDA may run streams one behind the other as long
as it sees no dependency against the order in which work was given to it, and it cannot see words (`e`). All that a
word needs on this rank is queued before the wait for it, so whichever streams share a queue, nothing waits for ever.

Memory. What is copied stays alive in its passage until its average is asked for, and the caller's stream is then behind
the copy home, which is behind the copy to the host: memory that is given back on it is free for whatever comes next.
"""

from collections.abc import Sequence

import torch

from legato._native import Collector, cuda_wait_for_word

PIECE_BYTES = 2 << 20
"""From 1 to 4 MB a copy loses nothing (49 to 53 GB/s on an H200; 33 in pieces of 256 KB)."""


def _new_stream(device: torch.device) -> torch.cuda.Stream:
    # torch deals its streams out in turn, the same ones again and again: few others ask for those of high priority.
    return torch.cuda.Stream(device, priority=-1)


_words: list[torch.Tensor] = []
"""Never given back, a few KB for each: after an error a stream may come to its wait when nobody else is left, and the
word has to be what the engine has set it to."""


class PieceStaging:
    """Owns the streams, the pinned memory and the words."""

    def __init__(self, collector: Collector, num_bytes: Sequence[int]) -> None:
        """At most `num_bytes` travel of each tensor, by its place in the collector."""
        self._collector = collector
        counts = [-(-each // PIECE_BYTES) for each in num_bytes]
        words = torch.zeros(sum(counts), dtype=torch.int32, pin_memory=True)
        _words.append(words)
        address = words.data_ptr()
        self._addresses: list[range] = []
        """Of the words of each place."""
        for place, count in enumerate(counts):
            self._addresses.append(range(address, address + 4 * count, 4))
            if count:
                collector.set_pieces(place, PIECE_BYTES, address)
            address += 4 * count
        self._pinned: list[tuple[torch.Tensor, ...]] = [()] * len(counts)
        self._pinned_bytes = [0] * len(counts)
        self._copied = [torch.cuda.Event() for _ in counts]
        self._home = [torch.cuda.Event() for _ in counts]
        self._streams: dict[torch.device, tuple[torch.cuda.Stream, torch.cuda.Stream, torch.cuda.Stream]] = {}

    def address(self, place: int, tensor: torch.Tensor) -> int:
        """Of the pinned memory through which a tensor like this one passes."""
        if self._pinned_bytes[place] != tensor.nbytes:  # the first time, and where a plan has cut what is encoded anew
            self._pinned_bytes[place] = tensor.nbytes
            whole = torch.empty_like(_flat(tensor), device="cpu", pin_memory=True)
            self._pinned[place] = whole.split(PIECE_BYTES // tensor.element_size())
        return self._pinned[place][0].data_ptr()

    def send(self, place: int, tensor: torch.Tensor, *, absent: bool) -> None:
        """Copy what the collector has been given to the host, behind what computes it on the current stream, and say
        so piece by piece. A rank that is absent has nothing to copy, but its memory may still be read."""
        if not tensor.numel():
            return
        out, signals, _ = self._streams_of(tensor.device)
        copied = self._copied[place]
        out.wait_stream(torch.cuda.current_stream(tensor.device))  # a
        out.wait_event(self._home[place])  # d
        pieces = self._pinned[place]
        num_ready = 0
        with torch.cuda.stream(out):
            for source, pinned in zip(_flat(tensor).split(pieces[0].numel()), pieces, strict=True):
                if not absent:
                    pinned.copy_(source, non_blocking=True)
                num_ready += pinned.nbytes
                copied.record(out)
                signals.wait_event(copied)  # b
                self._collector.ready_after(signals.cuda_stream, place, num_ready)

    def bring_home(self, place: int, tensor: torch.Tensor, mark: int) -> None:
        """Copy the average into the tensor that was sent as it arrives; whatever the current stream does next comes
        after that. `mark` is that of its step, and the engine has its task: so each word will be set, come what may."""
        if not tensor.numel():
            return
        _, _, home = self._streams_of(tensor.device)
        current = torch.cuda.current_stream(tensor.device)
        pieces = self._pinned[place]
        home.wait_event(self._copied[place])  # e
        with torch.cuda.stream(home):
            targets = _flat(tensor).split(pieces[0].numel())
            words = self._addresses[place][: len(pieces)]
            for word, target, pinned in zip(words, targets, pieces, strict=True):
                cuda_wait_for_word(home.cuda_stream, word, mark)  # c
                target.copy_(pinned, non_blocking=True)
            self._home[place].record(home)
        current.wait_event(self._home[place])  # f
        tensor.record_stream(current)

    def close(self) -> None:
        """Nothing is under way: every word that a stream waits for has been set."""
        for streams in self._streams.values():
            for stream in streams:
                stream.synchronize()

    def _streams_of(self, device: torch.device) -> tuple[torch.cuda.Stream, torch.cuda.Stream, torch.cuda.Stream]:
        """Out, of signals, and home."""
        if device not in self._streams:
            self._streams[device] = (_new_stream(device), _new_stream(device), _new_stream(device))
        return self._streams[device]


def _flat(tensor: torch.Tensor) -> torch.Tensor:
    """Its elements as they lie in memory, which they fill without gaps."""
    return tensor.as_strided((tensor.numel(),), (1,))
