"""Enrol a site once, by a token, and load what enrolment left.

Both private keys are made here and never leave (architecture.md, section 3). What the aggregator
answers counts only after it matches the token, which came from the operator by another way: the CA,
and the fingerprint of the operator's key, by which this site will judge manifests.
"""

import hmac
import json
from dataclasses import dataclass, field
from pathlib import Path

import grpc
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509 import Certificate

from edge_node.config import SiteConfig
from edge_node.store_schema import make_private_folder
from privacy.errors import PeerError, Reason, UsageError
from privacy.secagg.keys import suite_named
from privacy.secagg.signatures import (
    SignatureScheme,
    SigningKey,
    SoftwareSigner,
    sign,
    spki_of,
)
from tidegate import convert, pki, tokens
from tidegate.keys import (
    fingerprint,
    key_pem,
    load_key,
    load_signing_key,
    make_key,
    read_private,
    spki_der,
    write_private,
)
from tidegate.refusals import peer_error_of
from tidegate.requests import EnrolmentGrant, EnrolmentRequest
from tidegate.tokens import EnrolmentToken
from tidegate.v1 import federation_pb2 as pb

_ENROL = "/tidegate.v1.EnrolmentService/Enrol"
_TIMEOUT_S = 30.0


@dataclass(frozen=True)
class Credentials:
    """What a site holds after enrolment.

    Attributes:
        tls_key_pem: Private key of the site's certificate.
        certificate_pem: The certificate, from the consortium's CA.
        ca_pem: The trust root of TLS.
        operator_spki: The operator's key, pinned.
        signer: The signing key that the manifest pins.
        node_fingerprint: SHA-256 of the TLS key's SPKI.
        sites_address: Where sites dial, host:port.
    """

    tls_key_pem: bytes = field(repr=False)
    certificate_pem: bytes
    ca_pem: bytes
    operator_spki: bytes
    signer: SoftwareSigner
    node_fingerprint: bytes
    sites_address: str


def enrol(config: SiteConfig, token_text: str) -> Credentials:
    """Redeem a token: make both keys, have the TLS key certified, pin CA and operator key.

    May be repeated after a failure: the keys are kept, the token is used up only by a success.

    Raises:
        UsageError: The token is damaged or another site's, or the site is enrolled already.
        PeerError: The aggregator refused, or its answer does not match the token.
    """
    token = tokens.decode(token_text)
    if token.site_id != config.site_id:
        raise UsageError(
            f"the token is for site {token.site_id!r}, site.toml says {config.site_id!r}: use the"
            " token that the operator made for this site"
        )
    make_private_folder(config.folder)
    make_private_folder(config.keys)
    if (config.keys / "tls.pem").exists():
        raise UsageError(f"this site is enrolled already: {config.keys / 'tls.pem'} exists")
    tls_key = _kept_key(config.keys / "tls.key")
    signing_key = _kept_signing_key(
        config.keys / "signing.key", suite_named(token.suite).signatures
    )
    csr = pki.make_csr(tls_key, config.site_id)
    proof = pki.enrolment_message(tokens.hash_secret(token.secret), csr)
    request = EnrolmentRequest(
        secret=token.secret,
        csr_der=csr,
        signing_spki=spki_of(signing_key),
        signing_proof=sign(signing_key, proof),
    )
    address = config.enrolment_address or token.enrolment
    grant = _ask(address, token, request)
    _check_grant(grant, token, tls_key)
    _keep(config.keys, grant, {"sites": token.sites, "enrolment": token.enrolment})
    return load_credentials(config)


