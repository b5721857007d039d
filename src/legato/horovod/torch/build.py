"""What scripts ask Horovod about the way it was built.

Legato's engine is always there and needs none of these libraries. It does what Gloo does for Horovod, on processors and
TCP, so scripts that look for one way to work find that one.
"""

import torch

from legato.errors import InputError


def mpi_built() -> bool:
    return False


def mpi_enabled() -> bool:
    return False


def mpi_threads_supported() -> bool:
    raise InputError("there is no MPI here: ask mpi_enabled() first")


def gloo_built() -> bool:
    return True


def gloo_enabled() -> bool:
    return True


def nccl_built() -> int:
    """The version of NCCL's that sums; 0 is none."""
    return 0


def ddl_built() -> bool:
    return False


def ccl_built() -> bool:
    return False


def cuda_built() -> bool:
    """Whether tensors on NVIDIA's accelerators are taken: wherever torch has them."""
    return torch.version.cuda is not None


def rocm_built() -> bool:
    """The same for AMD's."""
    return torch.version.hip is not None
