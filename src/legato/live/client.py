"""A reader of endpoints: server-sent events into a board, again and again after every interruption."""

import contextlib
import http.client
import json
import socket
import threading
from collections.abc import Iterator
from typing import Any
from urllib.parse import parse_qs, urlsplit

from legato.errors import InputError
from legato.live.board import Board

_SILENCE_S = 15.0
"""An endpoint says something every five."""
RETRY_S = 1.0


class Address:
    """Where an endpoint is, and what it asks for."""

    def __init__(self, url: str, token: str | None = None) -> None:
        """`8321`, `host:8321` and `http://host:8321/?token=…` are addresses."""
        whole = f"127.0.0.1:{url}" if url.isdecimal() else url
        parts = urlsplit(whole if "://" in whole else f"http://{whole}")
        try:
            port = parts.port
        except ValueError:
            port = None
        if parts.scheme != "http" or not parts.hostname or port is None:
            raise InputError(
                f"{url!r} is not the address of a dashboard; accepted are 8321, host:8321 and http://host:8321/"
            )
        self.host, self.port = parts.hostname, port
        self.token = parse_qs(parts.query).get("token", [""])[0] or token

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"


class Subscription:
    """One endpoint, from construction to `close`."""

    def __init__(self, address: Address, board: Board) -> None:
        self.address = address
        self.trouble: str | None = "not connected yet"
        """Why nothing is heard, if nothing is."""
        self._board = board
        self._closed = threading.Event()
        self._connection: http.client.HTTPConnection | None = None
        self._thread = threading.Thread(target=self._run, name="legato-reader", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._closed.set()
        connection = self._connection
        if connection is not None and connection.sock is not None:
            with contextlib.suppress(OSError):  # it has ended by itself
                connection.sock.shutdown(socket.SHUT_RDWR)
        self._thread.join(_SILENCE_S)

    def _run(self) -> None:
        while not self._closed.is_set():
            try:
                for event in self._events():
                    self.trouble = None
                    self._take(event)
                self.trouble = "the job is over"
            except (OSError, http.client.HTTPException, ValueError) as error:
                self.trouble = str(error) or type(error).__name__
            self._closed.wait(RETRY_S)

    def _take(self, event: dict[str, Any]) -> None:
        job = f"{event['job']} ({self.address})"
        if event["kind"] == "state":
            self._board.replace(job, event["data"])
        else:
            self._board.put(job, event["kind"], event["data"])

    def _events(self) -> Iterator[dict[str, Any]]:
        address = self.address
        self._connection = connection = http.client.HTTPConnection(address.host, address.port, timeout=_SILENCE_S)
        try:
            headers = {} if address.token is None else {"Authorization": f"Bearer {address.token}"}
            connection.request("GET", "/events", headers=headers)
            answer = connection.getresponse()
            if answer.status != 200:
                raise ValueError(answer.read(200).decode(errors="replace").strip() or f"HTTP {answer.status}")
            while line := answer.readline():
                if line.startswith(b"data: "):
                    yield json.loads(line[6:])
        finally:
            connection.close()
