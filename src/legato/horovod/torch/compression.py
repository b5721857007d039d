"""Where Horovod keeps its compression: some scripts import it from here."""

from legato.torch.compression import Compression

__all__ = ["Compression"]
