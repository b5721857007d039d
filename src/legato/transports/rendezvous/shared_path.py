"""The door between members on one host: a socket that has no name in the file system, and memory handed through it.

The socket stays with the memory, as its bell; both are gone when the last process that holds them is.
"""

import fcntl
import os
import socket
from dataclasses import dataclass

from legato.errors import DeadlineError, InputError, ProtocolError

MEMORY_BYTES = 2 << 20
"""For both directions. It holds a few chunks each way, and stays in the processor's cache."""
_MARK = b"M"


@dataclass(frozen=True, slots=True)
class SharedPath:
    """The two descriptors of a way through memory, for the engine to take over."""

    bell: int
    memory: int

    def close(self) -> None:
        os.close(self.bell)
        os.close(self.memory)


def listen_here() -> socket.socket:
    """A socket that only processes of this machine and network namespace can reach, at a name the kernel chooses."""
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        listening.bind("")
        listening.listen(512)
    except OSError as error:
        listening.close()
        raise InputError(
            f"cannot listen for members on this host ({error.strerror}); set LEGATO_SHARED_MEMORY=0"
        ) from None
    return listening


def hand_over(connection: socket.socket) -> SharedPath:
    """Make memory and send it to the peer; the connection becomes its bell."""
    with connection:
        memory = os.memfd_create("legato", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            os.ftruncate(memory, MEMORY_BYTES)
            fcntl.fcntl(memory, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW)
            socket.send_fds(connection, [_MARK], [memory])
        except BaseException:
            os.close(memory)
            raise
        return SharedPath(connection.detach(), memory)


def take_over(connection: socket.socket, timeout_s: float) -> SharedPath:
    """The other end of `hand_over`."""
    with connection:
        connection.settimeout(timeout_s)
        try:
            mark, descriptors, _, _ = socket.recv_fds(connection, len(_MARK), 1)
        except TimeoutError:
            raise DeadlineError("it did not hand over its memory in time") from None
        connection.settimeout(None)
        if mark != _MARK or len(descriptors) != 1:
            for descriptor in descriptors:
                os.close(descriptor)
            raise ProtocolError("it handed over something else than memory")
        size = os.fstat(descriptors[0]).st_size
        if size != MEMORY_BYTES:
            os.close(descriptors[0])
            raise ProtocolError(f"it handed over memory of {size} bytes; accepted are {MEMORY_BYTES}")
        os.set_inheritable(descriptors[0], False)
        return SharedPath(connection.detach(), descriptors[0])
