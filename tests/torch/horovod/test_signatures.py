"""Every name of Horovod's, with its arguments in their order and their defaults."""

import inspect
from typing import Any

import pytest

import legato.horovod.common.elastic
import legato.horovod.common.exceptions
import legato.horovod.common.process_sets
import legato.horovod.torch as hvd
import legato.horovod.torch.compression
import legato.horovod.torch.elastic.sampler
import legato.horovod.torch.elastic.state
import legato.horovod.torch.mpi_ops
from legato.errors import DeadlineError, JobError, MismatchError, NotInitializedError, PeerLostError
from legato.torch.compat.optimizer import Distributed
from tests.torch.horovod.interface import CONSTANTS, ELASTIC, ELASTIC_METHODS, FUNCTIONS, METHODS, MORE

DEFAULTS = {
    hvd.Compression.none: "Compression.none",
    hvd.Average: "Average",
    hvd.global_process_set: "global_process_set",
}


def arguments_of(function: Any) -> list[str]:
    """`name` or `name=default`, of those that can be given by place."""
    found = []
    for each in inspect.signature(function).parameters.values():
        if each.kind is each.POSITIONAL_OR_KEYWORD and each.name != "self":
            required = each.default is each.empty
            found.append(each.name if required else f"{each.name}={DEFAULTS.get(each.default, repr(each.default))}")
    return found


def fits(ours: list[str], theirs: list[str]) -> bool:
    """Whether every call that Horovod takes means the same here; ours may have more defaults, and more arguments."""
    pairs = zip(ours, theirs, strict=False)
    return len(ours) >= len(theirs) and all(
        mine == other or ("=" not in other and mine.startswith(f"{other}=")) for mine, other in pairs
    )


@pytest.mark.parametrize("name", FUNCTIONS)
def test_arguments(name: str) -> None:
    ours, theirs = arguments_of(getattr(hvd, name)), [each for each in FUNCTIONS[name].split(", ") if each]
    assert fits(ours, theirs), f"{name}: Horovod has {theirs}, legato {ours}"
    assert all("=" in more for more in ours[len(theirs) :]), "what Horovod does not have is not required"


@pytest.mark.parametrize(("kind", "name"), [(kind, name) for kind, names in METHODS.items() for name in names])
def test_methods(kind: str, name: str) -> None:
    owner = Distributed if kind == "DistributedOptimizer" else getattr(hvd, kind)
    theirs = [each for each in METHODS[kind][name].split(", ") if each]
    assert fits(arguments_of(getattr(owner, name)), theirs)


@pytest.mark.parametrize("name", ELASTIC)
def test_elastic(name: str) -> None:
    assert fits(arguments_of(getattr(hvd.elastic, name)), ELASTIC[name].split(", "))
    for method, arguments in ELASTIC_METHODS.get(name, {}).items():
        theirs = [each for each in arguments.split(", ") if each]
        assert fits(arguments_of(getattr(getattr(hvd.elastic, name), method)), theirs)


def test_nothing_is_missing() -> None:
    expected = {*FUNCTIONS, *CONSTANTS} | MORE.keys()
    assert set(hvd.__all__) == expected
    assert not [name for name in expected if not hasattr(hvd, name)]


def test_exceptions_are_what_horovods_users_catch() -> None:
    exceptions = legato.horovod.common.exceptions
    assert hvd.HorovodInternalError is exceptions.HorovodInternalError
    for kind in (JobError, MismatchError, DeadlineError, PeerLostError):
        assert issubclass(kind, hvd.HorovodInternalError)
        assert issubclass(kind, RuntimeError)
    assert issubclass(NotInitializedError, ValueError)
    assert issubclass(exceptions.HostsUpdatedInterrupt, RuntimeError)
    assert exceptions.HostsUpdatedInterrupt(True).skip_sync
    with pytest.raises(RuntimeError):
        raise hvd.HorovodInternalError


def test_modules_that_scripts_import_from() -> None:
    assert legato.horovod.common.process_sets.global_process_set is hvd.global_process_set
    assert legato.horovod.torch.compression.Compression is hvd.Compression
    assert legato.horovod.common.elastic.ObjectState is hvd.elastic.ObjectState
    assert legato.horovod.common.elastic.State is hvd.elastic.State
    assert legato.horovod.torch.elastic.sampler.ElasticSampler is hvd.elastic.ElasticSampler
    assert legato.horovod.torch.elastic.state.TorchState is hvd.elastic.TorchState
    for name in hvd.__all__:
        assert getattr(legato.horovod.torch.mpi_ops, name) is getattr(hvd, name)


def test_how_it_was_built() -> None:
    said = {name: getattr(hvd, name)() for name in FUNCTIONS if name.endswith(("_built", "_enabled"))}
    assert not any(said[name] for name in ("mpi_built", "mpi_enabled", "ddl_built", "ccl_built", "rocm_built"))
    assert said["gloo_built"]
    assert said["gloo_enabled"]
    assert said["nccl_built"] == 0
    assert type(said["cuda_built"]) is bool
    with pytest.raises(ValueError, match="no MPI"):
        hvd.mpi_threads_supported()
