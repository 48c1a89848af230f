"""The operator's side of the operator API: its folder, its channel, its errors.

The operator folder (made by ``tidegate init``) holds the operator's keys and ``client.toml``, which
says where the aggregator's operator listener is. The command line speaks this API and nothing else.
"""

import json
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import grpc

from privacy.errors import PeerError, UsageError
from privacy.secagg.keys import P256, suite_named
from tidegate.pki import read_private
from tidegate.refusals import peer_error_of
from tidegate.v1 import operator_pb2_grpc

CLIENT_FILE = "client.toml"
MAX_MESSAGE_BYTES = 8 << 20


@dataclass(frozen=True)
class OperatorFolder:
    """Where the operator's keys lie, how the aggregator is reached, which suite the sites use."""

    path: Path
    name: str
    addresses_file: Path | None
    address: str
    suite: str = P256.name

    @classmethod
    def load(cls, path: Path) -> "OperatorFolder":
        """Read ``client.toml`` of an operator folder.

        Raises:
            UsageError: The folder or its file is missing or malformed.
        """
        file = path / CLIENT_FILE
        try:
            table = tomllib.loads(file.read_text())
        except FileNotFoundError:
            raise UsageError(
                f"{file} does not exist: make a consortium with `tidegate init`, or name its"
                " operator folder with --operator"
            ) from None
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise UsageError(f"{file}: {error}") from error
        unknown = set(table) - {"name", "address", "addresses_file", "suite"}
        if unknown or not ({"address", "addresses_file"} & set(table)):
            raise UsageError(
                f"{file}: wants `name` and one of `address` (host:port) and `addresses_file`"
                + (f"; unknown: {', '.join(sorted(unknown))}" if unknown else "")
            )
        suite = str(table.get("suite", P256.name))
        suite_named(suite)
        listed = table.get("addresses_file")
        return cls(
            path=path,
            name=str(table.get("name", "operator")),
            addresses_file=(path / str(listed)).resolve() if listed else None,
            address=str(table.get("address", "")),
            suite=suite,
        )

    def operator_address(self) -> str:
        """Return host:port of the operator listener; a local aggregator writes it when it listens.

        Raises:
            UsageError: The aggregator has not written its addresses.
        """
        if self.addresses_file is None:
            return self.address
        try:
            return str(json.loads(self.addresses_file.read_text())["operator"])
        except FileNotFoundError:
            raise UsageError(
                f"{self.addresses_file} does not exist: start the aggregator with `tidegate up`"
            ) from None

    def signing_key_file(self) -> Path:
        """Return the file of the operator key, which never leaves this folder."""
        return self.path / "operator.key"

    def operator_spki(self) -> bytes:
        """Return the operator's public key (SPKI, DER)."""
        return (self.path / "operator.spki").read_bytes()


@contextmanager
def operator_api(folder: OperatorFolder) -> Iterator[operator_pb2_grpc.OperatorServiceStub]:
    """Open the mTLS channel to the operator listener and turn its refusals into our errors.

    Raises:
        PeerError: The aggregator refused, with its reason and sentence.
        UsageError: It cannot be reached.
    """
    address = folder.operator_address()
    credentials = grpc.ssl_channel_credentials(
        root_certificates=(folder.path / "ca.pem").read_bytes(),
        private_key=read_private(folder.path / "tls.key"),
        certificate_chain=(folder.path / "tls.pem").read_bytes(),
    )
    options = [
        ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
        ("grpc.enable_http_proxy", 0),
    ]
    with grpc.secure_channel(address, credentials, options=options) as channel:
        try:
            yield operator_pb2_grpc.OperatorServiceStub(channel)
        except grpc.RpcError as error:
            raise explained(error, address) from error


def explained(error: grpc.RpcError, address: str) -> PeerError | UsageError:
    """Turn a gRPC failure into an error for people."""
    if error.code() is grpc.StatusCode.UNAVAILABLE:
        return UsageError(
            f"the aggregator at {address} does not answer ({error.details()}): is it running"
            " (`tidegate up`), and is this operator folder of the same consortium?"
        )
    return peer_error_of(error)
