"""Launchers: what the program that started this process says of its place in the job.

Of several that speak the innermost counts: torchrun, then BytePS, Horovod, the MPIs, Slurm. One that speaks a language
unknown here is an error: a process that believes to be alone trains, and nobody notices.
"""

import re
from dataclasses import dataclass, replace

from legato.environment import Environment
from legato.errors import InputError

DEFAULT_PORT = 29400
PORT_OFFSET = 1000
"""The conductor's port is this far from MASTER_PORT, where torchrun listens itself."""

UNKNOWN_LAUNCHERS = ("PMIX_RANK", "FLUX_TASK_RANK", "PALS_RANKID", "ALPS_APP_PE", "JSM_NAMESPACE_RANK")
"""Ranks by launchers that are not understood, or that do not say how many there are."""
_BYTEPS = ("DMLC_WORKER_ID", "DMLC_NUM_WORKER", "BYTEPS_LOCAL_RANK", "BYTEPS_LOCAL_SIZE")
_SIZES = (
    "WORLD_SIZE",
    "DMLC_NUM_WORKER",
    "HOROVOD_SIZE",
    "OMPI_COMM_WORLD_SIZE",
    "MV2_COMM_WORLD_SIZE",
    "PMI_SIZE",
    "SLURM_NTASKS",
)
_TRACES = (
    "LOCAL_RANK",
    "LOCAL_WORLD_SIZE",
    "MASTER_ADDR",
    "DMLC_ROLE",
    "DMLC_PS_ROOT_URI",
    "HOROVOD_LOCAL_RANK",
    "OMPI_COMM_WORLD_LOCAL_RANK",
    "MV2_COMM_WORLD_LOCAL_RANK",
    "MPI_LOCALRANKID",
)
"""What launchers set beside the rank and the size."""


@dataclass(frozen=True, slots=True)
class Row:
    """Variables that launchers set, for docs/environment.md."""

    names: tuple[str, ...]
    of: str
    meaning: str
    default: str = ""


