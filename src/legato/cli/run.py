"""`legato run`: starts a script on the ranks of a job by torchrun's agent, and servers beside them; or elastic ones."""

import os
from dataclasses import replace
from enum import StrEnum
from pathlib import PurePath
from typing import Annotated

import typer

from legato.cli.server import server as serve
from legato.errors import InputError
from legato.launch.byteps import Machine, machine_of
from legato.launch.elastic import launch_elastic
from legato.launch.host import Part, launch_part
from legato.launch.hosts import launch_hosts, parse_hosts
from legato.launch.restarts import Elastic
from legato.launch.signals import ended_by_signals


class Predecessor(StrEnum):
    """Whose modules a script imports."""

    HOROVOD = "horovod"
    BYTEPS = "byteps"
    BYTESCHEDULER = "bytescheduler"


def run(
    context: typer.Context,
    written_for: Annotated[
        Predecessor | None, typer.Option("--as", help="Run a script that was written for this one, as it is.")
    ] = None,
    servers: Annotated[
        int | None, typer.Option(min=0, help="Servers to start beside rank 0. Default: none; LEGATO_SERVERS counts.")
    ] = None,
    nproc_per_node: Annotated[
        str | None, typer.Option("--nproc-per-node", "--nproc_per_node", help="Ranks on this host. Default: 1.")
    ] = None,
    nnodes: Annotated[str | None, typer.Option(help="Hosts; run this command on each of them. Default: 1.")] = None,
    node_rank: Annotated[int, typer.Option("--node-rank", "--node_rank", min=0, help="Which of them this is.")] = 0,
    master_addr: Annotated[
        str, typer.Option("--master-addr", "--master_addr", help="The address of host 0.")
    ] = "127.0.0.1",
    master_port: Annotated[
        int | None, typer.Option("--master-port", "--master_port", min=1, max=65535, help="Its port for torchrun.")
    ] = None,
    hosts: Annotated[
        str | None, typer.Option("--hosts", "-H", help="Start the job on these hosts from here: a:4,b:4.")
    ] = None,
    num_ranks: Annotated[
        int | None, typer.Option("-np", "--num-proc", min=1, help="Ranks on all hosts, as horovodrun has it.")
    ] = None,
    remote_shell: Annotated[str, typer.Option(help="What starts a command on a host.")] = "ssh -o BatchMode=yes",
    min_workers: Annotated[
        int | None, typer.Option("--min", "--min-np", help="An elastic job: go on with as few ranks, on this host.")
    ] = None,
    max_workers: Annotated[
        int | None, typer.Option("--max", "--max-np", help="Ranks of an elastic job; one that fails is started again.")
    ] = None,
    restarts: Annotated[
        int | None, typer.Option(min=0, help="Restarts of an elastic job, in all. Default: 10 in any minute.")
    ] = None,
) -> int:
    """Start a script on every rank, as in: legato run --nproc-per-node 2 train.py. Other options are torchrun's."""
    command = tuple(context.args)
    if command and PurePath(command[0]).name in ("python", "python3"):
        command = command[1:]  # as bpslaunch and horovodrun are told
    if not command:
        raise InputError("there is nothing to run; give a script, as in: legato run --nproc-per-node 2 train.py")
    if num_ranks is not None and nproc_per_node is not None:
        raise InputError("-np and --nproc-per-node are both given; give one: ranks on all hosts, or on each")
    elastic = _elastic(min_workers, max_workers, restarts)
    part = Part(
        command=command,
        nproc_per_node=nproc_per_node or str(num_ranks or 1),
        num_hosts=nnodes or "1",
        host_rank=node_rank,
        address=master_addr,
        port=master_port,
        num_servers=servers,
        runs_as=None if written_for is None else "legato.compat",
    )
    with ended_by_signals():
        if elastic is not None:
            if hosts is not None or nnodes is not None or nproc_per_node is not None or num_ranks is not None:
                raise InputError(
                    "--min and --max are for ranks of this host alone, and say how many; leave out --hosts, --nnodes, "
                    "--nproc-per-node and -np"
                )
            return launch_elastic(part, elastic)
        if hosts is not None:
            return launch_hosts(parse_hosts(hosts, num_ranks), part, remote_shell)
        machine = machine_of(os.environ) if nnodes is None and num_ranks is None else None
        if machine is None:
            return launch_part(part)
        return _launch_by(machine, part, has_ranks=nproc_per_node is not None)


def _elastic(min_workers: int | None, max_workers: int | None, restarts: int | None) -> Elastic | None:
    if min_workers is None and max_workers is None:
        if restarts is not None:
            raise InputError("--restarts is for elastic jobs: give --min and --max, or torchrun's --max-restarts")
        return None
    if min_workers is None or max_workers is None:
        raise InputError("--min and --max come together: the fewest ranks to go on with, and those to start")
    return Elastic(min_workers=min_workers, max_workers=max_workers, restarts=restarts)


def _launch_by(machine: Machine, part: Part, *, has_ranks: bool) -> int:
    """As bpslaunch does what DMLC_ROLE says."""
    if machine.role == "scheduler":
        print("legato: there is nothing to do for a scheduler: worker 0 conducts the job")
        return 0
    if machine.role == "server":
        return serve()
    return launch_part(
        replace(
            part,
            nproc_per_node=part.nproc_per_node if has_ranks else str(machine.num_ranks),
            num_hosts=str(machine.num_machines),
            host_rank=machine.number,
            address=machine.address,
            port=machine.port,
        )
    )
