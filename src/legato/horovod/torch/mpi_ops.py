"""Where Horovod keeps its functions on tensors: some scripts import them from here."""

from legato.horovod.torch import *  # noqa: F403 - the same names
