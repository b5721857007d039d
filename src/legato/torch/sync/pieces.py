"""Pieces: gradients of an accelerator pass through pinned memory of the host, and no thread of the host waits for them.

Note: streams. Each arrow is a wait, and its letter is beside the line that makes it. Every piece of a gradient, of
`PIECE_BYTES`, goes this way for itself, so that one is sent while the next is copied, in either direction:

    caller's stream   backward of layer i ─┐ a                                                 ┌─ f ─► cast, update
                                           ▼                                                   │
    stream out                   copy to pinned memory, set a word           ▲ d               │
                                                          │ b                │                 │
    thread of the watch                                   └─► ready          │                 │
                                                                │            │                 │
    engine, in C++                                              └─► sends, receives, sets a word
                                                                                         │ c   │
    stream home                                                                          └─► copy home

`d` is for the next step: what is in pinned memory has to be copied home before the next gradient is copied there. The
thread that trains only queues all of this and goes on; it meets the engine again when it has a gradient for a tensor
whose last average has not come yet (native.py), so it is a step ahead at most.

What is encoded on the device (device_codecs.py) is made on the caller's stream before `a`, and its average is decoded
there after `f`.

One more, which no data needs: the copy home waits for the copy to the host, although its word says more. CUDA may run
streams one behind the other as long as it sees no dependency against the order in which work was given to it, and it
cannot see words (`e`). All that a word needs on this rank is queued before the wait for it, so whichever streams share
a queue, nothing waits for ever. Each device has a watch of its own, or one would wait for the other's words.

Memory. What is copied stays alive in its passage until its average is asked for, and the caller's stream is then behind
the copy home, which is behind the copy to the host: memory that is given back on it is free for whatever comes next.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate

import torch

from legato._native import Collector, WordWatch, cuda_wait_for_word, cuda_write_word

PIECE_BYTES = 2 << 20
"""From 1 to 4 MB a copy loses nothing (49 to 53 GB/s on an H200; 33 in pieces of 256 KB)."""


@dataclass(frozen=True)
class _Way:
    """Of one device."""

    out: torch.cuda.Stream
    home: torch.cuda.Stream
    watch: WordWatch = field(default_factory=WordWatch)


def _new_way(device: torch.device) -> _Way:
    # torch deals its streams out in turn, the same ones again and again: few others ask for those of high priority.
    return _Way(torch.cuda.Stream(device, priority=-1), torch.cuda.Stream(device, priority=-1))


_words: list[torch.Tensor] = []
"""Never given back, a few KB for each: after an error a stream may come to its wait when nobody else is left, and the
word has to be what the engine has set it to."""


class PieceStaging:
    """Owns the streams, the pinned memory and the words."""

    def __init__(self, collector: Collector, num_bytes: Sequence[int]) -> None:
        """At most `num_bytes` travel of each tensor, by its place in the collector."""
        self._collector = collector
        counts = [-(-each // PIECE_BYTES) for each in num_bytes]
        words = torch.zeros(2, sum(counts), dtype=torch.int32, pin_memory=True)
        _words.append(words)
        self._copied_words, self._home_words = (_ranges(each.data_ptr(), counts) for each in words)
        """Addresses of the words of each place: those that the stream out sets, and those that the engine does."""
        for place, addresses in enumerate(self._home_words):
            if addresses:
                collector.set_pieces(place, PIECE_BYTES, addresses.start)
        self._pinned: list[tuple[torch.Tensor, ...]] = [()] * len(counts)
        self._pinned_bytes = [0] * len(counts)
        self._copied = [torch.cuda.Event() for _ in counts]
        self._home = [torch.cuda.Event() for _ in counts]
        self._ways: dict[torch.device, _Way] = {}

    def address(self, place: int, tensor: torch.Tensor) -> int:
        """Of the pinned memory through which a tensor like this one passes."""
        if self._pinned_bytes[place] != tensor.nbytes:  # the first time, and where a plan has cut what is encoded anew
            self._pinned_bytes[place] = tensor.nbytes
            whole = torch.empty_like(_flat(tensor), device="cpu", pin_memory=True)
            self._pinned[place] = whole.split(PIECE_BYTES // tensor.element_size())
        return self._pinned[place][0].data_ptr()

    def send(self, place: int, tensor: torch.Tensor, mark: int, *, absent: bool) -> None:
        """Copy what the collector has been given to the host, behind what computes it on the current stream, and say
        so piece by piece. A rank that is absent has nothing to copy, but its memory may still be read. `mark` is that
        of its step."""
        if not tensor.numel():
            return
        way = self._way_of(tensor.device)
        out, stream = way.out, way.out.cuda_stream
        out.wait_stream(torch.cuda.current_stream(tensor.device))  # a
        out.wait_event(self._home[place])  # d
        pieces = self._pinned[place]
        sources = _flat(tensor).split(pieces[0].numel())
        words = self._copied_words[place][: len(pieces)]
        num_ready = 0
        with torch.cuda.stream(out):
            for word, source, pinned in zip(words, sources, pieces, strict=True):
                if not absent:
                    pinned.copy_(source, non_blocking=True)
                num_ready += pinned.nbytes
                cuda_write_word(stream, word, mark)
                self._collector.ready_when(way.watch, word, mark, place, num_ready)  # b
            self._copied[place].record(out)

    def bring_home(self, place: int, tensor: torch.Tensor, mark: int) -> None:
        """Copy the average into the tensor that was sent as it arrives; whatever the current stream does next comes
        after that. `mark` is that of its step, and the engine has its task: so each word will be set, come what may."""
        if not tensor.numel():
            return
        home = self._way_of(tensor.device).home
        current = torch.cuda.current_stream(tensor.device)
        pieces = self._pinned[place]
        home.wait_event(self._copied[place])  # e
        with torch.cuda.stream(home):
            targets = _flat(tensor).split(pieces[0].numel())
            words = self._home_words[place][: len(pieces)]
            for word, target, pinned in zip(words, targets, pieces, strict=True):
                cuda_wait_for_word(home.cuda_stream, word, mark)  # c
                target.copy_(pinned, non_blocking=True)
            self._home[place].record(home)
        current.wait_event(self._home[place])  # f
        tensor.record_stream(current)

    def close(self) -> None:
        """Nothing is under way: every word that a stream waits for has been set."""
        for way in self._ways.values():
            way.out.synchronize()
            way.home.synchronize()
            way.watch.stop()

    def _way_of(self, device: torch.device) -> _Way:
        if device not in self._ways:
            self._ways[device] = _new_way(device)
        return self._ways[device]


def _ranges(address: int, counts: Sequence[int]) -> list[range]:
    """So many words of four bytes, one behind the other."""
    ends = [address + 4 * end for end in accumulate(counts)]
    return [range(end - 4 * count, end, 4) for end, count in zip(ends, counts, strict=True)]


def _flat(tensor: torch.Tensor) -> torch.Tensor:
    """Its elements as they lie in memory, which they fill without gaps."""
    return tensor.as_strided((tensor.numel(),), (1,))
