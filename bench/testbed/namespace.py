"""A network namespace that needs no name, no `ip` binary and no cleaning up.

It lives while a descriptor of it is open or a process runs inside, so the kernel removes it, with its links and queues,
as soon as its owner is gone, however the owner ended. A name in /run/netns would outlive a `kill -9`.
"""

import ctypes
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

_T = TypeVar("_T")

_CLONE_NEWUSER = 0x10000000
_CLONE_NEWNET = 0x40000000
_PR_SET_PDEATHSIG = 1

EXIT_NOT_PERMITTED = 77
"""What test harnesses take for "skipped"."""
_HELP = "network namespaces need root, or user namespaces open to all (sysctl user.max_user_namespaces, AppArmor)"

_libc = ctypes.CDLL(None, use_errno=True)


class NotPermittedError(RuntimeError):
    """This user may not make network namespaces here; the message is one line that says what would help."""


class Namespace:
    """An anonymous network namespace, its loopback down and nothing else in it."""

    def __init__(self) -> None:
        try:
            self._fd = _in_thread(_unshared)
        except OSError as error:  # EPERM, or ENOSPC where the limit on namespaces is 0
            raise NotPermittedError(_HELP) from error

    @property
    def fd(self) -> int:
        """A descriptor of the namespace, for netlink requests that put a link into it."""
        return self._fd

    def run(self, work: Callable[[], _T]) -> _T:
        """What `work` returns inside the namespace, in a thread of its own: the caller stays where it is."""

        def entered() -> _T:
            _setns(self._fd)
            return work()

        return _in_thread(entered)

    @contextmanager
    def entered(self) -> Iterator[None]:
        """Put the calling thread, and every process it starts, into the namespace.

        Unlike `run` it keeps the caller as the parent: PR_SET_PDEATHSIG fires when the parent *thread* ends.
        """
        home = _current()
        try:
            _setns(self._fd)
            try:
                yield
            finally:
                _setns(home)
        finally:
            os.close(home)

    def close(self) -> None:
        os.close(self._fd)


def die_with_parent(parent: int) -> None:
    """Have the kernel kill this process when the thread that started it ends, even by `kill -9`."""
    _check(_libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0))
    if os.getppid() != parent:  # it ended before the line above
        sys.exit(f"process {parent}, which started this one, is gone")


def is_permitted() -> bool:
    """Whether this process can make network namespaces."""
    try:
        Namespace().close()
    except NotPermittedError:
        return False
    return True


def is_obtainable() -> bool:
    """Whether `acquire_permission` would help, where this process can make none as it is: a child tries it."""
    tried = [sys.executable, "-I", __file__, sys.executable, "-c", ""]
    return subprocess.run(tried, check=False, capture_output=True, timeout=60).returncode == 0


def acquire_permission() -> None:
    """Go on as root of a new user namespace, if this process may not make network namespaces as it is.

    Runs the program anew from its start, because the kernel refuses a user namespace to a process with threads and
    importing numpy is enough to have some. Ends with `EXIT_NOT_PERMITTED` and one line where that does not help either.
    """
    if not is_permitted():
        os.execv(sys.executable, [sys.executable, "-I", __file__, sys.executable, *sys.orig_argv[1:]])


def _become_root() -> None:
    uid, gid = os.getuid(), os.getgid()
    # With a network namespace of its own, to which it may come back from those of hosts: the system's is not its own.
    _check(_libc.unshare(_CLONE_NEWUSER | _CLONE_NEWNET))
    Path("/proc/self/setgroups").write_text("deny")  # the kernel's condition for the next line
    Path("/proc/self/gid_map").write_text(f"0 {gid} 1")
    Path("/proc/self/uid_map").write_text(f"0 {uid} 1")


def _run_as_root(argv: list[str]) -> None:
    try:
        _become_root()
        Namespace().close()  # some systems grant the user namespace and nothing inside it
    except (OSError, NotPermittedError):
        print(_HELP, file=sys.stderr)
        sys.exit(EXIT_NOT_PERMITTED)
    os.execv(argv[0], argv)


def _in_thread(work: Callable[[], _T]) -> _T:
    """Namespaces belong to threads: what a short-lived thread enters, it takes with it when it ends."""
    result: list[_T] = []
    errors: list[BaseException] = []

    def body() -> None:
        try:
            result.append(work())
        except BaseException as error:  # noqa: BLE001 (carried to the caller, whole)
            errors.append(error)

    thread = threading.Thread(target=body, name="namespace")
    thread.start()
    thread.join()
    if errors:
        raise errors[0]
    return result[0]


def _unshared() -> int:
    _check(_libc.unshare(_CLONE_NEWNET))
    return _current()


def _current() -> int:
    return os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)


def _setns(fd: int) -> None:
    _check(_libc.setns(fd, _CLONE_NEWNET))


def _check(status: int) -> None:
    if status != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


if __name__ == "__main__":
    _run_as_root(sys.argv[1:])
