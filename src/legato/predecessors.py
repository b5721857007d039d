"""Variables of Horovod, BytePS and ByteScheduler that do not act here, and why.

Those that act are aliases of settings (variables.py), or said by launchers (launchers.py). The others are checked all
the same, so that rubbish is an error, and named once in the log, so that nobody believes them to act.
"""

from dataclasses import dataclass
from typing import Any

from legato.environment import DECIMAL, TEXT, WHOLE, Environment, Format, did_you_mean

PREFIXES = ("HOROVOD_", "BYTEPS_", "BYTESCHEDULER_", "DMLC_")


@dataclass(frozen=True, slots=True)
class Idle:
    """A variable without effect."""

    form: Format[Any]
    """What a value has to be; a flag is a number, on unless it is 0."""
    why: str


_NCCL = "no gradient goes through NCCL, unless you ask for transport='c10d'"
_CORES = "threads are not bound to cores"
_TUNER = "the tuner decides for itself (docs/tuning.md)"
_NEGOTIATION = "there are no cycles: a gradient goes when it is ready"
_STALLS = "a stall is reported after LEGATO_STALL_S, and every wait has a deadline, LEGATO_TIMEOUT_S"
_ELASTIC = "LEGATO_ELASTIC makes a job elastic (docs/elastic.md)"
_HIERARCHY = "workers on one host always sum among themselves first"

WITHOUT_EFFECT = {
    "HOROVOD_CYCLE_TIME": Idle(DECIMAL, _NEGOTIATION),
    "HOROVOD_TIMELINE_MARK_CYCLES": Idle(WHOLE, _NEGOTIATION),
    "HOROVOD_CACHE_CAPACITY": Idle(WHOLE, "what ranks have agreed on about a tensor is always kept"),
    "HOROVOD_HIERARCHICAL_ALLREDUCE": Idle(WHOLE, _HIERARCHY),
    "HOROVOD_HIERARCHICAL_ALLGATHER": Idle(WHOLE, _HIERARCHY),
    "HOROVOD_DISABLE_GROUP_FUSION": Idle(WHOLE, "a plan says which gradients go together (LEGATO_FUSION_BYTES)"),
    "HOROVOD_AUTOTUNE_LOG": Idle(TEXT, _TUNER),
    "HOROVOD_AUTOTUNE_WARMUP_SAMPLES": Idle(WHOLE, _TUNER),
    "HOROVOD_AUTOTUNE_STEPS_PER_SAMPLE": Idle(WHOLE, _TUNER),
    "HOROVOD_AUTOTUNE_BAYES_OPT_MAX_SAMPLES": Idle(WHOLE, _TUNER),
    "HOROVOD_AUTOTUNE_GAUSSIAN_PROCESS_NOISE": Idle(DECIMAL, _TUNER),
    "HOROVOD_STALL_CHECK_DISABLE": Idle(WHOLE, _STALLS),
    "HOROVOD_STALL_CHECK_TIME_SECONDS": Idle(WHOLE, _STALLS),
    "HOROVOD_NUM_NCCL_STREAMS": Idle(WHOLE, _NCCL),
    "HOROVOD_MPI_THREADS_DISABLE": Idle(WHOLE, "MPI moves nothing here"),
    "HOROVOD_ADASUM_MPI_CHUNK_SIZE": Idle(WHOLE, "MPI moves nothing here"),
    "HOROVOD_CCL_CACHE": Idle(WHOLE, "oneCCL moves nothing here"),
    "HOROVOD_CCL_BGT_AFFINITY": Idle(WHOLE, _CORES),
    "HOROVOD_THREAD_AFFINITY": Idle(TEXT, _CORES),
    "HOROVOD_BATCH_D2D_MEMCOPIES": Idle(WHOLE, "gradients are not copied into a buffer on the device"),
    "HOROVOD_ENABLE_ASYNC_COMPLETION": Idle(WHOLE, "streams wait for averages, and never the host"),
    "HOROVOD_DISABLE_NVTX_RANGES": Idle(WHOLE, "there are no NVTX ranges; LEGATO_TIMELINE writes a timeline"),
    "HOROVOD_DYNAMIC_PROCESS_SETS": Idle(WHOLE, "process sets can always be added"),
    "HOROVOD_ENABLE_XLA_OPS": Idle(WHOLE, "it is TensorFlow's"),
    "HOROVOD_LOG_HIDE_TIME": Idle(WHOLE, "Python's logging formats the log"),
    "HOROVOD_ELASTIC": Idle(WHOLE, _ELASTIC),
    "HOROVOD_ELASTIC_TIMEOUT": Idle(WHOLE, _ELASTIC),
    "DMLC_ENABLE_RDMA": Idle(TEXT, "the engine talks TCP, and shared memory on one host"),
    "BYTEPS_FORCE_DISTRIBUTED": Idle(WHOLE, "a worker alone has nobody to talk to"),
    "BYTEPS_PCIE_SWITCH_SIZE": Idle(WHOLE, _HIERARCHY),
    "BYTEPS_REDUCE_ROOTS": Idle(TEXT, _HIERARCHY),
    "BYTEPS_NCCL_NUM_RINGS": Idle(WHOLE, _NCCL),
    "BYTEPS_NCCL_GROUP_SIZE": Idle(WHOLE, _NCCL),
    "BYTEPS_SERVER_ENABLE_SCHEDULE": Idle(WHOLE, "servers always answer in the order of priority"),
    "BYTEPS_SERVER_ENGINE_BLOCKING": Idle(WHOLE, "sums are made as parts arrive"),
    "BYTEPS_SERVER_DEBUG": Idle(WHOLE, "LEGATO_LOG_LEVEL shows the log"),
    "BYTEPS_SERVER_DEBUG_KEY": Idle(WHOLE, "LEGATO_LOG_LEVEL shows the log"),
    "BYTEPS_DEBUG_SAMPLE_TENSOR": Idle(WHOLE, "LEGATO_TIMELINE shows what becomes of a tensor"),
    "BYTEPS_ENABLE_GDB": Idle(WHOLE, "it is for BytePS's launcher"),
    "BYTEPS_NUMA_ON": Idle(WHOLE, _CORES),
    "BYTEPS_NUMA_DEFAULT_QUOTA": Idle(WHOLE, _CORES),
    "BYTEPS_CPU_BLACKLIST": Idle(TEXT, _CORES),
    "BYTEPS_VISIBLE_CPU_CORES": Idle(TEXT, _CORES),
    "BYTEPS_MULTITHREADED_CPU": Idle(WHOLE, _CORES),
    "BYTEPS_OMP_THREAD_PER_GPU": Idle(WHOLE, "sums are made by LEGATO_THREADS"),
    "BYTEPS_THREADPOOL_SIZE": Idle(WHOLE, "sums are made by LEGATO_THREADS"),
    "BYTEPS_PUSH_THREAD": Idle(WHOLE, "sockets are written by LEGATO_THREADS"),
    "BYTEPS_KEY_HASH_FN": Idle(TEXT, "a plan says who sums which part"),
    "BYTEPS_BUILT_IN_HASH_COEF": Idle(WHOLE, "a plan says who sums which part"),
    "BYTEPS_MIXED_MODE_BOUND": Idle(WHOLE, "a plan says who sums which part"),
    "BYTEPS_SOCKET_PATH": Idle(TEXT, "processes of one host find each other through the conductor"),
    "BYTEPS_TELEMETRY_ON": Idle(WHOLE, "get_pushpull_speed always measures"),
    "BYTEPS_DISABLE_P2P": Idle(WHOLE, "it turns off what is not here"),
    "BYTEPS_DISABLE_CPU_ALLREDUCE": Idle(WHOLE, "every operation is always there"),
    "BYTEPS_DISABLE_GPU_ALLREDUCE": Idle(WHOLE, "every operation is always there"),
    "BYTEPS_P2P_VERBOSE": Idle(TEXT, "LEGATO_LOG_LEVEL shows the log"),
    "BYTEPS_STALENESS": Idle(WHOLE, "LEGATO_STALENESS bounds how far workers may be ahead"),
    "BYTEPS_PIPESGD_WARMUP_ITER": Idle(WHOLE, "LEGATO_STALENESS bounds how far workers may be ahead"),
    "BYTESCHEDULER_QUEUE_TYPE": Idle(WHOLE, "LEGATO_POLICY orders gradients"),
    "BYTESCHEDULER_TUNING": Idle(WHOLE, "BYTESCHEDULER_CREDIT_TUNING and BYTESCHEDULER_PARTITION_TUNING act"),
    "BYTESCHEDULER_ROOT_IP": Idle(TEXT, "plans travel through rank 0's conductor (LEGATO_CONDUCTOR)"),
    "BYTESCHEDULER_ROOT_PORT": Idle(WHOLE, "plans travel through rank 0's conductor (LEGATO_CONDUCTOR)"),
}
"""What users set."""

