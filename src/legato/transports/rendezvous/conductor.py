"""The conductor: membership, address exchange and agreement; it lives beside rank 0.

It only carries: `Agreement` decides. One thread waits for all connections at once, so no member can hold up another.
"""

import collections
import contextlib
import ipaddress
import logging
import secrets
import selectors
import socket
import threading
import time
from dataclasses import replace

from legato.errors import JobError, LegatoError, MismatchError, ProtocolError
from legato.transports.rendezvous import forks
from legato.transports.rendezvous import messages as m
from legato.transports.rendezvous.addresses import interface_of, resolve, text
from legato.transports.rendezvous.agreement import Agreement, Outgoing, Phase
from legato.transports.rendezvous.join import JoinConfig, Joined, Who
from legato.transports.rendezvous.keys import KeyDoor, make_key
from legato.transports.rendezvous.listener import Listener
from legato.transports.rendezvous.member import MemberConfig
from legato.transports.rendezvous.session_keys import Stamps

_MAX_OUTBOX_BYTES = 4 * m.MAX_MESSAGE_BYTES
_FLUSH_S = 1.0

_log = logging.getLogger(__name__)


class _Link:
    """One member's connection."""

    def __init__(self, joined: Joined, hello_until_s: float) -> None:
        joined.socket.setblocking(False)
        self.socket = joined.socket
        self.peer = text(*joined.socket.getpeername()[:2])
        self.inbox = m.Inbox(joined.keys.receiving)
        self.outbox = bytearray()
        self._stamps = Stamps(joined.keys.sending)
        self.member: int | None = None
        self.hello_until_s = hello_until_s

    @property
    def is_open(self) -> bool:
        return self.socket.fileno() >= 0

    def post(self, data: bytes) -> None:
        """Leave a message in the outbox."""
        self.outbox += data + self._stamps.next(data)

    def flush(self) -> None:
        """Send what the socket takes."""
        if self.outbox:
            try:
                del self.outbox[: self.socket.send(self.outbox)]
            except BlockingIOError:
                return


