"""A crew whose processes have MXNet."""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager

from tests.crew import Crew, leaving


@contextmanager
def _mxnet() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # MXNet is older than the numpy and scipy that it runs on
        import mxnet as mx

        import legato.mxnet as bps

        mx.random.seed(0)
        with leaving(bps):
            yield


def mxnet_crew() -> Crew:
    return Crew(_mxnet)
