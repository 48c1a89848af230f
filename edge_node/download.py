"""Fetch content by its SHA-256 from the aggregator, resumably: model versions and app bundles."""

import asyncio
import hashlib

import grpc.aio

from edge_node.link import Link
from privacy.errors import PeerError, Reason
from tidegate import convert
from tidegate.refusals import is_passing, peer_error_of
from tidegate.requests import DownloadRequest

_RETRY_S = 0.5
_MAX_TRIES = 20


async def fetch(link: Link, sha256: bytes, size: int) -> bytes:
    """Fetch whole content and check its digest; a broken stream goes on where it ended.

    Args:
        link: To the aggregator.
        sha256: The content's name.
        size: Its length in bytes, as announced and bounded by the caller.

    Raises:
        PeerError: WRONG_DIGEST: the bytes are others; MALFORMED: more than announced; or the
            aggregator's own reason.
    """
    content = bytearray()
    for _ in range(_MAX_TRIES):
        try:
            await _append(link, sha256, size, content)
            break
        except grpc.aio.AioRpcError as error:
            if not is_passing(error):
                raise peer_error_of(error, f"download of {sha256[:4].hex()}") from None
            await asyncio.sleep(_RETRY_S)
    if len(content) != size or hashlib.sha256(content).digest() != sha256:
        raise PeerError(
            Reason.WRONG_DIGEST,
            f"{len(content)} of {size} bytes came for {sha256[:4].hex()}, or they are other bytes",
        )
    return bytes(content)


async def _append(link: Link, sha256: bytes, size: int, content: bytearray) -> None:
    request = convert.download_request_to_wire(DownloadRequest(sha256, len(content)))
    async for answer in link.download(request):
        chunk = convert.download_chunk_from_wire(answer, size)
        if chunk.offset != len(content):
            raise PeerError(Reason.MALFORMED, "a download came out of order")
        content += chunk.data
