"""A crew whose processes have torch."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch

import legato.torch as lg
from tests import crew
from tests.crew import leaving

PRELOAD = ("tests.torch.crew", "torch._dynamo", "torch.distributed.fsdp", "torch.distributed.tensor")


@contextmanager
def _torch() -> Iterator[None]:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    torch.set_default_dtype(torch.float32)
    try:
        with leaving(lg):
            yield
    finally:
        if torch.distributed.is_initialized():
            torch.distributed.destroy_process_group()


class Crew(crew.Crew):
    def __init__(self, size: int) -> None:
        super().__init__(_torch, size, PRELOAD)
