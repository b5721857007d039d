"""The golden model of an encoded push_pull: what every rank gets, whoever serves which part."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from tests.golden_codecs import Context, Floats, Golden, place_of


@dataclass(kw_only=True)
class GoldenSum:
    """One tensor from step to step."""

    push: Golden
    pull: Golden
    num_workers: int
    part_items: int
    """Items of each part but the last."""
    tensor: int = 0
    feeds_back: bool = False
    server_feeds_back: bool = False
    momentum: float = 0.0
    average: bool = False
    _residuals: dict[tuple[int, int], Floats] = field(default_factory=dict)
    _momenta: dict[tuple[int, int], Floats] = field(default_factory=dict)

    def step(self, step: int, sources: Sequence[Floats | None]) -> Floats:
        """The result of a step; None is a worker that has nothing to add."""
        size = next(len(source) for source in sources if source is not None)
        bounds = [(start, min(start + self.part_items, size)) for start in range(0, size, self.part_items)]
        return np.concatenate([self._part(step, sources, *bound) for bound in bounds])

    def _part(self, step: int, sources: Sequence[Floats | None], start: int, end: int) -> Floats:
        place = place_of(self.tensor, step, 4 * start)
        total: Floats | None = None
        for rank, source in enumerate(sources):
            if source is None:
                continue
            items = self._accelerated(rank, source[start:end], start)
            decoded = self._sent(self.push, rank, items, start, Context(place=place, contributor=rank), self.feeds_back)
            total = decoded if total is None else total + decoded
        assert total is not None
        if self.average:
            total = total / np.float32(self.num_workers)
        server = Context(place=place, contributor=self.num_workers)
        return self._sent(self.pull, self.num_workers, total, start, server, self.server_feeds_back)

    def _accelerated(self, rank: int, items: Floats, start: int) -> Floats:
        if not self.momentum:
            return items
        mu = np.float32(self.momentum)
        momentum = mu * self._momenta.get((rank, start), np.zeros_like(items)) + items
        self._momenta[rank, start] = _finite(momentum)
        return items + mu * self._momenta[rank, start]

    def _sent(self, codec: Golden, who: int, items: Floats, start: int, context: Context, feeds_back: bool) -> Floats:
        """What arrives of items that are sent, with what was lost before."""
        if feeds_back:
            items = self._residuals.get((who, start), np.zeros_like(items)) + items
        decoded = codec.decode(codec.encode(items, context), len(items), context)
        if feeds_back:
            self._residuals[who, start] = _finite(items - decoded)
        return decoded


def _finite(items: Floats) -> Floats:
    finite: npt.NDArray[np.bool_] = np.isfinite(items)
    return np.where(finite, items, np.float32(0))