VARIABLES = (
    Row(("RANK", "WORLD_SIZE"), "torchrun", "the worker's rank, the number of workers", "alone: 0 of 1"),
    Row(("LOCAL_RANK", "LOCAL_WORLD_SIZE"), "torchrun", "the same on this host", "all on one host"),
    Row(
        ("MASTER_ADDR",),
        "torchrun",
        "rank 0's host; read with Horovod, the MPIs and Slurm too",
        "127.0.0.1 where all are on one host",
    ),
    Row(
        ("MASTER_PORT",),
        "torchrun",
        "torchrun's own port: the conductor listens 1000 above it, or 1000 below if it is above 64535",
        "28400, so 29400 for the conductor",
    ),
    Row(
        ("DMLC_NUM_WORKER", "DMLC_WORKER_ID"),
        "BytePS",
        "the number of machines with workers, and this machine's number",
    ),
    Row(
        ("DMLC_PS_ROOT_URI", "DMLC_PS_ROOT_PORT"), "BytePS", "worker 0's host, and the conductor's port itself", "29400"
    ),
    Row(
        ("BYTEPS_LOCAL_RANK", "BYTEPS_LOCAL_SIZE"),
        "BytePS",
        "the place on this machine: the rank is `DMLC_WORKER_ID` × `BYTEPS_LOCAL_SIZE` + `BYTEPS_LOCAL_RANK`; set the "
        "size on servers too",
        "0 of 1",
    ),
    Row(("BYTEPS_GLOBAL_RANK",), "BytePS", "the rank itself, in place of that product"),
    Row(
        ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
        "Open MPI",
        "rank and size; Open MPI does not say where rank 0 is",
    ),
    Row(("OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"), "Open MPI", "the same on this host"),
    Row(
        (
            "MV2_COMM_WORLD_RANK",
            "MV2_COMM_WORLD_SIZE",
            "MV2_COMM_WORLD_LOCAL_RANK",
            "MV2_COMM_WORLD_LOCAL_SIZE",
        ),
        "MVAPICH2",
        "rank and size, overall and on this host",
    ),
    Row(
        ("PMI_RANK", "PMI_SIZE"),
        "MPICH, Intel MPI",
        "rank and size; if srun's own variables are set too, Slurm's count",
    ),
    Row(
        ("MPI_LOCALRANKID", "MPI_LOCALNRANKS", "PMI_LOCAL_RANK", "PMI_LOCAL_SIZE"),
        "MPICH, Intel MPI",
        "the same on this host; either pair",
    ),
    Row(
        ("HOROVOD_RANK", "HOROVOD_SIZE", "HOROVOD_LOCAL_RANK", "HOROVOD_LOCAL_SIZE"),
        "horovodrun",
        "rank and size, overall and on this host",
    ),
    Row(
        ("HOROVOD_GLOO_RENDEZVOUS_ADDR",),
        "horovodrun",
        "horovodrun's host, taken to be rank 0's; set `MASTER_ADDR` if it is not",
        "127.0.0.1 where all are on one host",
    ),
    Row(("HOROVOD_GLOO_RENDEZVOUS_PORT",), "horovodrun", "horovodrun's own port: the conductor listens 1000 above it"),
    Row(("SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID"), "Slurm", "rank, size, and place on this host"),
    Row(("SLURM_STEP_TASKS_PER_NODE", "SLURM_TASKS_PER_NODE"), "Slurm", "workers on a host"),
    Row(("SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST"), "Slurm", "its first host is rank 0's"),
    Row(("SLURM_LAUNCH_NODE_IPADDR",), "Slurm", "rank 0's host if there is no list"),
    Row(
        ("SLURM_JOB_ID",),
        "Slurm",
        "keeps the conductors of jobs on the same host apart: port 29400 + its last three digits",
    ),
)
"""What is read here."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where this process is among the workers."""

    launcher: str
    variables: tuple[str, ...] = ()
    """Those that said rank and size."""
    rank: int | None
    num_workers: int
    local_rank: int
    local_size: int
    host: str | None
    """Where rank 0 is; None where the launcher does not say."""
    port: int

    @property
    def told_by(self) -> str:
        """The launcher and its variables, in words."""
        if self.variables:
            return f"{self.launcher} ({', '.join(self.variables)})"
        return "nobody" if self.launcher == "none" else self.launcher


def given_place(rank: int | None, num_workers: int | None, *, has_rank: bool) -> Place | None:
    """The place that the code gives; None when it leaves it to the launcher."""
    if num_workers is None or (rank is None and has_rank):
        if rank is not None or (num_workers is not None and has_rank):
            raise InputError(f"rank={rank} and num_workers={num_workers}: give both, or none")
        return None
    if num_workers < 1 or (rank is not None and not 0 <= rank < num_workers):
        raise InputError(f"rank={rank} with num_workers={num_workers}; accepted is a rank from 0 to num_workers - 1")
    return Place(
        launcher="code",
        rank=rank,
        num_workers=num_workers,
        local_rank=rank or 0,
        local_size=num_workers,
        host=None,
        port=DEFAULT_PORT,
    )


