"""Where Horovod keeps its sampler: some scripts import it from here."""

from legato.torch.sampler import ElasticSampler

__all__ = ["ElasticSampler"]
