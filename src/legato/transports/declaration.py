"""What the ranks say of a tensor before they move it."""

import math
from dataclasses import dataclass
from enum import StrEnum

from legato.compression import Scheme, parse
from legato.errors import InputError

ITEM_BYTES = {
    "float32": 4,
    "float64": 8,
    "float16": 2,
    "bfloat16": 2,
    "int8": 1,
    "uint8": 1,
    "int32": 4,
    "int64": 8,
    "int16": 2,
}
"""Size of an element, by the dtype names that numpy and torch use."""

REDUCTIONS = ("sum", "average", "min", "max", "product")
MAX_NAME_BYTES = 1024
MAX_TENSOR_BYTES = 1 << 44
MAX_STALENESS = 1 << 31


class Operation(StrEnum):
    """What is done with a tensor; each moves different ranges between different ranks."""

    PUSH_PULL = "push_pull"
    """Everybody gives all of it, everybody gets the reduction. Its steps are the job's: plans govern it."""
    ALL_REDUCE = "allreduce"
    """The same, but it counts steps of its own, so that no plan, which begins at a step of the job, can govern it."""
    BROADCAST = "broadcast"
    """The root gives all of it, everybody gets it."""
    REDUCE_SCATTER = "reducescatter"
    """Everybody gives all of it, each rank gets the reduction of its segment."""
    ALL_GATHER = "allgather"
    """Each rank gives its segment, everybody gets all of it."""
    ACCUMULATE = "accumulate"
    """Everybody adds to a running total and gets it as it is, unless `staleness` makes it wait for others."""
    GATHER = "gather"
    """Each rank gives its segment, the root gets all of it: an all-to-all is one of these for every rank."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Declaration:
    """The meaning of a name. Every rank must give it the same one; equal means equal in every field."""

    name: str
    """Unique in the job."""
    shape: tuple[int, ...]
    """Elements in each dimension."""
    dtype: str
    """One of `ITEM_BYTES`."""
    operation: Operation = Operation.PUSH_PULL
    """What is done with it."""
    root: int | None = None
    """The rank that gives (broadcast) or gets (gather)."""
    segments: tuple[int, ...] = ()
    """Bytes that belong to each rank, for the operations that know segments."""
    reduction: str | None = None
    """How the ranks' values are combined; None leaves it to each step, and its agreement to the engine."""
    compression: str | None = None
    """How it is encoded on the wire, as `legato.compression` writes it; None as it is."""
    staleness: int | None = None
    """Of a running total: the answer to a step waits until all ranks have added theirs of that many steps before."""
    backups: int = 0
    """Ranks that a step need not wait for: what comes after the others is not in it."""
    place: int | None = None
    """Its number in the job's plans; None where no plan names it."""

    def __post_init__(self) -> None:
        where = f"tensor {self.name!r}"
        if not self.name or len(self.name.encode()) > MAX_NAME_BYTES:
            raise InputError(f"{where}: a name has 1 to {MAX_NAME_BYTES} bytes")
        if self.dtype not in ITEM_BYTES:
            raise InputError(f"{where}: dtype is {self.dtype!r}, accepted are {', '.join(ITEM_BYTES)}")
        if self.reduction not in (None, *REDUCTIONS):
            raise InputError(f"{where}: reduction is {self.reduction!r}, accepted are {', '.join(REDUCTIONS)}")
        if any(size < 0 for size in self.shape) or self.num_bytes > MAX_TENSOR_BYTES:
            raise InputError(
                f"{where}: shape is {self.shape}, it must be 0 or more each and {MAX_TENSOR_BYTES} bytes at most"
            )
        if self.compression is not None:
            self._check_compression(where)
        if (self.staleness is not None) != (self.operation is Operation.ACCUMULATE):
            raise InputError(f"{where}: a running total has a staleness, and nothing else has")
        if self.staleness is not None and not 0 <= self.staleness < MAX_STALENESS:
            raise InputError(f"{where}: staleness is {self.staleness}; accepted is 0 to {MAX_STALENESS - 1}")
        if self.backups and (self.operation is not Operation.ALL_REDUCE or self.compression is not None):
            raise InputError(f"{where}: backups={self.backups} are for sums with steps of their own, uncompressed")
        if self.place is not None and (self.operation is not Operation.PUSH_PULL or self.place < 0):
            raise InputError(f"{where}: place is {self.place}; plans name sums whose steps are the job's, from 0 on")
        if self.segments and (min(self.segments) < 0 or sum(self.segments) != self.num_bytes):
            raise InputError(f"{where}: segments {self.segments} must add up to {self.num_bytes} bytes")

    def _check_compression(self, where: str) -> None:
        if self.dtype != "float32":
            raise InputError(f"{where} is {self.dtype}, but compression {self.compression} is for float32")
        if self.operation not in (Operation.PUSH_PULL, Operation.ALL_REDUCE):
            raise InputError(f"{where}: compression {self.compression} is for sums, not for {self.operation}")
        if self.reduction not in (None, "sum", "average"):
            raise InputError(f"{where}: compression {self.compression} goes with sum and average, not {self.reduction}")
        self.scheme()

    def scheme(self) -> Scheme | None:
        """Its compression, with parameters that fit its size."""
        scheme = None if self.compression is None else parse(self.compression)
        if scheme is not None:
            scheme.codec.push(math.prod(self.shape))
        return scheme

    @property
    def scale(self) -> "Declaration | None":
        """What the workers agree on before each step, where its compression asks for that: the largest magnitude."""
        scheme = None if self.compression is None else parse(self.compression)
        if scheme is None or not scheme.codec.agrees_on_scale:
            return None
        return Declaration(
            name=f"{self.name}/scale", shape=(1,), dtype="float32", operation=self.operation, reduction="max"
        )

    @property
    def item_bytes(self) -> int:
        return ITEM_BYTES[self.dtype]

    @property
    def num_bytes(self) -> int:
        return math.prod(self.shape) * self.item_bytes

    def words(self) -> str:
        """For messages: `float32 (3, 4)`, and what else is not the default."""
        text = f"{self.dtype} {self.shape}"
        if self.operation is not Operation.PUSH_PULL:
            text = f"{self.operation} of {text}"
        if self.root is not None:
            text += f" with root {self.root}"
        if self.reduction is not None:
            text += f" by {self.reduction}"
        if self.compression is not None:
            text += f" compressed by {self.compression}"
        if self.staleness is not None:
            text += f" with staleness {self.staleness}"
        if self.backups:
            text += f" with {self.backups} backups"
        return text