def told_place(read: Environment, *, has_rank: bool) -> Place:
    """The place that the innermost launcher gives; alone without any. A server has no rank."""
    if read.has("RANK") or read.has("WORLD_SIZE"):
        return _torchrun(read, has_rank)
    if any(map(read.has, _BYTEPS)):
        return _byteps(read, has_rank)
    if read.has("HOROVOD_RANK") or read.has("HOROVOD_SIZE"):
        return _horovod(read)
    if read.has("OMPI_COMM_WORLD_RANK") or read.has("OMPI_COMM_WORLD_SIZE"):
        return _mpi(read, "Open MPI", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", _OPEN_MPI_LOCAL)
    if read.has("MV2_COMM_WORLD_RANK") or read.has("MV2_COMM_WORLD_SIZE"):
        return _mpi(read, "MVAPICH2", "MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_SIZE", _MVAPICH_LOCAL)
    if (read.has("PMI_RANK") or read.has("PMI_SIZE")) and not _is_slurms_pmi(read):
        local = _PALS_LOCAL if read.has("PMI_LOCAL_RANK") else _MPICH_LOCAL
        return _mpi(read, "MPICH", "PMI_RANK", "PMI_SIZE", local)
    if read.has("SLURM_PROCID"):
        return _slurm(read)
    for name in filter(read.has, UNKNOWN_LAUNCHERS):
        raise InputError(
            f"{name} is {read.text(name)!r}, from a launcher that legato does not understand; set RANK, WORLD_SIZE, "
            "LOCAL_RANK, LOCAL_WORLD_SIZE and MASTER_ADDR as torchrun does, or call init(rank=..., num_workers=...)"
        )
    if not has_rank:
        raise InputError("WORLD_SIZE is not set; accepted is the number of workers that the server is for")
    return Place(
        launcher="none", rank=0, num_workers=1, local_rank=0, local_size=1, host="127.0.0.1", port=DEFAULT_PORT
    )


def overlooked(read: Environment, place: Place) -> tuple[str, ...]:
    """Variables by which there may be others, of a process that believes to be alone."""
    if place.num_workers > 1 or place.launcher == "code":
        return ()
    sizes = (name for name in _SIZES if name not in place.variables and read.text(name) not in (None, "1"))
    traces = filter(read.has, _TRACES) if place.launcher == "none" else ()
    return (*sizes, *traces)


def _torchrun(read: Environment, has_rank: bool) -> Place:
    size = read.number("WORLD_SIZE", at_least=1)
    rank = read.number("RANK", below=size) if has_rank else None
    local_size = read.number("LOCAL_WORLD_SIZE", size, at_least=1, below=size + 1)
    local_rank = read.number("LOCAL_RANK", 0 if rank is None else rank % local_size, below=local_size)
    return Place(
        launcher="torchrun",
        variables=("RANK", "WORLD_SIZE"),
        rank=rank,
        num_workers=size,
        local_rank=local_rank,
        local_size=local_size,
        host=read.text("MASTER_ADDR"),
        port=_port(read),
    )


def _byteps(read: Environment, has_rank: bool) -> Place:
    """Its workers are machines: each has as many ranks as its launcher has started there."""
    num_machines = read.number("DMLC_NUM_WORKER", at_least=1)
    local_size = read.number("BYTEPS_LOCAL_SIZE", 1, at_least=1)
    size = num_machines * local_size
    machine = local_rank = 0
    if has_rank:
        machine = read.number("DMLC_WORKER_ID", 0 if num_machines == 1 else None, below=num_machines)
        local_rank = read.number("BYTEPS_LOCAL_RANK", 0 if local_size == 1 else None, below=local_size)
    return Place(
        launcher="BytePS",
        variables=tuple(filter(read.has, _BYTEPS)),
        rank=read.number("BYTEPS_GLOBAL_RANK", machine * local_size + local_rank, below=size) if has_rank else None,
        num_workers=size,
        local_rank=local_rank,
        local_size=local_size,
        host=read.text("DMLC_PS_ROOT_URI"),
        port=read.port("DMLC_PS_ROOT_PORT") if read.has("DMLC_PS_ROOT_PORT") else DEFAULT_PORT,
    )


def _horovod(read: Environment) -> Place:
    """It tells where horovodrun is, not rank 0: they are on one host unless its list of hosts begins with another."""
    place = _mpi(read, "horovodrun", "HOROVOD_RANK", "HOROVOD_SIZE", _HOROVOD_LOCAL)
    return replace(
        place,
        host=place.host or read.text("HOROVOD_GLOO_RENDEZVOUS_ADDR"),
        port=_port(read, "MASTER_PORT" if read.has("MASTER_PORT") else "HOROVOD_GLOO_RENDEZVOUS_PORT"),
    )


_HOROVOD_LOCAL = ("HOROVOD_LOCAL_RANK", "HOROVOD_LOCAL_SIZE")
_OPEN_MPI_LOCAL = ("OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE")
_MVAPICH_LOCAL = ("MV2_COMM_WORLD_LOCAL_RANK", "MV2_COMM_WORLD_LOCAL_SIZE")
_MPICH_LOCAL = ("MPI_LOCALRANKID", "MPI_LOCALNRANKS")
_PALS_LOCAL = ("PMI_LOCAL_RANK", "PMI_LOCAL_SIZE")


def _mpi(read: Environment, launcher: str, rank: str, size: str, local: tuple[str, str]) -> Place:
    """None of them says where rank 0 is, unless all are here. Horovod's launcher speaks alike."""
    num_workers = read.number(size, at_least=1)
    local_size = read.number(local[1], at_least=1, below=num_workers + 1)
    return Place(
        launcher=launcher,
        variables=(rank, size),
        rank=read.number(rank, below=num_workers),
        num_workers=num_workers,
        local_rank=read.number(local[0], below=local_size),
        local_size=local_size,
        host=read.text("MASTER_ADDR") or ("127.0.0.1" if local_size == num_workers else None),
        port=_port(read),
    )


def _is_slurms_pmi(read: Environment) -> bool:
    """Whether srun speaks both languages; its own says more. Under mpiexec in a Slurm job they differ."""
    same = (read.text("SLURM_PROCID"), read.text("SLURM_NTASKS")) == (read.text("PMI_RANK"), read.text("PMI_SIZE"))
    return same and not read.has("MPI_LOCALRANKID")


def _slurm(read: Environment) -> Place:
    size = read.number("SLURM_NTASKS", at_least=1)
    tasks = re.match(r"\d+", read.text("SLURM_STEP_TASKS_PER_NODE") or read.text("SLURM_TASKS_PER_NODE") or "")
    local_size = min(int(tasks.group()), size) if tasks else size
    # Jobs may share a node: their numbers keep their conductors apart.
    job = read.number("SLURM_JOB_ID", 0)
    nodes = read.text("SLURM_STEP_NODELIST") or read.text("SLURM_JOB_NODELIST")
    return Place(
        launcher="Slurm",
        variables=("SLURM_PROCID", "SLURM_NTASKS"),
        rank=read.number("SLURM_PROCID", below=size),
        num_workers=size,
        local_rank=read.number("SLURM_LOCALID", 0),
        local_size=local_size,
        host=read.text("MASTER_ADDR") or (first_node(nodes) if nodes else read.text("SLURM_LAUNCH_NODE_IPADDR")),
        port=_port(read) if read.has("MASTER_PORT") else DEFAULT_PORT + job % PORT_OFFSET,
    )


def first_node(nodes: str) -> str:
    """The first host of a Slurm node list: `gpu[003-005,9],cpu1` begins with gpu003."""
    found = re.match(r"(?P<name>[^\[,]+)(?:\[(?P<first>\d+)[^\]]*\](?P<rest>[^,]*))?", nodes)
    if found is None:
        raise InputError(f"SLURM_JOB_NODELIST is {nodes!r}; accepted is a node list such as node[01-04]")
    return found["name"] + (found["first"] or "") + (found["rest"] or "")


def _port(read: Environment, launchers: str = "MASTER_PORT") -> int:
    """The conductor's, beside the port that the launcher uses itself."""
    if not read.has(launchers):
        return DEFAULT_PORT
    port = read.port(launchers)
    return port + PORT_OFFSET if port + PORT_OFFSET < 65536 else port - PORT_OFFSET
