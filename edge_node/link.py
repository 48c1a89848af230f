"""Dial the aggregator: one mTLS channel with its calls, from the site outwards.

Nothing listens at a site. Frames are bounded by `tidegate.convert`, which alone turns them into
values.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import grpc
import grpc.aio
from google.protobuf.message import DecodeError, Message

from edge_node.config import SessionSettings
from edge_node.enrol import Credentials
from tidegate.v1 import federation_pb2, transfer_pb2

_SESSION = "/tidegate.v1.FederationService/Session"
_TRANSFER = "/tidegate.v1.TransferService/"
_MAX_FRAME_BYTES = 64 << 20
_WINDOW_BYTES = 8 << 20
"""May be on its way to the site, unread, in one download: 1 Gb/s at 67 ms, chunks uncompressed."""
_Frame = TypeVar("_Frame", bound=Message)


@dataclass(frozen=True)
class Link:
    """A channel and its four calls."""

    channel: grpc.aio.Channel
    session: "grpc.aio.StreamStreamMultiCallable[Any, Any]"
    upload: "grpc.aio.StreamUnaryMultiCallable[Any, Any]"
    upload_offset: "grpc.aio.UnaryUnaryMultiCallable[Any, Any]"
    download: "grpc.aio.UnaryStreamMultiCallable[Any, Any]"

    @classmethod
    def dial(cls, credentials: Credentials, settings: SessionSettings) -> "Link":
        """Open a channel; it connects with the first call."""
        trust = grpc.ssl_channel_credentials(
            root_certificates=credentials.ca_pem,
            private_key=credentials.tls_key_pem,
            certificate_chain=credentials.certificate_pem,
        )
        options = (
            ("grpc.keepalive_time_ms", round(1000 * settings.keepalive_s)),
            ("grpc.keepalive_timeout_ms", round(1000 * settings.keepalive_s)),
            ("grpc.keepalive_permit_without_calls", 0),
            ("grpc.http2.max_pings_without_data", 0),
            ("grpc.max_receive_message_length", _MAX_FRAME_BYTES),
            ("grpc.max_send_message_length", _MAX_FRAME_BYTES),
            ("grpc.http2.lookahead_bytes", _WINDOW_BYTES),
            # A proxy variable in the environment is not this site's configuration.
            ("grpc.enable_http_proxy", 0),
            ("grpc.initial_reconnect_backoff_ms", round(1000 * settings.backoff_s)),
            ("grpc.max_reconnect_backoff_ms", round(1000 * settings.backoff_max_s)),
        )
        return cls.over(grpc.aio.secure_channel(credentials.sites_address, trust, options))

    @classmethod
    def over(cls, channel: grpc.aio.Channel) -> "Link":
        """Name the four calls of a channel."""
        return cls(
            channel=channel,
            session=channel.stream_stream(
                _SESSION,
                request_serializer=federation_pb2.SessionRequest.SerializeToString,
                response_deserializer=_reader(federation_pb2.SessionResponse),
            ),
            upload=channel.stream_unary(
                f"{_TRANSFER}Upload",
                request_serializer=None,  # frames come serialised, with one copy of their data
                response_deserializer=_reader(transfer_pb2.UploadResponse),
            ),
            upload_offset=channel.unary_unary(
                f"{_TRANSFER}UploadOffset",
                request_serializer=transfer_pb2.UploadOffsetRequest.SerializeToString,
                response_deserializer=_reader(transfer_pb2.UploadOffsetResponse),
            ),
            download=channel.unary_stream(
                f"{_TRANSFER}Download",
                request_serializer=transfer_pb2.DownloadRequest.SerializeToString,
                response_deserializer=_reader(transfer_pb2.DownloadResponse),
            ),
        )


def _reader(kind: type[_Frame]) -> Callable[[bytes], _Frame]:
    """Give what parses frames of a kind; bytes that are none become an empty frame.

    gRPC would turn an exception here into a None where a frame is due. An empty frame breaks the
    bounds in `tidegate.convert`, which refuses it like any other bad one.
    """

    def read(raw: bytes) -> _Frame:
        try:
            return kind.FromString(raw)
        except DecodeError:
            return kind()

    return read
