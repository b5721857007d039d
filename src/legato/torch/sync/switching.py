"""Switching: one schedule, several transports; each gradient is waited for where it went."""

from collections.abc import Mapping, Sequence

import torch

from legato.core import Plan
from legato.exchange.measure import Measure
from legato.torch.sync.synchronizer import Synchronizer


class Switching:
    """A synchronizer that hands gradients to the one that is chosen. Choices change between two steps, on all ranks at
    the same one: every gradient of a step has then been submitted, everywhere to the same synchronizer."""

    def __init__(self, synchronizers: Mapping[str, Synchronizer], first: str, num_slots: int) -> None:
        """By transport; what is submitted `first` goes there."""
        self._synchronizers = dict(synchronizers)
        self._chosen = self._synchronizers[first]
        self._carriers = [self._chosen] * num_slots

    def over(self, transport: str) -> Synchronizer:
        return self._synchronizers[transport]

    def choose(self, transport: str) -> None:
        """From the next submission on."""
        self._chosen = self._synchronizers[transport]

    def close_others(self) -> bool:
        """Close what is not chosen, unless gradients are still there; whether only the chosen one is left."""
        for transport, each in list(self._synchronizers.items()):
            if each is not self._chosen and each not in self._carriers:
                del self._synchronizers[transport]
                each.close()
        return self.decided is not None

    @property
    def decided(self) -> Synchronizer | None:
        """The only one left: from then on nothing needs to pass through here."""
        return self._chosen if len(self._synchronizers) == 1 else None

    def submit(self, index: int, gradient: torch.Tensor | None) -> bool:
        self._carriers[index] = self._chosen
        return self._chosen.submit(index, gradient)

    def poll(self, index: int) -> bool:
        return self._carriers[index].poll(index)

    def wait(self, index: int) -> bool:
        return self._carriers[index].wait(index)

    def arrives_in_place(self, index: int) -> bool:
        return self._carriers[index].arrives_in_place(index)

    def wait_first(self, index: int, num_items: int) -> int:
        return self._carriers[index].wait_first(index, num_items)

    def result(self, index: int) -> torch.Tensor:
        return self._carriers[index].result(index)

    def set_measured(self) -> None:
        for each in self._synchronizers.values():
            each.set_measured()

    def is_measured(self, index: int) -> bool:
        return self._carriers[index].is_measured(index)

    def measure(self, index: int) -> Measure:
        return self._carriers[index].measure(index)

    def measure_here(self, index: int, average: torch.Tensor) -> Measure:
        return self._carriers[index].measure_here(index, average)

    def confirm(self) -> None:
        for each in self._synchronizers.values():
            each.confirm()

    def set_order(self, order: Sequence[int]) -> None:
        for each in self._synchronizers.values():
            each.set_order(order)

    @property
    def plan(self) -> Plan:
        return self._chosen.plan

    def close(self) -> None:
        for each in self._synchronizers.values():
            each.close()
