"""The mesh: the ways by which members move data.

A worker has a way to every member that owns parts, and to every worker on its host: connections, or memory where both
are on one host. Of two members the one with the higher number dials. The listeners are there only while the mesh is
being built: afterwards nobody can knock.
"""

import logging
import threading
import time
from collections import Counter
from dataclasses import replace

from legato.core.shards import Deployment
from legato.errors import DeadlineError, LegatoError, PeerLostError, SecurityError
from legato.transports.rendezvous import hosts
from legato.transports.rendezvous.addresses import text
from legato.transports.rendezvous.join import JoinConfig, Joined, Who, dial, dial_here
from legato.transports.rendezvous.limits import check_files
from legato.transports.rendezvous.listener import Listener
from legato.transports.rendezvous.messages import Welcome
from legato.transports.rendezvous.shared_path import SharedPath, hand_over, take_over

_RETRY_S = 0.1

_log = logging.getLogger(__name__)

Way = Joined | SharedPath
Ways = tuple[dict[int, list[Joined]], dict[int, SharedPath]]
"""Connections, and memory, by peer."""


def peers(deployment: Deployment, member: int) -> list[int]:
    """The members that `member` has a way to."""
    owners = set(deployment.owners())

    def meet(one: int, other: int) -> bool:
        relayed = other < deployment.num_workers and deployment.neighbours(one, other)
        return one < deployment.num_workers and (other in owners or relayed)

    others = (other for other in range(deployment.num_members) if other != member)
    return [other for other in others if meet(member, other) or meet(other, member)]


class Mesh:
    """Listens from construction on; `connect` needs what the conductor's welcome says."""

    def __init__(
        self,
        host: str,
        port: int,
        config: JoinConfig,
        deployment: Deployment,
        *,
        num_connections: int,
        shared_memory: bool,
    ) -> None:
        self._config = config
        self._deployment = deployment
        self._num_connections = num_connections
        self._changed = threading.Condition()
        self._place: Welcome | None = None
        self._error: LegatoError | None = None
        self._arrived: dict[tuple[int, int], Way] = {}
        self._listener = Listener(host, port, config, welcome=self._welcome, take=self._take)
        self.identity = hosts.identity() if shared_memory else ""
        self._door = None
        if self.identity:
            try:
                self._door = Listener(None, 0, config, welcome=self._welcome, take=self._take_here)
            except BaseException:
                self._listener.close()
                raise

    @property
    def port(self) -> int:
        return self._listener.port

    @property
    def door(self) -> str:
        """Where members on this host knock; empty where none may."""
        return "" if self._door is None else self._door.door

    def connect(self, place: Welcome, deadline_s: float) -> Ways:
        """Every way of this member; an error names the first member that is missing."""
        with self._changed:
            self._place = place
            self._deployment = replace(self._deployment, hosts=place.hosts)
            self._changed.notify_all()
        others = peers(self._deployment, place.member)
        ways: dict[tuple[int, int], Way] = {}
        try:
            for peer in (peer for peer in others if peer < place.member):
                for index in range(self._num_ways(place, peer)):
                    ways[peer, index] = self._dial(place, peer, index, deadline_s)
            self._await(place, [peer for peer in others if peer > place.member], deadline_s)
        except BaseException:
            for way in ways.values():
                way.close()
            raise
        with self._changed:
            ways |= self._arrived
            self._arrived = {}
        connections: dict[int, list[Joined]] = {}
        shared: dict[int, SharedPath] = {}
        for (peer, _), way in sorted(ways.items(), key=lambda item: item[0]):
            if isinstance(way, SharedPath):
                shared[peer] = way
            else:
                connections.setdefault(peer, []).append(way)
        return connections, shared

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
        if self._door is not None:
            self._door.close()
        for way in self._arrived.values():
            way.close()
        self._arrived.clear()

    def _num_ways(self, place: Welcome, peer: int) -> int:
        return 1 if self._deployment.neighbours(place.member, peer) else self._num_connections

    def _dial(self, place: Welcome, peer: int, index: int, deadline_s: float) -> Way:
        """Reach a peer; again where it was too crowded to answer, until the deadline or the end of the job."""
        here = self._deployment.neighbours(place.member, peer)
        while True:
            try:
                return self._dial_once(place, peer, index, deadline_s)
            except (OSError, LegatoError) as error:
                if not isinstance(error, LegatoError):
                    check_files(error)
                reason = error
            with self._changed:
                self._changed.wait_for(lambda: self._error is not None, _RETRY_S)
                if self._error is not None:
                    raise self._error
            if not isinstance(reason, ConnectionError) or time.monotonic() >= deadline_s:
                where = "on this host" if here else f"at {text(*place.addresses[peer])}"
                hint = "LEGATO_SHARED_MEMORY=0" if here else "LEGATO_INTERFACE to the network that all members share"
                raise PeerLostError(
                    f"member {place.member} cannot reach member {peer} {where} ({reason}); set on it {hint}", rank=peer
                )

    def _dial_once(self, place: Welcome, peer: int, index: int, deadline_s: float) -> Way:
        who = Who("mesh", place.job, place.member, index, peer)
        if self._deployment.neighbours(place.member, peer):
            return hand_over(dial_here(place.doors[peer], who, self._config, deadline_s).socket)
        return dial(*place.addresses[peer], who, self._config, deadline_s)

    def _await(self, place: Welcome, expected: list[int], deadline_s: float) -> None:
        def missing() -> list[int]:
            count = Counter(peer for peer, _ in self._arrived)
            return [peer for peer in expected if count[peer] < self._num_ways(place, peer)]

        with self._changed:
            left_s = max(deadline_s - time.monotonic(), 0.0)
            self._changed.wait_for(lambda: self._error is not None or not missing(), timeout=left_s)
            if self._error is not None:
                raise self._error
            if missing():
                names = ", ".join(map(str, missing()))
                raise DeadlineError(f"members {names} did not connect in time", rank=missing()[0])

    # ---- called from the listeners' threads ----

    def _welcome(self, who: Who) -> str:
        with self._changed:
            # A peer may have heard the conductor's welcome before this member has.
            self._changed.wait_for(lambda: self._place or self._error, timeout=self._config.handshake_s)
            if self._place is None or self._error is not None:
                return "this member takes no connections now"
            if who.purpose != "mesh" or who.job != self._place.job:
                return "it belongs to another job"
            if who.listener != self._place.member:
                return f"it dials member {who.listener}, and this is member {self._place.member}"
            place, known = self._place, (who.member, who.index) in self._arrived
        if who.member <= place.member or who.member not in peers(self._deployment, place.member):
            return f"member {who.member} has no business dialling member {place.member}"
        if known or not 0 <= who.index < self._num_ways(place, who.member):
            return f"connection {who.index} of member {who.member} exists already"
        return ""

    def _take_here(self, joined: Joined, who: Who) -> None:
        try:
            self._take(take_over(joined.socket, self._config.handshake_s), who)
        except (OSError, LegatoError) as error:
            _log.warning("dropped member %d: %s", who.member, error)

    def _take(self, way: Way, who: Who) -> None:
        with self._changed:
            stale = self._arrived.get((who.member, who.index))
            self._arrived[who.member, who.index] = way
            self._changed.notify_all()
        if stale is not None:
            stale.close()