class Conductor:
    """Runs from construction until everybody has left, or `close`."""

    def __init__(self, config: MemberConfig, common: tuple[tuple[str, str], ...] = ()) -> None:
        """`config` is rank 0's; `common` are names and values on which all members must agree."""
        self._config = config
        now_s = time.monotonic()
        self._agreement = Agreement(
            deployment=config.deployment,
            common=common,
            job=secrets.token_hex(8),
            join_timeout_s=config.join_timeout_s,
            timeout_s=config.timeout_s,
            now_s=now_s,
            evicts=config.evicts,
        )
        self._report_at_s = now_s + config.report_s
        self._links: dict[int, _Link] = {}
        self._strangers: set[_Link] = set()
        self._arrivals: collections.deque[Joined] = collections.deque()
        self._closing = False
        self._selector = selectors.DefaultSelector()
        try:
            self._wake_receiver, self._wake_sender = socket.socketpair()
        except OSError:
            self._selector.close()
            raise
        forks.in_children(self._close_own)
        self._selector.register(self._wake_receiver, selectors.EVENT_READ, None)
        self._key_door: KeyDoor | None = None
        try:
            self._open()
        except BaseException:
            self._close_own()
            raise
        host = self._listener.host
        self._where = f"{text(host, self.port)}, interface {interface_of(host)}"
        self._thread = threading.Thread(target=self._run, name=f"legato-conductor:{self.port}", daemon=True)
        self._thread.start()

    def _open(self) -> None:
        """Listen; where there is no key yet, make one and hand it out."""
        config, join = self._config, self._config.join
        host = _bind_host(config.conductor_host, join)
        join.check_host(host)
        key = make_key() if join.lacks_key else join.key
        join = replace(join, key=key)
        self._listener = Listener(host, config.conductor_port, join, welcome=self._welcome, take=self._take)
        if key is not None and config.join.lacks_key:
            try:
                self._key_door = KeyDoor(self.port, key)
            except BaseException:
                self._listener.close()
                raise

    @property
    def port(self) -> int:
        return self._listener.port

    def close(self) -> None:
        """End it now, for everybody. Can be called twice."""
        self._closing = True
        self._wake()
        self._thread.join()

    def wait(self, timeout_s: float) -> bool:
        """Until everybody has left; False when the time ran out first."""
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    # ---- called from the listener's threads ----

    def _welcome(self, who: Who) -> str:
        return "" if who.purpose == "conductor" else f"a conductor is here, not what {who.purpose!r} needs"

    def _take(self, joined: Joined, who: Who) -> None:
        del who
        self._arrivals.append(joined)
        self._wake()

    def _wake(self) -> None:
        with contextlib.suppress(OSError):  # it is over already
            self._wake_sender.send(b"\0")

    # ---- called from the conductor's thread ----

    def _run(self) -> None:
        try:
            while not self._closing and self._agreement.phase is not Phase.OVER:
                for key, events in self._selector.select(self._patience_s()):
                    if key.data is None:
                        self._wake_receiver.recv(4096)
                    else:
                        self._attend(key.data, events)
                self._adopt()
                self._keep_time()
        except Exception as defect:  # noqa: BLE001 - every member is told
            # Nobody may train on without a conductor: no plan, no tensor and no loss would be heard of any more.
            _log.exception("a defect of legato ends the job")
            self._announce(defect)
        finally:
            self._shut_down()

    def _patience_s(self) -> float:
        now_s = time.monotonic()
        times = [self._agreement.deadline_s(), *(link.hello_until_s for link in self._strangers)]
        if self._is_waiting():
            times.append(self._report_at_s)
        # One day when nothing is due: select takes no infinity.
        return max(min((time_s for time_s in times if time_s is not None), default=now_s + 86400.0) - now_s, 0.0)

    def _is_waiting(self) -> bool:
        return self._agreement.phase is Phase.GATHERING and not self._agreement.is_doomed

    def _adopt(self) -> None:
        while self._arrivals:
            joined = self._arrivals.popleft()
            try:
                link = _Link(joined, time.monotonic() + self._config.join.handshake_s)
                self._selector.register(link.socket, selectors.EVENT_READ, link)
            except OSError as error:
                _log.warning("dropped a peer that had just joined: %s", error)
                joined.close()
            else:
                self._strangers.add(link)

    def _keep_time(self) -> None:
        now_s = time.monotonic()
        for link in [link for link in self._strangers if link.hello_until_s <= now_s]:
            self._drop(link, "it did not say hello in time")
        self._post(self._agreement.expire(now_s))
        if self._is_waiting() and self._report_at_s <= now_s:
            self._report_at_s = now_s + self._config.report_s
            words, left_s = self._agreement.roster.words(), self._agreement.left_s(now_s)
            _log.warning("%s (waiting at %s, %.0f s left)", words, self._where, left_s)

    def _attend(self, link: _Link, events: int) -> None:
        """Read and write what one connection allows."""
        try:
            if events & selectors.EVENT_WRITE:
                link.flush()
                self._watch(link)
            if events & selectors.EVENT_READ:
                data = link.socket.recv(1 << 16)
                if not data:
                    self._drop(link, "its connection ended")
                    return
                for message in link.inbox.feed(data):
                    if link.is_open:  # an earlier message may have been its last
                        self._hear(link, message)
        except (OSError, ProtocolError) as error:
            self._drop(link, str(error))

    def _hear(self, link: _Link, message: m.Message) -> None:
        if link.member is not None:
            self._post(self._agreement.received(link.member, message, time.monotonic()))
        elif isinstance(message, m.Hello):
            self._greet(link, message)
        else:
            raise ProtocolError(f"it began with a {type(message).__name__} message")

    def _greet(self, link: _Link, hello: m.Hello) -> None:
        try:
            member, answers = self._agreement.hello(hello)
        except LegatoError as error:
            self._send(link, m.encode(m.Fatal(m.ErrorText.of(error))))
            self._drop(link, str(error))
            if isinstance(error, MismatchError) and not self._agreement.is_doomed:
                self._post(self._agreement.doom(error))
            return
        link.member = member
        self._strangers.discard(link)
        self._links[member] = link
        roster = self._agreement.roster
        _log.info("%s joined from %s: %s", roster.name(member), link.peer, roster.words())
        self._post(answers)

    def _post(self, outgoing: list[Outgoing]) -> None:
        if outgoing and self._agreement.phase is Phase.OVER:
            # Before anybody hears that the job is over: who starts a new one must not find the old one's door open.
            self._close_doors()
        for target, message in outgoing:
            links = [link for member, link in self._links.items() if target in (None, member)]
            data = m.encode(message)
            for link in links:
                self._send(link, data)

    def _send(self, link: _Link, data: bytes) -> None:
        link.post(data)
        try:
            link.flush()
        except OSError as error:
            self._drop(link, str(error))
            return
        if len(link.outbox) > _MAX_OUTBOX_BYTES:
            self._drop(link, f"it has not read the last {len(link.outbox)} bytes")
            return
        self._watch(link)

    def _watch(self, link: _Link) -> None:
        writing = selectors.EVENT_WRITE if link.outbox else 0
        self._selector.modify(link.socket, selectors.EVENT_READ | writing, link)

    def _drop(self, link: _Link, reason: str) -> None:
        if not link.is_open:
            return  # a message that was sent while it was being dropped
        if link.member is None:
            _log.warning("dropped %s: %s", link.peer, reason)
        else:
            _log.info("%s left: %s", self._agreement.roster.name(link.member), reason)
        self._selector.unregister(link.socket)
        link.socket.close()
        self._strangers.discard(link)
        if link.member is None:
            return
        del self._links[link.member]
        self._post(self._agreement.gone(link.member, reason))

    def _announce(self, defect: Exception) -> None:
        """Leave the reason in every outbox, without a step through what may have failed."""
        words = f"a defect of legato ended the conductor ({defect!r:.200}); rank 0's log has its traceback"
        for link in self._links.values():
            link.post(m.encode(m.Fatal(m.ErrorText.of(JobError(words, rank=0)))))

    def _close_doors(self) -> None:
        self._listener.close()
        if self._key_door is not None:
            self._key_door.close()

    def _shut_down(self) -> None:
        self._close_doors()
        for link in self._links.values():
            try:
                link.socket.settimeout(_FLUSH_S)
                link.socket.sendall(link.outbox)
            except OSError as error:
                _log.info("%s left: %s", link.peer, error)
        for link in (*self._links.values(), *self._strangers):
            link.socket.close()
        for joined in self._arrivals:
            joined.close()
        self._close_own()

    def _close_own(self) -> None:
        self._selector.close()
        self._wake_receiver.close()
        self._wake_sender.close()


def _bind_host(host: str, join: JoinConfig) -> str:
    """The address to listen at for members that dial `host`.

    The host's own name often means 127.0.1.1 on the host itself, and in a container its outer address is nobody's
    here: both are reached from outside all the same, so then every interface listens.
    """
    address = resolve(host)[0]
    parsed = ipaddress.ip_address(address)
    literal = host in ("localhost", address)
    may_widen = join.key is not None or join.insecure
    if (parsed.is_loopback and (literal or not may_widen)) or (not parsed.is_loopback and _is_local(address)):
        return address
    return "::" if parsed.version == 6 else "0.0.0.0"


def _is_local(address: str) -> bool:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        try:
            probe.bind((address, 0))
        except OSError:
            return False
    return True
