"""Bytes that are no protobuf: the session ends and is dialled again, nothing else happens."""

import asyncio

import grpc.aio
import pytest

from edge_node import commands as ec
from edge_node.config import SessionSettings
from edge_node.download import fetch
from edge_node.link import Link
from edge_node.session import Session
from edge_node.upload import MaskedBytes, send_update
from privacy.errors import PeerError
from privacy.secagg.messages import AbortRequest
from tidegate.convert import aggregator_message_to_wire
from tidegate.requests import UploadHeader

GARBAGE = b"\xff\xff\xff"
GOOD = aggregator_message_to_wire(AbortRequest(b"c" * 32, "")).SerializeToString()
PREFIX = "/tidegate.v1."


class Babbler(grpc.GenericRpcHandler):
    """A server that answers a good frame, then bytes that parse as nothing."""

    def service(self, details):
        if details.method.endswith("Session"):
            return grpc.stream_stream_rpc_method_handler(self.session)
        if details.method.endswith("Download"):
            return grpc.unary_stream_rpc_method_handler(self.download)
        if details.method.endswith("UploadOffset"):
            return grpc.unary_unary_rpc_method_handler(self.garbage)
        return grpc.stream_unary_rpc_method_handler(self.garbage)

    async def session(self, _requests, _context):
        yield GOOD
        yield GARBAGE

    async def download(self, _request, _context):
        yield GARBAGE

    async def garbage(self, _request, _context):
        return GARBAGE


async def talk_to_babbler(scenario):
    server = grpc.aio.server()
    server.add_generic_rpc_handlers((Babbler(),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    channel = grpc.aio.insecure_channel(f"127.0.0.1:{port}")
    try:
        return await asyncio.wait_for(scenario(Link.over(channel)), 30)
    finally:
        await channel.close()
        await server.stop(None)


def test_a_session_of_garbage_is_dialled_again():
    async def scenario(link):
        told, twice = [], asyncio.Event()

        def dispatch(event):
            told.append(event)
            if told.count(ec.Disconnected()) == 2:
                twice.set()

        settings = SessionSettings(0.01, 0.01, 20.0, 10.0)
        keeping = asyncio.create_task(Session(link, settings, dispatch).keep())
        waiting = asyncio.create_task(twice.wait())
        await asyncio.wait({keeping, waiting}, return_when=asyncio.FIRST_COMPLETED)
        assert not keeping.done(), "a bad frame must not end the daemon"
        keeping.cancel()
        await asyncio.gather(keeping, waiting, return_exceptions=True)
        return told

    told = asyncio.run(talk_to_babbler(scenario))
    good = AbortRequest(b"c" * 32, "")
    assert told[:6] == 2 * [ec.Connected(), good, ec.Disconnected()]


@pytest.mark.parametrize("resume", [False, True])
def test_transfers_of_garbage_are_refused(resume):
    async def scenario(link):
        with pytest.raises(PeerError):
            await fetch(link, b"s" * 32, 10)
        masked = MaskedBytes(b"12", b"d" * 32)
        header = UploadHeader(b"c" * 32, len(masked.data), masked.sha256)
        with pytest.raises(PeerError):
            await send_update(link, header, masked, resume=resume)

    asyncio.run(talk_to_babbler(scenario))
