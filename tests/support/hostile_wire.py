"""The listener of a hostile aggregator: TLS on loopback, frames in and out, uploads kept.

It refuses nothing and checks nothing but its own bookkeeping; what is said is the test's choice.
"""

import asyncio
import hashlib
from dataclasses import dataclass

import grpc

from tests.support.hostile_consortium import identities
from tidegate import convert
from tidegate.convert import DEFAULT_LIMITS
from tidegate.v1 import federation_pb2, transfer_pb2

PATIENCE_S = 20.0
"""After so long a test that waits for a frame fails; nothing is measured by it."""


@dataclass(frozen=True)
class Uploaded:
    """A masked update that is here whole, and how often the site had been charged by then."""

    ctx: bytes
    data: bytes
    charges_at_first_byte: int


class HostileWire:
    """One listener, for one site.

    Attributes:
        said: Everything that the site ever said on its sessions, in order.
        uploads: Everything that it ever uploaded whole, in order.
        skipped: What came before what was waited for.
        content: What it may download, by digest.
        cut_uploads: How many chunks still break the upload that they are part of.
    """

    def __init__(self, me, charges):
        """Take the site's fingerprint, and what counts the charges in its ledger."""
        self.me, self._charges = me, charges
        self.said, self.uploads, self.skipped = [], [], []
        self.content = {}
        self.cut_uploads = 0
        self._inbox = asyncio.Queue()
        self._outgoing = None

    async def listen(self):
        """Open the listener; returns its address."""
        server = self._server = grpc.aio.server()
        session = grpc.stream_stream_rpc_method_handler(self._session)
        transfers = {
            "Upload": grpc.stream_unary_rpc_method_handler(self._upload),
            "UploadOffset": grpc.unary_unary_rpc_method_handler(self._upload_offset),
            "Download": grpc.unary_stream_rpc_method_handler(self._download),
        }
        server.add_generic_rpc_handlers(
            (
                _handler("FederationService", {"Session": session}),
                _handler("TransferService", transfers),
            )
        )
        ca_pem = identities().authority.certificate_pem()
        trust = grpc.ssl_server_credentials([identities().server], ca_pem, require_client_auth=True)
        port = server.add_secure_port("127.0.0.1:0", trust)
        await server.start()
        return f"127.0.0.1:{port}"

    async def close(self):
        await self._server.stop(None)

    async def _session(self, frames, context):
        outgoing = self._outgoing = asyncio.Queue()
        tasks = {
            asyncio.create_task(self._read(frames)),
            asyncio.create_task(_write(outgoing, context)),
        }
        _, running = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in running:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _read(self, frames):
        async for frame in frames:
            parsed = federation_pb2.SessionRequest.FromString(frame)
            message = convert.site_message_from_wire(parsed, self.me, DEFAULT_LIMITS)
            self.said.append(message)
            self._inbox.put_nowait(message)

    async def _upload(self, frames, context):
        header, data, charges = None, bytearray(), 0
        async for frame in frames:
            message = transfer_pb2.UploadRequest.FromString(frame)
            if header is None:
                header = convert.upload_header_from_wire(message)
                charges = self._charges()
                continue
            data += message.data
            if self.cut_uploads:
                self.cut_uploads -= 1
                await context.abort(grpc.StatusCode.UNAVAILABLE, "the link broke")
        assert hashlib.sha256(data).digest() == header.sha256
        upload = Uploaded(header.ctx, bytes(data), charges)
        self.uploads.append(upload)
        self._inbox.put_nowait(upload)
        answer = transfer_pb2.UploadResponse(received=len(data), sha256=header.sha256)
        return answer.SerializeToString()

    async def _upload_offset(self, frame, context):
        return transfer_pb2.UploadOffsetResponse(received=0).SerializeToString()

    async def _download(self, frame, context):
        data = self.content[transfer_pb2.DownloadRequest.FromString(frame).sha256]
        yield convert.download_chunk_frame(0, len(data), data)

    def hang_up(self):
        """End the session; the site will dial again."""
        self._outgoing.put_nowait(b"")

    def send_raw(self, frame):
        self._outgoing.put_nowait(frame)

    def send(self, message):
        self.send_raw(convert.aggregator_message_to_wire(message).SerializeToString())

    async def expect(self, kind):
        """Wait for the next message of a kind; what comes before it is left for `quiet`."""
        while True:
            message = await asyncio.wait_for(self._inbox.get(), PATIENCE_S)
            if isinstance(message, kind):
                return message
            self.skipped.append(message)

    async def expect_upload(self, number):
        """Wait for a vector by its number, from 0; it may have come while a session was begun."""
        while len(self.uploads) <= number:
            await self.expect(Uploaded)
        return self.uploads[number]


def _handler(service, methods):
    return grpc.method_handlers_generic_handler(f"tidegate.v1.{service}", methods)


async def _write(outgoing, context):
    while frame := await outgoing.get():
        await context.write(frame)
