"""Variables of Horovod, BytePS and ByteScheduler: which ones act here, and why the others do not.

Those that act are read where their settings are (settings.py, launchers.py). The others are checked all the same, so
that rubbish is an error, and named once in the log, so that nobody believes them to act.
"""

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum, auto

from legato.environment import Environment

PREFIXES = ("HOROVOD_", "BYTEPS_", "BYTESCHEDULER_", "DMLC_")


class Kind(Enum):
    """What a value has to be."""

    WHOLE = auto()
    """A number; a flag is on unless it is 0."""
    DECIMAL = auto()
    TEXT = auto()


_CHECKS: dict[Kind, Callable[[Environment, str], object]] = {
    Kind.WHOLE: Environment.number,
    Kind.DECIMAL: Environment.decimal,
    Kind.TEXT: Environment.text,
}


@dataclass(frozen=True, slots=True)
class Idle:
    """A variable without effect."""

    kind: Kind
    why: str


ACTING = frozenset(
    {
        *("HOROVOD_RANK", "HOROVOD_SIZE", "HOROVOD_LOCAL_RANK", "HOROVOD_LOCAL_SIZE"),
        *("HOROVOD_GLOO_RENDEZVOUS_ADDR", "HOROVOD_GLOO_RENDEZVOUS_PORT", "HOROVOD_GLOO_IFACE"),
        *("HOROVOD_FUSION_THRESHOLD", "HOROVOD_TIMELINE", "HOROVOD_AUTOTUNE", "HOROVOD_LOG_LEVEL"),
        "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS",
        *("DMLC_ROLE", "DMLC_NUM_WORKER", "DMLC_NUM_SERVER", "DMLC_WORKER_ID", "DMLC_PS_ROOT_URI"),
        *("DMLC_PS_ROOT_PORT", "DMLC_INTERFACE", "DMLC_NODE_HOST"),
        *("BYTEPS_LOCAL_RANK", "BYTEPS_LOCAL_SIZE", "BYTEPS_GLOBAL_RANK", "BYTEPS_ENABLE_MIXED_MODE"),
        *("BYTEPS_PARTITION_BYTES", "BYTEPS_SCHEDULING_CREDIT", "BYTEPS_ENABLE_ASYNC", "BYTEPS_MIN_COMPRESS_BYTES"),
        *("BYTEPS_TRACE_ON", "BYTEPS_TRACE_DIR", "BYTEPS_TRACE_START_STEP", "BYTEPS_TRACE_END_STEP"),
        *("BYTEPS_LOG_LEVEL", "BYTEPS_SERVER_ENGINE_THREAD"),
        *("BYTESCHEDULER_PARTITION", "BYTESCHEDULER_CREDIT", "BYTESCHEDULER_TIMELINE", "BYTESCHEDULER_DEBUG"),
        *("BYTESCHEDULER_CREDIT_TUNING", "BYTESCHEDULER_PARTITION_TUNING"),
    }
)
"""Read in settings.py and launchers.py."""

_NCCL = "no gradient goes through NCCL, unless you ask for transport='c10d'"
_CORES = "threads are not bound to cores"
_TUNER = "the tuner decides for itself (docs/tuning.md)"
_NEGOTIATION = "there are no cycles: a gradient goes when it is ready"
_STALLS = "a stall is reported after LEGATO_STALL_S, and every wait has a deadline, LEGATO_TIMEOUT_S"
_ELASTIC = "a job keeps its members"
_HIERARCHY = "workers on one host always sum among themselves first"

