"""Handles: operations on tensors that have been started, for `poll` and `synchronize`."""

from collections.abc import Callable
from typing import Any, Generic, Protocol, TypeVar

from legato.errors import LegatoError
from legato.transports.native.handle import Handle

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


class Work(Protocol[T_co]):
    """Something under way that ends in a value."""

    def poll(self) -> bool:
        """Whether waiting would return at once, with the result or an error."""

    def wait(self) -> T_co:
        """The result; can be asked for again."""


class Pending(Generic[T]):
    """An operation of the group, and how what it brings becomes the caller's tensor."""

    def __init__(self, handle: Handle[Any], finish: Callable[[Any], T], failed: Callable[[], None]) -> None:
        self._handle: Handle[Any] | None = handle
        self._finish = finish
        self._failed = failed
        self._result: T

    def poll(self) -> bool:
        return self._handle is None or self._handle.poll()

    def wait(self) -> T:
        if self._handle is not None:
            try:
                brought = self._handle.wait()
            except LegatoError:
                self._failed()
                raise
            self._result = self._finish(brought)
            self._handle = None
        return self._result


class FinishedWork(Generic[T]):
    """An operation that nobody else takes part in: it is over as soon as it is asked for."""

    def __init__(self, result: T) -> None:
        self._result = result

    def poll(self) -> bool:
        return True

    def wait(self) -> T:
        return self._result


class Together(Generic[T]):
    """Several operations as one."""

    def __init__(self, members: list[Work[T]]) -> None:
        self._members = members

    def poll(self) -> bool:
        return all(member.poll() for member in self._members)

    def wait(self) -> list[T]:
        return [member.wait() for member in self._members]


def poll(handle: Work[Any]) -> bool:
    """Whether `synchronize` would return at once."""
    return handle.poll()


def synchronize(handle: Work[T]) -> T:
    """Wait for an operation that was started with one of the `_async` functions: what it brought."""
    return handle.wait()
