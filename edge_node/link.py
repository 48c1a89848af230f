"""Dial the aggregator: one mTLS channel with its calls, from the site outwards.

Nothing listens at a site. Frames are bounded by `tidegate.convert`, which alone turns them into
values.
"""

from collections.abc import AsyncIterable
from dataclasses import dataclass
from typing import Any

import grpc
import grpc.aio

from edge_node.config import SessionSettings
from edge_node.enrol import Credentials
from tidegate.v1 import federation_pb2, transfer_pb2

_SESSION = "/tidegate.v1.FederationService/Session"
_TRANSFER = "/tidegate.v1.TransferService/"
_MAX_FRAME_BYTES = 64 << 20


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
            # A proxy variable in the environment is not this site's configuration.
            ("grpc.enable_http_proxy", 0),
            ("grpc.initial_reconnect_backoff_ms", round(1000 * settings.backoff_s)),
            ("grpc.max_reconnect_backoff_ms", round(1000 * settings.backoff_max_s)),
        )
        channel = grpc.aio.secure_channel(credentials.sites_address, trust, options)
        return cls(
            channel=channel,
            session=channel.stream_stream(
                _SESSION,
                request_serializer=federation_pb2.SessionRequest.SerializeToString,
                response_deserializer=federation_pb2.SessionResponse.FromString,
            ),
            upload=channel.stream_unary(
                f"{_TRANSFER}Upload",
                request_serializer=transfer_pb2.UploadRequest.SerializeToString,
                response_deserializer=transfer_pb2.UploadResponse.FromString,
            ),
            upload_offset=channel.unary_unary(
                f"{_TRANSFER}UploadOffset",
                request_serializer=transfer_pb2.UploadOffsetRequest.SerializeToString,
                response_deserializer=transfer_pb2.UploadOffsetResponse.FromString,
            ),
            download=channel.unary_stream(
                f"{_TRANSFER}Download",
                request_serializer=transfer_pb2.DownloadRequest.SerializeToString,
                response_deserializer=transfer_pb2.DownloadResponse.FromString,
            ),
        )

    def chunks(
        self, request: transfer_pb2.DownloadRequest
    ) -> AsyncIterable[transfer_pb2.DownloadResponse]:
        """Start a download."""
        return self.download(request)