OF_LAUNCHERS = {
    "HOROVOD_CONTROLLER": Idle(TEXT, "rank 0's conductor is the only one"),
    "HOROVOD_CPU_OPERATIONS": Idle(TEXT, "legato's own engine moves everything"),
    "HOROVOD_HOSTNAME": Idle(TEXT, "members say themselves where they are"),
    "HOROVOD_CROSS_RANK": Idle(WHOLE, "it follows from the ranks on this host"),
    "HOROVOD_CROSS_SIZE": Idle(WHOLE, "it follows from the ranks on this host"),
    "HOROVOD_GLOO_TIMEOUT_SECONDS": Idle(WHOLE, "all members have LEGATO_JOIN_TIMEOUT_S to gather"),
}
"""What horovodrun sets whatever the user says; named at level INFO."""


def check_idle(read: Environment, acting: frozenset[str]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """A line for each variable that is set and does nothing: those of users, and those of launchers."""
    known = {**WITHOUT_EFFECT, **OF_LAUNCHERS}
    of_users: list[str] = []
    of_launchers: list[str] = []
    for name in sorted(read.names(PREFIXES) - acting):
        if name not in known:
            meant = did_you_mean(name, acting | known.keys(), name.partition("_")[0] + "_")
            question = f"; did you mean {meant}?" if meant else ""
            of_users.append(f"{name} has no effect: legato does not know it (docs/environment.md){question}")
            continue
        read.value(name, known[name].form)
        (of_launchers if name in OF_LAUNCHERS else of_users).append(f"{name} has no effect: {known[name].why}")
    return tuple(of_users), tuple(of_launchers)
