"""Open the three listeners, write down where they are, and close them again.

Sites (mTLS, role site), enrolment (server TLS and a token) and operators (mTLS, role operator)
never share a listener: what one role may call does not exist on another's (architecture.md, 3).
"""

import asyncio
import json
import os
from dataclasses import dataclass

import grpc
import grpc.aio

from aggregator.config import AggregatorConfig
from aggregator.coordinator import Coordinator
from aggregator.enrolment_service import EnrolmentService
from aggregator.log import LOGGER
from aggregator.operator_service import OperatorService
from aggregator.site_service import SiteService
from aggregator.transfer_service import TransferService
from privacy.errors import UsageError
from tidegate.pki import read_private, write_private
from tidegate.v1 import federation_pb2_grpc, operator_pb2_grpc

ADDRESSES_FILE = "addresses.json"
_MESSAGE_SLACK_BYTES = 65_536
_KEEPALIVE_MS = 20_000
_ENROLMENT_BYTES = 65_536
_STOP_GRACE_S = 0.5
_STREAM_WINDOW_BYTES = 1 << 20
_MOST_WINDOW_BYTES = 1 << 30
_READ_BYTES = 1 << 18


@dataclass(frozen=True)
class Listeners:
    """The open listeners.

    Attributes:
        servers: Sites, enrolment, operator.
        addresses: host:port by name.
    """

    servers: tuple[grpc.aio.Server, ...]
    addresses: dict[str, str]

    async def stop(self) -> None:
        """Close all listeners; calls in flight get half a second."""
        await asyncio.gather(*(server.stop(_STOP_GRACE_S) for server in self.servers))


async def listen(config: AggregatorConfig, coordinator: Coordinator) -> Listeners:
    """Open the listeners and write ``addresses.json``.

    Raises:
        UsageError: A port is taken, or a key file is missing or open to others.
    """
    folder = config.folder
    key, certificate = read_private(folder / "tls.key"), read_private(folder / "tls.pem")
    ca_pem = coordinator.registry.ca_pem
    pairs = [(key, certificate)]
    mutual = grpc.ssl_server_credentials(pairs, ca_pem, require_client_auth=True)
    one_sided = grpc.ssl_server_credentials(pairs)
    most = config.limits.max_message_bytes + _MESSAGE_SLACK_BYTES

    sites = _server(most, config.limits.upload_window_bytes)
    sites.add_generic_rpc_handlers(
        (
            SiteService(coordinator.registry, coordinator.sessions, coordinator).handler(),
            TransferService(
                coordinator.registry, coordinator.spool, coordinator.shelf, coordinator
            ).handler(),
        )
    )
    enrolment = _server(_ENROLMENT_BYTES)
    federation_pb2_grpc.add_EnrolmentServiceServicer_to_server(
        EnrolmentService(coordinator.registry), enrolment
    )
    operator = _server(most)
    named = config.public_host or config.host
    ports = {
        "sites": _bind(sites, config.host, config.site_port, mutual),
        "enrolment": _bind(enrolment, config.host, config.enrolment_port, one_sided),
        "operator": _bind(operator, config.host, config.operator_port, mutual),
    }
    addresses = {name: _address(named, port) for name, port in ports.items()}
    service = OperatorService(coordinator, addresses["enrolment"], addresses["sites"])
    operator_pb2_grpc.add_OperatorServiceServicer_to_server(service, operator)
    servers = (sites, enrolment, operator)
    for server in servers:
        await server.start()
    listed = json.dumps({**addresses, "pid": os.getpid()}, indent=1).encode()
    write_private(folder / ADDRESSES_FILE, listed)
    LOGGER.info("listening: %s", ", ".join(f"{name} {at}" for name, at in addresses.items()))
    return Listeners(servers, addresses)


def _server(max_message_bytes: int, window_bytes: int = _STREAM_WINDOW_BYTES) -> grpc.aio.Server:
    return grpc.aio.server(
        options=(
            ("grpc.max_receive_message_length", max_message_bytes),
            ("grpc.max_send_message_length", -1),
            ("grpc.so_reuseport", 0),
            # Each upload stream buffers at most this much, whatever the link would carry: memory
            # must not grow with what the sites could send at once.
            ("grpc.http2.bdp_probe", 0),
            ("grpc.http2.lookahead_bytes", min(window_bytes, _MOST_WINDOW_BYTES)),
            ("grpc.experimental.tcp_max_read_chunk_size", _READ_BYTES),
            ("grpc.keepalive_time_ms", _KEEPALIVE_MS),
            ("grpc.keepalive_timeout_ms", _KEEPALIVE_MS),
            ("grpc.keepalive_permit_without_calls", 1),
            ("grpc.http2.max_pings_without_data", 0),
            ("grpc.http2.min_ping_interval_without_data_ms", 5_000),
        )
    )


def _bind(
    server: grpc.aio.Server, host: str, port: int, credentials: grpc.ServerCredentials
) -> int:
    try:
        return int(server.add_secure_port(_address(host, port), credentials))
    except RuntimeError as error:
        raise UsageError(
            f"cannot listen on {host}:{port}: is another aggregator running? ({error})"
        ) from error


def _address(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
