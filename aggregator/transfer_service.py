"""Bulk bytes at the sites' listener: resumable uploads into the spool, downloads by digest."""

from collections.abc import AsyncIterator
from typing import Protocol, TypeVar

import grpc
from google.protobuf.message import DecodeError

from aggregator.grpc_calls import AbortableContext, peer_certificate, refuse
from aggregator.log import LOGGER
from aggregator.registry import EnrolledSite, Registry
from aggregator.sessions import FRAME_BYTES
from aggregator.shelf import Content, ContentShelf
from aggregator.spool import Spool, Upload
from privacy.errors import PeerError, Reason
from tidegate import convert
from tidegate.checkpoint import CHUNK_BYTES
from tidegate.requests import DownloadRequest, UploadReceipt
from tidegate.v1 import transfer_pb2 as pb

_SERVICE = "tidegate.v1.TransferService"
_Request = TypeVar("_Request", pb.UploadRequest, pb.UploadOffsetRequest, pb.DownloadRequest)


class TransferEvents(Protocol):
    """Who is told about transfers; every call is short and does not block."""

    def upload_completed(
        self, site: EnrolledSite, ctx: bytes, sha256: bytes, epsilon_spent: float
    ) -> None:
        """Take note that a masked update is here whole, its digest checked.

        Raises:
            PeerError: The attempt does not want it any more.
        """

    def transferred(self, site: EnrolledSite, up: int, down: int) -> None:
        """Count bytes on the wire."""


class TransferService:
    """``TransferService`` over raw messages, so that each is counted and parsed once."""

    def __init__(
        self, registry: Registry, spool: Spool, shelf: ContentShelf, events: TransferEvents
    ) -> None:
        """Take who may come in, where uploads go, what may be downloaded and who hears of it."""
        self._registry = registry
        self._spool = spool
        self._shelf = shelf
        self._events = events

    def handler(self) -> "grpc.GenericRpcHandler[bytes, bytes]":
        """Return what a grpc.aio server is given."""
        methods = {
            "Upload": grpc.stream_unary_rpc_method_handler(self.upload),
            "UploadOffset": grpc.unary_unary_rpc_method_handler(self.upload_offset),
            "Download": grpc.unary_stream_rpc_method_handler(self.download),
        }
        return grpc.method_handlers_generic_handler(_SERVICE, methods)

    async def upload(self, frames: AsyncIterator[bytes], context: AbortableContext) -> bytes:
        """Take one masked update, whole or a part of it."""
        try:
            site = self._registry.authenticate(peer_certificate(context))
            return await self._take(frames, site)
        except PeerError as error:
            LOGGER.info("upload refused: %s", error)
            await refuse(context, error)
            raise

    async def upload_offset(self, frame: bytes, context: AbortableContext) -> bytes:
        """Say how many bytes of an upload are here."""
        try:
            site = self._registry.authenticate(peer_certificate(context))
            request = _parse(pb.UploadOffsetRequest, frame)
            ctx = convert.upload_offset_request_from_wire(request)
            received = self._spool.received(ctx, site.site_id)
        except PeerError as error:
            await refuse(context, error)
            raise
        return pb.UploadOffsetResponse(received=received).SerializeToString()

    async def download(self, frame: bytes, context: AbortableContext) -> AsyncIterator[bytes]:
        """Send a content from an offset on."""
        try:
            site = self._registry.authenticate(peer_certificate(context))
            request = convert.download_request_from_wire(_parse(pb.DownloadRequest, frame))
            content = self._content(request, site)
        except PeerError as error:
            LOGGER.info("download refused: %s", error)
            await refuse(context, error)
            return
        self._events.transferred(site, len(frame) + FRAME_BYTES, 0)
        for offset in range(request.offset, content.size, CHUNK_BYTES) or (request.offset,):
            part = content.read(offset, CHUNK_BYTES)
            chunk = convert.download_chunk_frame(offset, content.size, part)
            self._events.transferred(site, 0, len(chunk) + FRAME_BYTES)
            yield chunk

    def _content(self, request: DownloadRequest, site: EnrolledSite) -> Content:
        content = self._shelf.get(request.sha256, site.fingerprint)
        if request.offset > content.size:
            raise PeerError(Reason.MALFORMED, "the offset lies behind the content's end")
        return content

    async def _take(self, frames: AsyncIterator[bytes], site: EnrolledSite) -> bytes:
        limits = self._registry.wire_limits
        upload: Upload | None = None
        ctx, stream, size, spent = b"", 0, 0, 0.0
        async for frame in frames:
            self._events.transferred(site, len(frame) + FRAME_BYTES, 0)
            message = _parse(pb.UploadRequest, frame)
            if upload is None:
                header = convert.upload_header_from_wire(message, limits)
                ctx, size, spent = header.ctx, header.size, header.epsilon_spent
                upload = self._spool.begin(ctx, site.site_id, size, header.sha256)
                stream = upload.stream
                continue
            chunk = convert.upload_chunk_from_wire(message, size, limits)
            self._spool.write(upload, stream, chunk.offset, chunk.data)
        if upload is None:
            raise PeerError(Reason.MALFORMED, "an upload without a header")
        if upload.whole:
            self._events.upload_completed(site, ctx, upload.sha256, spent)
        receipt = UploadReceipt(upload.received, upload.sha256 if upload.whole else b"")
        answer = convert.upload_receipt_to_wire(receipt).SerializeToString()
        self._events.transferred(site, 0, len(answer) + FRAME_BYTES)
        return answer


def _parse(kind: type[_Request], frame: bytes) -> _Request:
    try:
        return kind.FromString(frame)
    except DecodeError:
        raise PeerError(Reason.MALFORMED, f"a frame is no {kind.__name__}") from None
