"""The live sessions of sites: one a site, each with a bounded queue of outgoing frames.

Frames are serialised once, also where several sites get the same one. A site that does not read is
dropped rather than waited for, so that one slow link cannot fill the aggregator's memory.
"""

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Protocol

from aggregator.log import LOGGER
from aggregator.registry import EnrolledSite
from privacy.errors import PeerError, Reason
from privacy.secagg.messages import Fingerprint
from tidegate import convert
from tidegate.messages import AggregatorMessage, Hello, SiteMessage

FRAME_BYTES = 5
"""What gRPC puts before each message; counted as traffic."""


def frame_of(message: AggregatorMessage) -> bytes:
    """Serialise a message for any number of sites."""
    return convert.aggregator_message_to_wire(message).SerializeToString()


@dataclass(eq=False)
class SiteSession:
    """One site's connection.

    Attributes:
        site: As enrolled.
        hello: What it said first.
        outgoing: Frames that wait to be written.
        closed: Set once the session is to end, with the reason for the site.
    """

    site: EnrolledSite
    hello: Hello
    outgoing: "asyncio.Queue[bytes]"
    closed: "asyncio.Future[PeerError]" = field(repr=False)

    def send(self, message: AggregatorMessage) -> int:
        """Queue a message; returns its size on the wire."""
        return self.send_frame(frame_of(message))

    def send_frame(self, frame: bytes) -> int:
        """Queue a serialised message; a site whose queue is full is dropped."""
        try:
            self.outgoing.put_nowait(frame)
        except asyncio.QueueFull:
            self.close(
                PeerError(
                    Reason.TIMEOUT,
                    f"{self.outgoing.maxsize} messages wait: the site does not read its session",
                )
            )
        return len(frame) + FRAME_BYTES

    def close(self, why: PeerError) -> None:
        """End the session; the site is told why."""
        if not self.closed.done():
            self.closed.set_result(why)


class SessionEvents(Protocol):
    """Who is told what happens on sessions; every call is short and does not block."""

    def site_connected(self, session: SiteSession) -> None:
        """Note that a site said Hello."""

    def site_said(self, session: SiteSession, message: SiteMessage, size: int) -> None:
        """Take a message of ``size`` bytes on the wire.

        Raises:
            PeerError: It is dropped; the session goes on.
        """

    def site_disconnected(self, session: SiteSession, why: PeerError) -> None:
        """Note that a session is over."""


class Sessions:
    """All live sessions, by site."""

    def __init__(self, outgoing_messages: int) -> None:
        """Take the bound of each queue."""
        self._outgoing_messages = outgoing_messages
        self._live: dict[Fingerprint, SiteSession] = {}
        self.last_seen_s: dict[str, float] = {}

    def open(self, site: EnrolledSite, hello: Hello, now_s: float) -> SiteSession:
        """Make the site's one live session.

        The same daemon (its ``instance_id`` says so) takes its session over when it reconnects
        before the old connection is found dead. Another one is refused: two daemons that share an
        identity would each reveal shares that the other must not (SA-1, attacks).

        Raises:
            PeerError: POLICY, another daemon of this site is connected.
        """
        old = self._live.get(site.fingerprint)
        if old is not None:
            if old.hello.instance_id != hello.instance_id:
                LOGGER.warning(
                    "site %s: a second daemon with the same identity was refused", site.site_id
                )
                raise PeerError(
                    Reason.POLICY,
                    f"another daemon of site {site.site_id} is connected: stop one of the two;"
                    " if you run only one, its key is in other hands: have the site revoked",
                )
            old.close(PeerError(Reason.REPLAY, "a newer session of the same daemon took over"))
        loop = asyncio.get_running_loop()
        session = SiteSession(
            site, hello, asyncio.Queue(self._outgoing_messages), loop.create_future()
        )
        self._live[site.fingerprint] = session
        self.last_seen_s[site.site_id] = now_s
        return session

    def drop(self, session: SiteSession, now_s: float) -> bool:
        """Forget a session that ended; False where a newer one has taken its place."""
        self.last_seen_s[session.site.site_id] = now_s
        if self._live.get(session.site.fingerprint) is not session:
            return False
        del self._live[session.site.fingerprint]
        return True

    def get(self, site: Fingerprint) -> SiteSession | None:
        """Return a site's live session."""
        return self._live.get(site)

    def live(self) -> Iterable[SiteSession]:
        """Return all live sessions."""
        return tuple(self._live.values())
