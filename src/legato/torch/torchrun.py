"""torchrun: its command line and its agent."""

import logging
import os
from collections.abc import Sequence
from dataclasses import dataclass

from torch.distributed import DistNetworkError, DistStoreError
from torch.distributed.elastic.multiprocessing.api import SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.elastic.rendezvous.api import RendezvousTimeoutError
from torch.distributed.run import determine_local_world_size, get_args_parser, run

from legato.errors import DeadlineError, InputError


@dataclass(frozen=True, slots=True)
class Ended:
    """A rank that did not end well; a code below 0 is a signal."""

    rank: int
    returncode: int


def run_by(command: Sequence[str], arguments: Sequence[str]) -> list[str]:
    """The same command line, whose script is run by a module with arguments; after them come the script, or -m and a
    module."""
    parsed = get_args_parser().parse_args(list(arguments))
    if parsed.no_python:
        raise InputError(f"--no-python: {command[0]} runs Python scripts")
    position = len(arguments) - 1 - len(parsed.training_script_args)
    options, script = list(arguments[:position]), list(arguments[position:])
    # With -m among torchrun's options, what comes next is a module already.
    return [*options, *command, "-m", *script] if parsed.module else [*options, "-m", *command, *script]


def num_local_workers(arguments: Sequence[str]) -> int:
    """How many ranks a command line starts on this host."""
    return int(determine_local_world_size(get_args_parser().parse_args(list(arguments)).nproc_per_node))


def run_agent(arguments: Sequence[str], log_folder: str, gather_s: float) -> list[Ended]:
    """Run a command line by torchrun's agent: those that failed, in the order in which it noticed."""
    parsed = get_args_parser().parse_args(list(arguments))
    parsed.log_dir = parsed.log_dir or log_folder
    if not parsed.rdzv_conf:
        parsed.rdzv_conf = f"{'timeout' if parsed.rdzv_backend == 'static' else 'join_timeout'}={gather_s:.0f}"
    _hush()
    try:
        run(parsed)
    except SignalException as error:
        raise SystemExit(128 + error.sigval) from None
    except ChildFailedError as error:
        return [Ended(rank, failure.exitcode) for rank, failure in error.failures.items()]
    except (DistNetworkError, DistStoreError, RendezvousTimeoutError) as error:
        where = parsed.rdzv_endpoint or f"{parsed.master_addr}:{parsed.master_port}"
        if "EADDRINUSE" in str(error):
            port = where.rpartition(":")[2]
            raise InputError(f"port {port} of this host is in use; give another with --master-port") from None
        raise DeadlineError(
            f"{parsed.nnodes} hosts did not come together at {where} within {gather_s:g} s; is `legato run` running on "
            f"each of them, with its own --node-rank, and is that address host 0's?"
        ) from None
    return []


def _hush() -> None:
    """What the agent would say of failures is said by who calls it. LOGLEVEL brings its log back."""
    if "LOGLEVEL" not in os.environ:
        for name in list(logging.root.manager.loggerDict):
            if name.startswith("torch.distributed"):
                logging.getLogger(name).setLevel(logging.CRITICAL + 1)
