"""What is asked of an accelerator's driver."""

import logging

import torch

from legato._native import cuda_sleep_while_waiting, cuda_wait_for_word, cuda_write_word

_log = logging.getLogger(__name__)


def can_wait(device: torch.device) -> bool:
    """Whether streams of this device set words in pinned memory and wait for them."""
    word = torch.zeros(1, dtype=torch.int32, pin_memory=True)
    stream = torch.cuda.Stream(device)
    try:
        with torch.cuda.stream(stream):
            cuda_write_word(stream.cuda_stream, word.data_ptr(), 1)
            cuda_wait_for_word(stream.cuda_stream, word.data_ptr(), 1)
    except RuntimeError:
        return False
    stream.synchronize()
    return True


def sleep_while_waiting(device: torch.device) -> None:
    """Threads that wait for this device sleep from now on: one that spins takes a core from the engine's threads, and
    from the kernel's that carry their bytes. Such a wait ends some ten microseconds later."""
    try:
        with torch.cuda.device(device):
            cuda_sleep_while_waiting()
    except RuntimeError as error:
        _log.info("threads that wait for %s spin, as the driver has it: %s", device, error)
