"""Elastic training in Horovod's interface: docs/elastic.md."""

from collections.abc import Callable
from typing import Concatenate

from legato.horovod.common.elastic import AnyState, ObjectState, Parameters, Result, State, run_fn
from legato.horovod.torch.basics import regroup
from legato.horovod.torch.elastic.state import TorchState
from legato.torch.sampler import ElasticSampler

__all__ = ["ElasticSampler", "ObjectState", "State", "TorchState", "run"]


def run(
    func: Callable[Concatenate[AnyState, Parameters], Result],
) -> Callable[Concatenate[AnyState, Parameters], Result]:
    """A decorator of a function whose first argument is a state: it is called again when ranks are lost or come.

    Nothing that ranks do together may come between `init()` and the function: ranks that join only do what comes in it.
    """
    return run_fn(func, regroup)
