"""Enrolment and bulk transfers: protobuf <-> ``tidegate.requests``.

Chunk data is taken as protobuf gives it, with no copy.
"""

from tidegate.convert import bounds
from tidegate.convert.bounds import DEFAULT_LIMITS, Limits, malformed
from tidegate.requests import (
    Chunk,
    DownloadRequest,
    EnrolmentGrant,
    EnrolmentRequest,
    UploadHeader,
    UploadReceipt,
)
from tidegate.v1 import federation_pb2, transfer_pb2

MAX_PEM_BYTES = 16_384
MAX_CSR_BYTES = 8192
MAX_SPKI_BYTES = 256
_MAX_SECRET_CHARS = 128
_INT32_BYTES = 4


def enrolment_request_from_wire(message: federation_pb2.EnrolRequest) -> EnrolmentRequest:
    """Take a site's request to enrol."""
    return EnrolmentRequest(
        secret=bounds.text(message.token, "enrol.token", _MAX_SECRET_CHARS),
        csr_der=bounds.blob(message.csr_der, MAX_CSR_BYTES, "enrol.csr_der"),
        signing_spki=bounds.blob(message.signing_spki, MAX_SPKI_BYTES, "enrol.signing_spki"),
        signing_proof=bounds.signature(message.signing_proof, "enrol.signing_proof"),
    )


def enrolment_request_to_wire(request: EnrolmentRequest) -> federation_pb2.EnrolRequest:
    """Give a request to enrol."""
    return federation_pb2.EnrolRequest(
        token=request.secret,
        csr_der=request.csr_der,
        signing_spki=request.signing_spki,
        signing_proof=request.signing_proof,
    )


def enrolment_grant_from_wire(message: federation_pb2.EnrolResponse) -> EnrolmentGrant:
    """Take the aggregator's answer to an enrolment."""
    return EnrolmentGrant(
        site_id=bounds.slug(message.site_id, "enrol.site_id"),
        certificate_pem=bounds.blob(
            message.certificate_pem, MAX_PEM_BYTES, "enrol.certificate_pem"
        ),
        ca_pem=bounds.blob(message.ca_pem, MAX_PEM_BYTES, "enrol.ca_pem"),
        operator_spki=bounds.blob(message.operator_spki, MAX_SPKI_BYTES, "enrol.operator_spki"),
    )


def enrolment_grant_to_wire(grant: EnrolmentGrant) -> federation_pb2.EnrolResponse:
    """Give the answer to an enrolment."""
    return federation_pb2.EnrolResponse(
        site_id=grant.site_id,
        certificate_pem=grant.certificate_pem,
        ca_pem=grant.ca_pem,
        operator_spki=grant.operator_spki,
    )


def upload_header_from_wire(
    message: transfer_pb2.UploadRequest, limits: Limits = DEFAULT_LIMITS
) -> UploadHeader:
    """Take the first message of an upload, which names it."""
    if not message.HasField("header"):
        raise malformed("upload.header", "must come in the first message")
    if message.data or message.offset:
        raise malformed("upload.header", "must come alone")
    header = message.header
    most = _INT32_BYTES * limits.max_vector_length
    return UploadHeader(
        ctx=bounds.sha256(header.ctx, "upload.header.ctx"),
        size=bounds.whole(header.size, 1, most, "upload.header.size"),
        sha256=bounds.sha256(header.sha256, "upload.header.sha256"),
        epsilon_spent=bounds.finite(
            header.epsilon_spent, bounds.MAX_EPSILON, "upload.header.epsilon_spent"
        ),
    )


def upload_header_to_wire(header: UploadHeader) -> transfer_pb2.UploadRequest:
    """Give the first message of an upload."""
    return transfer_pb2.UploadRequest(
        header=transfer_pb2.UploadHeader(
            ctx=header.ctx,
            size=header.size,
            sha256=header.sha256,
            epsilon_spent=header.epsilon_spent,
        )
    )


