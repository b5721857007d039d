"""The exceptions that Horovod's users catch.

What Horovod calls an internal error is what goes wrong between the members of a job: so it is legato's name for that.
"""

from legato.errors import JobError

HorovodInternalError = JobError


class HostsUpdatedInterrupt(RuntimeError):  # noqa: N818 - Horovod's name
    """Ranks wait to join an elastic job: `hvd.elastic.run` lets them in. With `skip_sync` the state stays as it is."""

    def __init__(self, skip_sync: bool = False) -> None:
        super().__init__()
        self.skip_sync = skip_sync
