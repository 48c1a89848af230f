"""The sites' listener: the session stream, authenticated by certificate, frame by frame bounded.

A frame that is not well formed ends that site's session with a reason and touches nothing else.
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator
from typing import Any

import grpc
from google.protobuf.message import DecodeError

from aggregator.grpc_calls import AbortableContext, peer_certificate, refuse
from aggregator.log import LOGGER
from aggregator.registry import EnrolledSite, Registry
from aggregator.sessions import FRAME_BYTES, SessionEvents, Sessions, SiteSession, frame_of
from privacy.errors import PeerError, Reason
from tidegate import convert
from tidegate.messages import PROTOCOL, Hello, Refused, SiteMessage
from tidegate.v1 import federation_pb2 as pb

HELLO_WITHIN_S = 10.0
_GOODBYE_WITHIN_S = 1.0
_GOODBYE_FRAMES = 2
_SERVICE = "tidegate.v1.FederationService"
_END = b""
"""Put behind the last frame of a session: no message serialises to nothing."""


class StreamContext(AbortableContext):
    """What a stream handler of grpc.aio is given, as far as it is used."""

    async def write(self, message: bytes) -> None:
        """Send one frame."""


class SiteService:
    """``FederationService``: raw frames in and out, so that each is counted and parsed once."""

    def __init__(self, registry: Registry, sessions: Sessions, events: SessionEvents) -> None:
        """Take who may come in, where sessions live and who hears of them."""
        self._registry = registry
        self._sessions = sessions
        self._events = events

    def handler(self) -> "grpc.GenericRpcHandler[bytes, bytes]":
        """Return what a grpc.aio server is given."""
        session = grpc.stream_stream_rpc_method_handler(self.session)
        return grpc.method_handlers_generic_handler(_SERVICE, {"Session": session})

    async def session(self, frames: AsyncIterator[bytes], context: StreamContext) -> None:
        """Serve one site's session until either side ends it."""
        try:
            site = self._registry.authenticate(peer_certificate(context))
            hello = await self._read_hello(frames, site)
            session = self._sessions.open(site, hello, time.time())
        except PeerError as error:
            LOGGER.warning("session refused: %s", error)
            await refuse(context, error)
            return
        LOGGER.info("site %s connected (device %s)", site.site_id, hello.device)
        writer = asyncio.create_task(_write(session, context))
        reader = asyncio.create_task(self._read(session, frames))
        why = PeerError(Reason.TIMEOUT, "the connection ended")
        try:
            self._events.site_connected(session)
            ends: set[asyncio.Future[Any]] = {writer, reader, session.closed}
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
            if session.closed.done():
                why = session.closed.result()
                reader.cancel()  # nothing that comes from now on is listened to
                await _say_goodbye(session, writer, why)
        finally:
            for task in (writer, reader):
                task.cancel()
            # Before anything is waited for: where the connection broke, gRPC cancels this call as
            # well, at any moment, and the round must hear of the loss all the same.
            if self._sessions.drop(session, time.time()):
                LOGGER.info("site %s disconnected: %s", site.site_id, why)
                self._events.site_disconnected(session, why)
            _, fault = await asyncio.gather(writer, reader, return_exceptions=True)
            if isinstance(fault, Exception):
                LOGGER.error("site %s: session broke", site.site_id, exc_info=fault)
        if session.closed.done():
            LOGGER.warning("site %s: session closed: %s", site.site_id, why)
            await refuse(context, why)

    async def _read_hello(self, frames: AsyncIterator[bytes], site: EnrolledSite) -> Hello:
        try:
            async with asyncio.timeout(HELLO_WITHIN_S):
                frame = await anext(frames)
        except TimeoutError:
            raise PeerError(Reason.TIMEOUT, f"no Hello within {HELLO_WITHIN_S:.0f} s") from None
        except StopAsyncIteration:
            raise PeerError(Reason.MALFORMED, "the session ended before Hello") from None
        message = self._parse(frame, site)
        if not isinstance(message, Hello):
            raise PeerError(Reason.MALFORMED, "the first message of a session must be Hello")
        if message.protocol != PROTOCOL:
            raise PeerError(
                Reason.MALFORMED,
                f"the site speaks {message.protocol}, this aggregator {PROTOCOL}: update the older",
            )
        return message

    async def _read(self, session: SiteSession, frames: AsyncIterator[bytes]) -> None:
        site = session.site
        async for frame in frames:
            try:
                message = self._parse(frame, site)
            except PeerError as error:
                session.close(error)
                return
            if isinstance(message, Hello):
                session.close(PeerError(Reason.MALFORMED, "Hello came twice on one session"))
                return
            try:
                self._events.site_said(session, message, len(frame) + FRAME_BYTES)
            except PeerError as error:
                # Late and repeated frames are part of a life with drop-outs: dropped and noted.
                late = error.reason is Reason.WRONG_CONTEXT  # the last share of most rounds
                level = logging.DEBUG if late else logging.INFO
                name = type(message).__name__
                LOGGER.log(level, "site %s: %s dropped: %s", site.site_id, name, error)

    def _parse(self, frame: bytes, site: EnrolledSite) -> SiteMessage:
        limits = self._registry.wire_limits
        if len(frame) > limits.max_message_bytes:
            raise PeerError(
                Reason.TOO_LARGE,
                f"a message of {len(frame)} bytes; {limits.max_message_bytes} allowed",
            )
        try:
            parsed = pb.SessionRequest.FromString(frame)
        except DecodeError:
            raise PeerError(Reason.MALFORMED, "a frame is no SessionRequest") from None
        return convert.site_message_from_wire(parsed, site.fingerprint, limits)


async def _say_goodbye(session: SiteSession, writer: "asyncio.Task[None]", why: PeerError) -> None:
    """Send the reason as the last frame; a site that does not read gets the status only."""
    if session.outgoing.maxsize - session.outgoing.qsize() < _GOODBYE_FRAMES:
        # Of no use on a session that ends, and the writer must come to its end by itself.
        while not session.outgoing.empty():
            session.outgoing.get_nowait()
    text = convert.printable(str(why.args[0]))
    with contextlib.suppress(asyncio.QueueFull):  # a queue of one takes the reason alone
        session.outgoing.put_nowait(frame_of(Refused(str(why.reason), text)))
        session.outgoing.put_nowait(_END)
    await asyncio.wait({writer}, timeout=_GOODBYE_WITHIN_S)


async def _write(session: SiteSession, context: StreamContext) -> None:
    # Not to be cancelled for a goodbye: gRPC cannot write again on a stream with a write cut off.
    while frame := await session.outgoing.get():
        await context.write(frame)
