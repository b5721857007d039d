"""The mesh: the connections over which members move data.

A worker is connected to every member that owns parts; of two members the one with the higher number dials. The
listener is there only while the mesh is being built: afterwards nobody can knock.
"""

import socket
import threading
import time
from collections import Counter

from legato.core.shards import Deployment
from legato.errors import DeadlineError, LegatoError, PeerLostError, SecurityError
from legato.transports.addresses import text
from legato.transports.join import JoinConfig, Who, dial
from legato.transports.listener import Listener
from legato.transports.messages import Welcome

_RETRY_S = 0.1


def peers(deployment: Deployment, member: int) -> list[int]:
    """The members that `member` is connected to."""
    owners = set(deployment.owners())

    def meet(one: int, other: int) -> bool:
        return one < deployment.num_workers and other in owners

    others = (other for other in range(deployment.num_members) if other != member)
    return [other for other in others if meet(member, other) or meet(other, member)]


class Mesh:
    """Listens from construction on; `connect` needs what the conductor's welcome says."""

    def __init__(self, host: str, port: int, config: JoinConfig, deployment: Deployment, num_connections: int) -> None:
        self._config = config
        self._deployment = deployment
        self._num_connections = num_connections
        self._changed = threading.Condition()
        self._place: Welcome | None = None
        self._error: LegatoError | None = None
        self._arrived: dict[tuple[int, int], socket.socket] = {}
        self._listener = Listener(host, port, config, welcome=self._welcome, take=self._take)

    @property
    def port(self) -> int:
        return self._listener.port

    def connect(self, place: Welcome, deadline_s: float) -> dict[int, list[socket.socket]]:
        """Every connection of this member, by peer; an error names the first member that is missing."""
        with self._changed:
            self._place = place
            self._changed.notify_all()
        others = peers(self._deployment, place.member)
        dialled: dict[int, list[socket.socket]] = {}
        try:
            for peer in (peer for peer in others if peer < place.member):
                dialled[peer] = []
                for index in range(self._num_connections):
                    dialled[peer].append(self._dial(place, peer, index, deadline_s))
            self._await([peer for peer in others if peer > place.member], deadline_s)
        except BaseException:
            for connection in (one for several in dialled.values() for one in several):
                connection.close()
            raise
        with self._changed:
            arrived, self._arrived = self._arrived, {}
        for (peer, _), connection in sorted(arrived.items(), key=lambda item: item[0]):
            dialled.setdefault(peer, []).append(connection)
        return dialled

    def fail(self, error: LegatoError) -> None:
        """Wake `connect`: the job is over before it began."""
        with self._changed:
            self._error = error
            self._changed.notify_all()

    def close(self) -> None:
        with self._changed:
            self._error = self._error or SecurityError("this member takes no more connections")
            self._changed.notify_all()
        self._listener.close()
        for connection in self._arrived.values():
            connection.close()
        self._arrived.clear()

    def _dial(self, place: Welcome, peer: int, index: int, deadline_s: float) -> socket.socket:
        """Connect to a peer; again where it was too crowded to answer, until the deadline or the end of the job."""
        host, port = place.addresses[peer]
        while True:
            try:
                return dial(host, port, Who("mesh", place.job, place.member, index), self._config, deadline_s)
            except (OSError, LegatoError) as error:
                reason = error
            with self._changed:
                self._changed.wait_for(lambda: self._error is not None, _RETRY_S)
                if self._error is not None:
                    raise self._error
            if not isinstance(reason, ConnectionError) or time.monotonic() >= deadline_s:
                hint = "set LEGATO_INTERFACE on it to the network that all members share"
                raise PeerLostError(
                    f"member {place.member} cannot reach member {peer} at {text(host, port)} ({reason}); {hint}",
                    rank=peer,
                )

    def _await(self, expected: list[int], deadline_s: float) -> None:
        def missing() -> list[int]:
            count = Counter(peer for peer, _ in self._arrived)
            return [peer for peer in expected if count[peer] < self._num_connections]

        with self._changed:
            left_s = max(deadline_s - time.monotonic(), 0.0)
            self._changed.wait_for(lambda: self._error is not None or not missing(), timeout=left_s)
            if self._error is not None:
                raise self._error
            if missing():
                names = ", ".join(map(str, missing()))
                raise DeadlineError(f"members {names} did not connect in time", rank=missing()[0])

    # ---- called from the listener's threads ----

    def _welcome(self, who: Who) -> str:
        with self._changed:
            # A peer may have heard the conductor's welcome before this member has.
            self._changed.wait_for(lambda: self._place or self._error, timeout=self._config.handshake_s)
            if self._place is None or self._error is not None:
                return "this member takes no connections now"
            if who.purpose != "mesh" or who.job != self._place.job:
                return "it belongs to another job"
            place, known = self._place, (who.member, who.index) in self._arrived
        if who.member <= place.member or who.member not in peers(self._deployment, place.member):
            return f"member {who.member} has no business dialling member {place.member}"
        if known or not 0 <= who.index < self._num_connections:
            return f"connection {who.index} of member {who.member} exists already"
        return ""

    def _take(self, connection: socket.socket, who: Who) -> None:
        with self._changed:
            stale = self._arrived.get((who.member, who.index))
            self._arrived[who.member, who.index] = connection
            self._changed.notify_all()
        if stale is not None:
            stale.close()
