"""Fetch content by its SHA-256 from the aggregator, resumably.

A message that has arrived is never asked for again: a broken stream goes on at the offset that it
reached. Bytes go from the message into the buffer that they are for.
"""

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
"""Tries in a row that bring nothing; one that brings something begins the count anew."""


async def fetch(link: Link, sha256: bytes, size: int) -> bytes:
    """Fetch whole content and check its digest.

    Args:
        link: To the aggregator.
        sha256: The content's name.
        size: Its length in bytes, as announced and bounded by the caller.

    Raises:
        PeerError: As ``fetch_into``.
    """
    content = bytearray(size)
    await fetch_into(link, sha256, memoryview(content))
    return bytes(content)


async def fetch_into(link: Link, sha256: bytes, target: memoryview) -> None:
    """Fetch whole content into a buffer of exactly its length, and check its digest.

    Args:
        link: To the aggregator.
        sha256: The content's name.
        target: Holds rubbish where this raises.

    Raises:
        PeerError: WRONG_DIGEST: the bytes are others, or too few; MALFORMED: more than announced,
            or out of order; or the aggregator's own reason.
    """
    digest = hashlib.sha256()
    held = tries = 0
    while held < len(target) and tries < _MAX_TRIES:
        before = held
        try:
            request = convert.download_request_to_wire(DownloadRequest(sha256, held))
            async for answer in link.download(request):
                chunk = convert.download_chunk_from_wire(answer, len(target))
                if chunk.offset != held:
                    raise PeerError(Reason.MALFORMED, "a download came out of order")
                target[held : held + len(chunk.data)] = chunk.data
                digest.update(chunk.data)
                held += len(chunk.data)
            break
        except grpc.aio.AioRpcError as error:
            if not is_passing(error):
                raise peer_error_of(error, f"download of {sha256[:4].hex()}") from None
            tries = tries + 1 if held == before else 0
            await asyncio.sleep(_RETRY_S)
    if held != len(target) or digest.digest() != sha256:
        raise PeerError(
            Reason.WRONG_DIGEST,
            f"{held} of {len(target)} bytes came for {sha256[:4].hex()}, or they are other bytes",
        )
