"""Asynchronous training: ranks that give and take changes of weights without waiting for each other's step.

What a rank does at the end of its step t, for each weight; the total is the average of all changes of all ranks so far:

    change = weight − seen                           what its optimizer did in this step
    wait for the answer to step t − 1                on its way since then: hidden behind a whole step
    seen = weight = start + total + change / ranks   the total holds its own changes up to t − 1
    send the change

So the work of others is seen one step late, and nothing is waited for that could have come. The servers hold back
the answer to whoever is too far ahead (native/engine/server/running_total.hpp). One who has finished step t has the
answer to t − 1, for which all ranks have added their step t − 1 − b; so a bound of b there keeps it b + 1 steps ahead.
"""

from collections.abc import Sequence

import torch

from legato.torch.compression import Compression
from legato.torch.sync.native import NativeSynchronizer
from legato.torch.sync.synchronizer import Slot
from legato.transports.native.group import NativeGroup


class Asynchronous:
    """Keeps the weights of one rank near those of the others, at most `staleness` steps (1 or more) ahead."""

    def __init__(self, group: NativeGroup, prefix: str, slots: Sequence[Slot], staleness: int) -> None:
        self._synchronizer = NativeSynchronizer(group, prefix, slots, Compression.none, staleness=staleness - 1)
        self._share = 1.0 / group.size
        self._slots = slots
        self._starts = [slot.weight().clone() for slot in slots]
        self._seen = [start.clone() for start in self._starts]
        self._is_under_way = False

    @torch.no_grad()
    def after_step(self) -> None:
        """This rank has taken a step."""
        for index, (slot, seen) in enumerate(zip(self._slots, self._seen, strict=True)):
            weight = slot.weight()
            change = weight - seen
            self._take(index)
            seen.add_(change, alpha=self._share)
            weight.copy_(seen)
            self._synchronizer.submit(index, change)
        self._is_under_way = True

    @torch.no_grad()
    def flush(self) -> None:
        """Take the answer that is under way."""
        for index, (slot, seen) in enumerate(zip(self._slots, self._seen, strict=True)):
            weight = slot.weight()
            change = weight - seen
            self._take(index)
            torch.add(seen, change, out=weight)
        self._is_under_way = False

    @torch.no_grad()
    def close(self) -> None:
        """Wait until all ranks have ended: then they have the same weights."""
        self.flush()
        self._synchronizer.end_totals()
        for index, (slot, seen) in enumerate(zip(self._slots, self._seen, strict=True)):
            self._synchronizer.submit(index, slot.weight() - seen)
        self._is_under_way = True
        for index, (slot, seen) in enumerate(zip(self._slots, self._seen, strict=True)):
            self._take(index)
            slot.weight().copy_(seen)
        self._synchronizer.close()

    def _take(self, index: int) -> None:
        """Where an answer is under way, see what it brings."""
        if self._is_under_way:
            self._synchronizer.wait(index)
            torch.add(self._starts[index], self._synchronizer.result(index), out=self._seen[index])