def load_credentials(config: SiteConfig) -> Credentials:
    """Load what enrolment left.

    Raises:
        UsageError: The site is not enrolled, or a file is missing, open to others or damaged.
    """
    keys = config.keys
    if not (keys / "tls.pem").exists():
        raise UsageError(
            f"site {config.site_id!r} is not enrolled: run `edge-node enrol --config"
            f" {config.path} --token-file FILE` with a token from the operator"
        )
    tls_key_pem = read_private(keys / "tls.key")
    try:
        addresses = json.loads(read_private(keys / "aggregator.json"))
        sites_address = config.sites_address or str(addresses["sites"])
    except (ValueError, KeyError, TypeError) as error:
        raise UsageError(f"{keys / 'aggregator.json'} is damaged: enrol again") from error
    return Credentials(
        tls_key_pem=tls_key_pem,
        certificate_pem=read_private(keys / "tls.pem"),
        ca_pem=read_private(keys / "ca.pem"),
        operator_spki=read_private(keys / "operator.spki"),
        signer=SoftwareSigner(load_signing_key(read_private(keys / "signing.key"))),
        node_fingerprint=fingerprint(spki_der(load_key(tls_key_pem))),
        sites_address=sites_address,
    )


def _ask(address: str, token: EnrolmentToken, request: EnrolmentRequest) -> EnrolmentGrant:
    trust = grpc.ssl_channel_credentials(root_certificates=token.ca_pem.encode())
    with grpc.secure_channel(address, trust) as channel:
        call = channel.unary_unary(
            _ENROL,
            request_serializer=pb.EnrolRequest.SerializeToString,
            response_deserializer=pb.EnrolResponse.FromString,
        )
        try:
            answer = call(convert.enrolment_request_to_wire(request), timeout=_TIMEOUT_S)
        except grpc.RpcError as error:
            raise peer_error_of(error, f"enrolment at {address}") from None
    return convert.enrolment_grant_from_wire(answer)


def _check_grant(
    grant: EnrolmentGrant, token: EnrolmentToken, tls_key: ec.EllipticCurvePrivateKey
) -> None:
    """Hold the answer against the token: another CA, operator or name would mean a swap."""
    if grant.ca_pem.strip() != token.ca_pem.encode().strip():
        raise PeerError(Reason.UNAUTHENTICATED, "the aggregator gave another CA than the token's")
    found = fingerprint(grant.operator_spki).hex()
    if not hmac.compare_digest(found, token.operator_fingerprint):
        raise PeerError(
            Reason.UNAUTHENTICATED,
            "the aggregator gave another operator key than the one the token names: do not go on,"
            " ask the operator",
        )
    if pki.role_of(grant.certificate_pem) != ("site", token.site_id):
        raise PeerError(Reason.UNAUTHENTICATED, "the certificate names another holder")
    if pki.certificate_spki(grant.certificate_pem) != spki_der(tls_key):
        raise PeerError(Reason.UNAUTHENTICATED, "the certificate is for another key")
    issuer = pki.load_certificate(grant.ca_pem)
    _check_issued(pki.load_certificate(grant.certificate_pem), issuer)


def _check_issued(certificate: Certificate, issuer: Certificate) -> None:
    try:
        certificate.verify_directly_issued_by(issuer)
    except (ValueError, TypeError, InvalidSignature) as error:
        raise PeerError(
            Reason.UNAUTHENTICATED, "the certificate was not issued by the token's CA"
        ) from error


def _kept_key(path: Path) -> ec.EllipticCurvePrivateKey:
    if not path.exists():
        write_private(path, key_pem(make_key()))
    return load_key(read_private(path))


def _kept_signing_key(path: Path, signatures: SignatureScheme) -> SigningKey:
    """Make the signing key that the consortium's suite asks for, or take the one made before.

    Raises:
        UsageError: That one is of another kind.
    """
    if not path.exists():
        write_private(path, key_pem(signatures.make_key()))
    key = load_signing_key(read_private(path))
    if not signatures.is_canonical(spki_of(key)):
        raise UsageError(
            f"{path} is no {signatures.key_kind} key, as the token's suite asks: remove it, and"
            " enrol again"
        )
    return key


def _keep(folder: Path, grant: EnrolmentGrant, addresses: dict[str, str]) -> None:
    """Write what was checked; the certificate last, as its presence says that all is there."""
    write_private(folder / "ca.pem", grant.ca_pem)
    write_private(folder / "operator.spki", grant.operator_spki)
    write_private(folder / "aggregator.json", json.dumps(addresses).encode())
    write_private(folder / "tls.pem", grant.certificate_pem)
