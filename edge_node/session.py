"""Keep the one session to the aggregator: dial, talk, dial again.

A failed session is dialled again after a wait that doubles, with jitter, so that a hundred sites do
not come back in one second. Nothing polls: both sides push.
"""

import asyncio
import secrets
from collections.abc import AsyncIterator, Callable

import grpc
import grpc.aio

from edge_node.commands import Connected, Disconnected, ParticipantEvent
from edge_node.config import SessionSettings
from edge_node.link import Link
from edge_node.log import warning
from privacy.errors import PeerError
from tidegate import convert
from tidegate.convert import Limits
from tidegate.messages import SiteMessage
from tidegate.refusals import peer_error_of
from tidegate.v1 import federation_pb2 as pb

Dispatch = Callable[[ParticipantEvent], None]

_LASTING_S = 10.0
"""A session that lived this long starts the waits from the beginning."""


class Backoff:
    """How long to wait before dialling again."""

    def __init__(self, first_s: float, longest_s: float) -> None:
        """Begin with the first wait."""
        self._first_s = first_s
        self._longest_s = longest_s
        self._next_s = first_s

    def reset(self) -> None:
        """Start again from the first wait."""
        self._next_s = self._first_s

    def next_s(self, jitter: float) -> float:
        """Give the next wait.

        Args:
            jitter: In [0, 1): where between half and the whole of it the wait falls.
        """
        wait_s = self._next_s * (0.5 + jitter / 2)
        self._next_s = min(2 * self._next_s, self._longest_s)
        return wait_s


class Session:
    """The site's end of ``FederationService.Session``."""

    def __init__(self, link: Link, settings: SessionSettings, dispatch: Dispatch) -> None:
        """Take the channel, the waits, and who is told what comes in."""
        self._link = link
        self._dispatch = dispatch
        self._backoff = Backoff(settings.backoff_s, settings.backoff_max_s)
        self._outgoing: asyncio.Queue[pb.SessionRequest] | None = None
        self.limits: Limits = convert.DEFAULT_LIMITS

    def send(self, message: SiteMessage) -> None:
        """Queue a message; without a session it is dropped, for states are sent anew."""
        if self._outgoing is not None:
            self._outgoing.put_nowait(convert.site_message_to_wire(message))

    async def keep(self) -> None:
        """Dial and talk until cancelled."""
        clock = asyncio.get_running_loop().time
        while True:
            began_s = clock()
            try:
                await self._talk()
                why = "the aggregator ended the session"
            except grpc.aio.AioRpcError as error:
                why = str(peer_error_of(error, "session"))
            except PeerError as error:
                why = str(error)
            if clock() - began_s > _LASTING_S:
                self._backoff.reset()
            wait_s = self._backoff.next_s(secrets.randbelow(1000) / 1000)
            warning("session ended", why=why, dial_again_s=wait_s)
            await asyncio.sleep(wait_s)

    async def _talk(self) -> None:
        """Hold one session from Hello to its end."""
        self._outgoing = asyncio.Queue()
        call = self._link.session(_drain(self._outgoing))
        try:
            self._dispatch(Connected())
            async for frame in call:
                message = convert.aggregator_message_from_wire(frame, self.limits)
                self._dispatch(message)
        finally:
            self._outgoing = None
            call.cancel()
            self._dispatch(Disconnected())


async def _drain(queue: "asyncio.Queue[pb.SessionRequest]") -> AsyncIterator[pb.SessionRequest]:
    while True:
        yield await queue.get()