def upload_chunk_from_wire(
    message: transfer_pb2.UploadRequest, size: int, limits: Limits = DEFAULT_LIMITS
) -> Chunk:
    """Take a further message of an upload of ``size`` bytes; it must lie within them."""
    if message.HasField("header"):
        raise malformed("upload.header", "must come in the first message only")
    data = bounds.blob(message.data, limits.max_message_bytes, "upload.data")
    return Chunk(bounds.whole(message.offset, 0, size - len(data), "upload.offset"), data, size)


def upload_chunk_frame(offset: int, data: bytes | memoryview) -> bytes:
    """Serialise a further message of an upload, with one copy of the data."""
    return b"".join((_number(2, offset), *_run(3, data)))


def upload_receipt_from_wire(message: transfer_pb2.UploadResponse) -> UploadReceipt:
    """Take the aggregator's receipt; the digest is empty until the upload is whole."""
    if message.sha256:
        bounds.sha256(message.sha256, "upload.sha256")
    received = bounds.whole(message.received, 0, 1 << 40, "upload.received")
    return UploadReceipt(received, message.sha256)


def upload_receipt_to_wire(receipt: UploadReceipt) -> transfer_pb2.UploadResponse:
    """Give a receipt."""
    return transfer_pb2.UploadResponse(received=receipt.received, sha256=receipt.sha256)


def upload_offset_request_from_wire(message: transfer_pb2.UploadOffsetRequest) -> bytes:
    """Take the ``ctx`` of the upload that is asked for."""
    return bounds.sha256(message.ctx, "upload_offset.ctx")


def upload_offset_from_wire(message: transfer_pb2.UploadOffsetResponse, size: int) -> int:
    """Take how many bytes of an upload of ``size`` bytes the aggregator holds."""
    return bounds.whole(message.received, 0, size, "upload_offset.received")


def download_request_from_wire(message: transfer_pb2.DownloadRequest) -> DownloadRequest:
    """Take a request for the content of a digest."""
    return DownloadRequest(
        sha256=bounds.sha256(message.sha256, "download.sha256"),
        offset=bounds.whole(message.offset, 0, 1 << 40, "download.offset"),
    )


def download_request_to_wire(request: DownloadRequest) -> transfer_pb2.DownloadRequest:
    """Give a request for the content of a digest."""
    return transfer_pb2.DownloadRequest(sha256=request.sha256, offset=request.offset)


def download_chunk_from_wire(
    message: transfer_pb2.DownloadResponse, size: int, limits: Limits = DEFAULT_LIMITS
) -> Chunk:
    """Take a chunk of a download of ``size`` bytes, as the offer or request stated it.

    A peer that sends more than was announced is refused before anything is written.
    """
    if message.size != size:
        raise malformed("download.size", f"must be the {size} bytes that were announced")
    data = bounds.blob(message.data, limits.max_message_bytes, "download.data", least=0)
    return Chunk(bounds.whole(message.offset, 0, size - len(data), "download.offset"), data, size)


def download_chunk_frame(offset: int, size: int, data: bytes | memoryview) -> bytes:
    """Serialise a chunk of a download: what protobuf would give, with one copy of the data."""
    return b"".join((_number(1, offset), _number(2, size), *_run(3, data)))


def _number(field: int, value: int) -> bytes:
    """Serialise an unsigned field; protobuf leaves zero out."""
    return _varint(field << 3) + _varint(value) if value else b""


def _run(field: int, data: bytes | memoryview) -> tuple[bytes | memoryview, ...]:
    """Serialise a field of bytes; protobuf leaves an empty one out."""
    return (_varint(field << 3 | 2) + _varint(len(data)), data) if len(data) else ()


def _varint(value: int) -> bytes:
    groups = bytearray()
    while value > 0x7F:
        groups.append(value & 0x7F | 0x80)
        value >>= 7
    groups.append(value)
    return bytes(groups)
