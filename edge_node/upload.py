"""Stage 8: send a masked update in chunks, resumably; one byte-identical upload per attempt.

The caller has charged the ledger and committed slot 2 before. The bytes are a function of slot 2,
so a repeated upload is the same one, and the aggregator says how much of it it holds.
"""

import asyncio
import hashlib
from collections.abc import AsyncIterator
from dataclasses import dataclass

import grpc.aio
import numpy as np

from edge_node.link import Link
from privacy.errors import PeerError, Reason, UsageError
from privacy.noise import NoisedUpdate
from privacy.secagg.masking import mask_and_pack
from privacy.secagg.messages import MaskTerm
from tidegate import convert
from tidegate.checkpoint import CHUNK_BYTES
from tidegate.refusals import is_passing, peer_error_of
from tidegate.requests import UploadHeader
from tidegate.v1 import transfer_pb2

_INLINE_LENGTH = 1 << 18
"""Shorter vectors are masked on the spot: a hand-over to a thread costs more than it frees."""
_RETRY_S = 0.5
_WIDTHS = (b"<i1", b"<i2", b"<i4", b"<i8")
"""How a stored update begins: numpy's name of its integers."""

_WIDTH_BYTES = 3


@dataclass(frozen=True)
class MaskedBytes:
    """A masked update as it goes over the wire: exactly B bits a value."""

    data: bytes | memoryview
    sha256: bytes


async def mask_update(
    update: NoisedUpdate, terms: tuple[MaskTerm, ...], ring_bits: int
) -> MaskedBytes:
    """Mask and pack an update; a long one in a thread, so that the session stays answered."""
    if update.vector_D.size < _INLINE_LENGTH:
        return _mask(update, terms, ring_bits)
    return await asyncio.to_thread(_mask, update, terms, ring_bits)


async def send_update(
    link: Link, header: UploadHeader, masked: MaskedBytes, *, resume: bool
) -> None:
    """Upload until the aggregator holds every byte; a lost connection is waited out.

    The caller cancels this when the attempt is dead.

    Args:
        link: To the aggregator.
        header: Names the attempt and these bytes.
        masked: What `mask_update` gave.
        resume: Ask first how much is there already.

    Raises:
        PeerError: The aggregator refused the upload, or its receipt is for other bytes.
    """
    offset = 0
    while True:
        try:
            if resume:
                request = transfer_pb2.UploadOffsetRequest(ctx=header.ctx)
                held = await link.upload_offset(request)
                offset = convert.upload_offset_from_wire(held, len(masked.data))
            answer = await link.upload(_requests(header, masked, offset))
        except grpc.aio.AioRpcError as error:
            if not is_passing(error):
                raise peer_error_of(error, "upload of the masked update") from None
            resume = True
            await asyncio.sleep(_RETRY_S)
            continue
        receipt = convert.upload_receipt_from_wire(answer)
        if receipt.received != len(masked.data) or receipt.sha256 != masked.sha256:
            raise PeerError(
                Reason.WRONG_DIGEST, "the aggregator's receipt is for other bytes than were sent"
            )
        return


def _mask(update: NoisedUpdate, terms: tuple[MaskTerm, ...], ring_bits: int) -> MaskedBytes:
    data = mask_and_pack(update, terms, ring_bits)
    return MaskedBytes(data, hashlib.sha256(data).digest())


async def _requests(header: UploadHeader, masked: MaskedBytes, offset: int) -> AsyncIterator[bytes]:
    yield convert.upload_header_to_wire(header).SerializeToString()
    view = memoryview(masked.data)
    for begin in range(offset, len(view), CHUNK_BYTES):
        yield convert.upload_chunk_frame(begin, view[begin : begin + CHUNK_BYTES])


def update_to_bytes(update: NoisedUpdate) -> bytes:
    """Write an update's integers for the store: whole, before any reduction, as narrow as they fit.

    What a step must make durable before it may be answered is a good part of a round with a large
    model: most integers have fewer than 16 bits.
    """
    values_D = update.vector_D
    low, high = (int(values_D.min()), int(values_D.max())) if values_D.size else (0, 0)
    spans = {width: np.iinfo(width.decode()) for width in _WIDTHS}
    width = next(w for w, span in spans.items() if span.min <= low and high <= span.max)
    return width + values_D.astype(width.decode(), copy=False).tobytes()


def update_from_bytes(raw: bytes) -> NoisedUpdate:
    """Read what `update_to_bytes` wrote.

    Raises:
        UsageError: It wrote no such bytes.
    """
    width = raw[:_WIDTH_BYTES]
    if width not in _WIDTHS or (len(raw) - _WIDTH_BYTES) % int(width[-1:]):
        raise UsageError("a stored update is none of this version: let the attempt end, then go on")
    narrow_D = np.frombuffer(raw, dtype=width.decode(), offset=_WIDTH_BYTES)
    return NoisedUpdate(narrow_D.astype("<i8"))