WITHOUT_EFFECT = {
    "HOROVOD_CYCLE_TIME": Idle(Kind.DECIMAL, _NEGOTIATION),
    "HOROVOD_TIMELINE_MARK_CYCLES": Idle(Kind.WHOLE, _NEGOTIATION),
    "HOROVOD_CACHE_CAPACITY": Idle(Kind.WHOLE, "what ranks have agreed on about a tensor is always kept"),
    "HOROVOD_HIERARCHICAL_ALLREDUCE": Idle(Kind.WHOLE, _HIERARCHY),
    "HOROVOD_HIERARCHICAL_ALLGATHER": Idle(Kind.WHOLE, _HIERARCHY),
    "HOROVOD_DISABLE_GROUP_FUSION": Idle(Kind.WHOLE, "a plan says which gradients go together (LEGATO_FUSION_BYTES)"),
    "HOROVOD_AUTOTUNE_LOG": Idle(Kind.TEXT, _TUNER),
    "HOROVOD_AUTOTUNE_WARMUP_SAMPLES": Idle(Kind.WHOLE, _TUNER),
    "HOROVOD_AUTOTUNE_STEPS_PER_SAMPLE": Idle(Kind.WHOLE, _TUNER),
    "HOROVOD_AUTOTUNE_BAYES_OPT_MAX_SAMPLES": Idle(Kind.WHOLE, _TUNER),
    "HOROVOD_AUTOTUNE_GAUSSIAN_PROCESS_NOISE": Idle(Kind.DECIMAL, _TUNER),
    "HOROVOD_STALL_CHECK_DISABLE": Idle(Kind.WHOLE, _STALLS),
    "HOROVOD_STALL_CHECK_TIME_SECONDS": Idle(Kind.WHOLE, _STALLS),
    "HOROVOD_NUM_NCCL_STREAMS": Idle(Kind.WHOLE, _NCCL),
    "HOROVOD_MPI_THREADS_DISABLE": Idle(Kind.WHOLE, "MPI moves nothing here"),
    "HOROVOD_ADASUM_MPI_CHUNK_SIZE": Idle(Kind.WHOLE, "MPI moves nothing here"),
    "HOROVOD_CCL_CACHE": Idle(Kind.WHOLE, "oneCCL moves nothing here"),
    "HOROVOD_CCL_BGT_AFFINITY": Idle(Kind.WHOLE, _CORES),
    "HOROVOD_THREAD_AFFINITY": Idle(Kind.TEXT, _CORES),
    "HOROVOD_BATCH_D2D_MEMCOPIES": Idle(Kind.WHOLE, "gradients are not copied into a buffer on the device"),
    "HOROVOD_ENABLE_ASYNC_COMPLETION": Idle(Kind.WHOLE, "streams wait for averages, and never the host"),
    "HOROVOD_DISABLE_NVTX_RANGES": Idle(Kind.WHOLE, "there are no NVTX ranges; LEGATO_TIMELINE writes a timeline"),
    "HOROVOD_DYNAMIC_PROCESS_SETS": Idle(Kind.WHOLE, "process sets can always be added"),
    "HOROVOD_ENABLE_XLA_OPS": Idle(Kind.WHOLE, "it is TensorFlow's"),
    "HOROVOD_LOG_HIDE_TIME": Idle(Kind.WHOLE, "Python's logging formats the log"),
    "HOROVOD_ELASTIC": Idle(Kind.WHOLE, _ELASTIC),
    "HOROVOD_ELASTIC_TIMEOUT": Idle(Kind.WHOLE, _ELASTIC),
    "DMLC_ENABLE_RDMA": Idle(Kind.TEXT, "the engine talks TCP, and shared memory on one host"),
    "BYTEPS_FORCE_DISTRIBUTED": Idle(Kind.WHOLE, "a worker alone has nobody to talk to"),
    "BYTEPS_PCIE_SWITCH_SIZE": Idle(Kind.WHOLE, _HIERARCHY),
    "BYTEPS_REDUCE_ROOTS": Idle(Kind.TEXT, _HIERARCHY),
    "BYTEPS_NCCL_NUM_RINGS": Idle(Kind.WHOLE, _NCCL),
    "BYTEPS_NCCL_GROUP_SIZE": Idle(Kind.WHOLE, _NCCL),
    "BYTEPS_SERVER_ENABLE_SCHEDULE": Idle(Kind.WHOLE, "servers always answer in the order of priority"),
    "BYTEPS_SERVER_ENGINE_BLOCKING": Idle(Kind.WHOLE, "sums are made as parts arrive"),
    "BYTEPS_SERVER_DEBUG": Idle(Kind.WHOLE, "LEGATO_LOG_LEVEL shows the log"),
    "BYTEPS_SERVER_DEBUG_KEY": Idle(Kind.WHOLE, "LEGATO_LOG_LEVEL shows the log"),
    "BYTEPS_DEBUG_SAMPLE_TENSOR": Idle(Kind.WHOLE, "LEGATO_TIMELINE shows what becomes of a tensor"),
    "BYTEPS_ENABLE_GDB": Idle(Kind.WHOLE, "it is for BytePS's launcher"),
    "BYTEPS_NUMA_ON": Idle(Kind.WHOLE, _CORES),
    "BYTEPS_NUMA_DEFAULT_QUOTA": Idle(Kind.WHOLE, _CORES),
    "BYTEPS_CPU_BLACKLIST": Idle(Kind.TEXT, _CORES),
    "BYTEPS_VISIBLE_CPU_CORES": Idle(Kind.TEXT, _CORES),
    "BYTEPS_MULTITHREADED_CPU": Idle(Kind.WHOLE, _CORES),
    "BYTEPS_OMP_THREAD_PER_GPU": Idle(Kind.WHOLE, "sums are made by LEGATO_THREADS"),
    "BYTEPS_THREADPOOL_SIZE": Idle(Kind.WHOLE, "sums are made by LEGATO_THREADS"),
    "BYTEPS_PUSH_THREAD": Idle(Kind.WHOLE, "sockets are written by LEGATO_THREADS"),
    "BYTEPS_KEY_HASH_FN": Idle(Kind.TEXT, "a plan says who sums which part"),
    "BYTEPS_BUILT_IN_HASH_COEF": Idle(Kind.WHOLE, "a plan says who sums which part"),
    "BYTEPS_MIXED_MODE_BOUND": Idle(Kind.WHOLE, "a plan says who sums which part"),
    "BYTEPS_SOCKET_PATH": Idle(Kind.TEXT, "processes of one host find each other through the conductor"),
    "BYTEPS_TELEMETRY_ON": Idle(Kind.WHOLE, "get_pushpull_speed always measures"),
    "BYTEPS_DISABLE_P2P": Idle(Kind.WHOLE, "it turns off what is not here"),
    "BYTEPS_DISABLE_CPU_ALLREDUCE": Idle(Kind.WHOLE, "every operation is always there"),
    "BYTEPS_DISABLE_GPU_ALLREDUCE": Idle(Kind.WHOLE, "every operation is always there"),
    "BYTEPS_P2P_VERBOSE": Idle(Kind.TEXT, "LEGATO_LOG_LEVEL shows the log"),
    "BYTEPS_STALENESS": Idle(Kind.WHOLE, "LEGATO_STALENESS bounds how far workers may be ahead"),
    "BYTEPS_PIPESGD_WARMUP_ITER": Idle(Kind.WHOLE, "LEGATO_STALENESS bounds how far workers may be ahead"),
    "BYTESCHEDULER_QUEUE_TYPE": Idle(Kind.WHOLE, "LEGATO_POLICY orders gradients"),
    "BYTESCHEDULER_TUNING": Idle(Kind.WHOLE, "BYTESCHEDULER_CREDIT_TUNING and BYTESCHEDULER_PARTITION_TUNING act"),
    "BYTESCHEDULER_ROOT_IP": Idle(Kind.TEXT, "plans travel through rank 0's conductor (LEGATO_CONDUCTOR)"),
    "BYTESCHEDULER_ROOT_PORT": Idle(Kind.WHOLE, "plans travel through rank 0's conductor (LEGATO_CONDUCTOR)"),
}
"""What users set."""

