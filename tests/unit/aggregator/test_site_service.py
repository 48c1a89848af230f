"""The end of a session reaches the round, whenever gRPC takes the call away."""

import asyncio

import pytest

from aggregator.registry import EnrolledSite
from aggregator.sessions import Sessions
from aggregator.site_service import SiteService
from tidegate import convert
from tidegate import messages as m
from tidegate.convert import DEFAULT_LIMITS

ME = b"f" * 32
HELLO = convert.site_message_to_wire(m.Hello(m.PROTOCOL, bytes(16), "cpu", ()))


class Registry:
    wire_limits = DEFAULT_LIMITS

    def authenticate(self, certificate_pem):
        return EnrolledSite("bank-1", b"n" * 32, b"spki", ME, 1)


class Events:
    def __init__(self):
        self.connected, self.gone = asyncio.Event(), 0

    def site_connected(self, session):
        self.connected.set()

    def site_disconnected(self, session, why):
        self.gone += 1


class Call:
    """What a handler is given; nothing that is written ever arrives."""

    def auth_context(self):
        return {"x509_pem_cert": (b"pem",)}

    async def write(self, frame):
        await asyncio.Event().wait()


@pytest.mark.parametrize("turns", range(8))
def test_a_call_that_is_cancelled_while_its_stream_ends_is_noted_as_gone(turns):
    """A killed site ends the stream of its frames and the call itself, in either order.

    gRPC cancels the handler some turns of the loop after the last frame: also while it cleans up.
    """

    async def scenario():
        events, sessions, end = Events(), Sessions(8), asyncio.Event()

        async def frames():
            yield HELLO.SerializeToString()
            await end.wait()

        service = SiteService(Registry(), sessions, events)
        handler = asyncio.create_task(service.session(frames(), Call()))
        await asyncio.wait_for(events.connected.wait(), 20)
        await asyncio.sleep(0)
        end.set()
        for _ in range(turns):
            await asyncio.sleep(0)
        handler.cancel()
        await asyncio.gather(handler, return_exceptions=True)
        assert events.gone == 1
        assert sessions.get(ME) is None

    asyncio.run(scenario())
