"""Every error legato raises on purpose. A user can catch `LegatoError`; anything else is a defect of ours."""


class LegatoError(Exception):
    """Base of all errors that legato raises on purpose."""


class InputError(LegatoError, ValueError):
    """A value given by the user is wrong; the message says which, where, and what is accepted."""


class OrderError(InputError, AssertionError):
    """A call came at a time when it cannot be right; the message says what must come before it."""


class PlanError(LegatoError, ValueError):
    """A plan does not fit its tensors, or would start at a step that has already begun."""


class SecurityError(LegatoError):
    """A peer could not prove that it holds the job's key, or the job would have listened to strangers."""


class NotInitializedError(LegatoError, ValueError):
    """There is no job yet, or no longer: `init` comes first."""


class UnsupportedError(InputError, NotImplementedError):
    """Something that could be meant, and that legato does not do; the message says what it does instead."""


class JobError(LegatoError, RuntimeError):
    """Something went wrong between the members of a job; it says with whom, with which tensor and in which step."""

    def __init__(
        self,
        message: str = "something went wrong between the members of the job",
        *,
        rank: int | None = None,
        tensor: str | None = None,
        step: int | None = None,
    ) -> None:
        super().__init__(message)
        self.rank = rank
        """The member it is about; members from the number of workers on are servers."""
        self.tensor = tensor
        """The name of the tensor it is about."""
        self.step = step
        """The step it is about."""


class PeerLostError(JobError):
    """A member died, was stopped, or can no longer be reached."""


class EvictedError(JobError):
    """This rank was so slow that the others of an elastic job go on without it (LEGATO_STRAGGLERS=evict)."""


class DeadlineError(JobError, TimeoutError):
    """Something did not happen in time; the message says who is missing."""


class MismatchError(JobError, ValueError):
    """Ranks disagree about a tensor, a plan or the job itself; the message says who said what."""


class DivergedError(JobError):
    """The weights of ranks that train together are no longer the same; the message says which, on which ranks."""


class NonFiniteError(JobError):
    """A gradient holds NaN or infinity, and LEGATO_NONFINITE says that this ends the job."""


class ProtocolError(JobError):
    """A peer sent bytes that are not of this protocol, or of another version of it."""


class CorruptionError(ProtocolError):
    """Bytes changed on their way between two members; the message names both ends of the link."""


class LimitError(JobError):
    """A limit of this process or machine is too low for the job; the message says which, and how to raise it."""


class ClosedError(JobError):
    """The job has been closed on this rank, or a rank that is still needed has left it."""