OF_LAUNCHERS = {
    "HOROVOD_CONTROLLER": Idle(Kind.TEXT, "rank 0's conductor is the only one"),
    "HOROVOD_CPU_OPERATIONS": Idle(Kind.TEXT, "legato's own engine moves everything"),
    "HOROVOD_HOSTNAME": Idle(Kind.TEXT, "members say themselves where they are"),
    "HOROVOD_CROSS_RANK": Idle(Kind.WHOLE, "it follows from the ranks on this host"),
    "HOROVOD_CROSS_SIZE": Idle(Kind.WHOLE, "it follows from the ranks on this host"),
    "HOROVOD_GLOO_TIMEOUT_SECONDS": Idle(Kind.WHOLE, "all members have LEGATO_JOIN_TIMEOUT_S to gather"),
}
"""What horovodrun sets whatever the user says; named at level INFO."""


def check_idle(read: Environment) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """A line for each variable that is set and does nothing: those of users, and those of launchers."""
    known = {**WITHOUT_EFFECT, **OF_LAUNCHERS}
    of_users: list[str] = []
    of_launchers: list[str] = []
    for name in sorted(read.names(PREFIXES) - ACTING):
        if name not in known:
            of_users.append(f"{name} has no effect: legato does not know it (docs/environment.md)")
            continue
        _CHECKS[known[name].kind](read, name)
        (of_launchers if name in OF_LAUNCHERS else of_users).append(f"{name} has no effect: {known[name].why}")
    return tuple(of_users), tuple(of_launchers)
