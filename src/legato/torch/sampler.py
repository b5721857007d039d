"""A sampler for jobs whose ranks come and go, in Horovod's interface.

The samples of an epoch lie in one order that all ranks know. Ranks take turns in it, so what they have processed
together is always a beginning of it, and a number says what is left:

    0 1 2 3 4 5 │ 6 7 8 9 …     three ranks have processed two samples each; two ranks go on:
    a b c a b c │ a b a b …

What a rank took along when it was lost is put at the end.
"""

import random
from collections.abc import Collection, Iterator, Sized
from typing import Any

from torch.utils.data import Sampler

from legato.torch import api


class ElasticSampler(Sampler[int]):
    """Spreads a dataset over the ranks, as torch's `DistributedSampler` does, and what is left of the epoch over the
    ranks that are there after a change.

    Call `record_batch` after each step and `set_epoch` at the end of each epoch. After a change, `reset` (which
    `hvd.elastic.TorchState` does by itself) and iterate again: that gives what is left.
    """

    def __init__(self, dataset: Sized, shuffle: bool = True, seed: int = 0) -> None:
        self.dataset = dataset
        self.shuffle = shuffle
        self.seed = seed
        self.epoch = 0
        self.processed_num = 0
        """How many of the epoch's samples all ranks together have processed."""
        self._returned: list[int] = []
        """Samples of this epoch that ranks took along when they were lost."""
        self.reset()

    def set_epoch(self, epoch: int) -> None:
        """Begin an epoch. Call it at the end of the one before: at the beginning it would forget what was processed."""
        self.epoch = epoch
        self.processed_num = 0
        self._returned = []
        self.reset()

    def record_batch(self, batch_idx: int, batch_size: int, lost: Collection[int] = ()) -> None:
        """A batch of this size has been processed on every rank, but for those that were lost on the way.

        `lost` are ranks before the change. What they had of this batch comes again at the end of the epoch.
        """
        del batch_idx
        begin = self.processed_num - self._begin
        batch = self.remaining_indices[begin : begin + batch_size * self.num_replicas]
        places = range(begin, begin + len(batch))
        self._returned += [
            index for place, index in zip(places, batch, strict=True) if place % self.num_replicas in lost
        ]
        self.processed_num += len(batch)

    def state_dict(self) -> dict[str, Any]:
        return {"epoch": self.epoch, "processed_num": self.processed_num, "returned": list(self._returned)}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on where another rank was, or this one some time ago."""
        self.epoch = state_dict["epoch"]
        self.processed_num = state_dict["processed_num"]
        self._returned = list(state_dict.get("returned", ()))
        self.reset()

    def reset(self) -> None:
        """Spread what is left of the epoch over the ranks that there are now."""
        self.num_replicas = api.size()
        self.rank = api.rank()
        order = list(range(len(self.dataset)))
        if self.shuffle:
            random.Random(self.seed + self.epoch).shuffle(order)
        self._begin = self.processed_num
        self.remaining_indices = [*order, *self._returned][self._begin :]
        self.num_samples = -(-len(self.remaining_indices) // self.num_replicas)
        self.total_size = self.num_samples * self.num_replicas

    def __iter__(self) -> Iterator[int]:
        """This rank's share; the first samples come again at the end where ranks would have different numbers."""
        left = self.remaining_indices
        return iter([left[place % len(left)] for place in range(self.rank, self.total_size, self.num_replicas)])

    def __len__(self) -> int:
        return self.num_samples
