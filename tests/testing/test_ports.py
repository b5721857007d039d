"""Ports that tests reserve: theirs to listen at, and nobody else's."""

import socket
from contextlib import ExitStack

import pytest

from legato.launchers import PORT_OFFSET
from legato.testing.ports import NUM_PORTS, free_port


def test_it_can_be_listened_at_and_so_can_its_conductors() -> None:
    port = free_port()
    with socket.create_server(("127.0.0.1", port)), socket.create_server(("", port + PORT_OFFSET)):
        pass


def test_nobody_who_asks_for_any_port_is_given_it() -> None:
    port = free_port()
    with socket.socket() as other, pytest.raises(OSError, match="in use"):
        other.bind(("127.0.0.1", port))


def test_one_that_is_still_listened_at_is_left_out() -> None:
    port = free_port()
    with socket.create_server(("127.0.0.1", port)):
        assert port not in {free_port() for _ in range(2 * NUM_PORTS)}


def listen_everywhere(jobs: ExitStack) -> None:
    for _ in range(NUM_PORTS + 1):
        jobs.enter_context(socket.create_server(("127.0.0.1", free_port())))


def test_jobs_that_never_end_are_reported() -> None:
    with ExitStack() as jobs, pytest.raises(RuntimeError, match="which jobs have not ended"):
        listen_everywhere(jobs)
