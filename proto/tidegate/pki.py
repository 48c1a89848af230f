"""Make and judge the certificates of a consortium, and give its keys: P-256 throughout.

Here: the consortium CA and the three kinds of certificate it issues; the keys themselves come from
``tidegate.keys``, whose names this module hands on. Not here: who may enrol (``tidegate.tokens``,
the aggregator's registry), which keys a consortium pinned (``tidegate.manifest``). A certificate
says which role its holder plays, in one SAN URI ``tidegate://<role>/<name>``, and the CA alone
writes it: a CSR's own subject and extensions are ignored. TLS keys and signing keys are never the
same key (secure-aggregation.md, Suites).
"""

import datetime as dt
import ipaddress
import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from privacy.errors import PeerError, Reason, UsageError
from privacy.secagg.encoding import hash_of
from tidegate.keys import (
    EcdsaSigner,
    fingerprint,
    key_pem,
    load_key,
    load_spki,
    make_key,
    node_id,
    public_spki,
    read_private,
    spki_der,
    verify,
    write_private,
)
from tidegate.names import NAME, NAME_RULE

__all__ = [
    "Authority",
    "EcdsaSigner",
    "Validity",
    "certificate_spki",
    "check_csr",
    "enrolment_message",
    "fingerprint",
    "issue_operator_cert",
    "issue_server_cert",
    "issue_site_cert_from_csr",
    "key_pem",
    "load_authority",
    "load_certificate",
    "load_key",
    "load_spki",
    "make_ca",
    "make_csr",
    "make_key",
    "node_id",
    "public_spki",
    "read_private",
    "role_of",
    "spki_der",
    "verify",
    "write_private",
]

DAY_S = 86_400
CA_VALID_S = 3650 * DAY_S
LEAF_VALID_S = 365 * DAY_S
"""Members' certificates hold a year, as this version knows no renewal but a new consortium."""

BACKDATE_S = 300
"""Certificates start this long before they are issued: clocks of sites are not exact."""

ROLES = ("site", "operator", "aggregator")
_MAX_CSR_BYTES = 8192


@dataclass(frozen=True)
class Authority:
    """The consortium's certificate authority: it names members, it cannot make them trusted."""

    key: ec.EllipticCurvePrivateKey = field(repr=False)
    certificate: x509.Certificate

    def certificate_pem(self) -> bytes:
        """Return the CA certificate as PEM, the trust root of TLS at every member."""
        return self.certificate.public_bytes(serialization.Encoding.PEM)


@dataclass(frozen=True)
class Validity:
    """From when on, in Unix seconds, and for how many seconds a certificate holds.

    Without ``valid_s`` a CA holds ten years and a member a year.
    """

    now_s: float
    valid_s: int | None = None

    def end_s(self, usual_s: int) -> float:
        """Return when the certificate ends, where ``usual_s`` is the time for its kind."""
        return self.now_s + (usual_s if self.valid_s is None else self.valid_s)


def load_authority(ca_key_pem: bytes, ca_pem: bytes) -> Authority:
    """Read the CA from its two files.

    Raises:
        UsageError: One of them is no PEM, or they do not belong together.
    """
    key = load_key(ca_key_pem)
    try:
        certificate = x509.load_pem_x509_certificate(ca_pem)
    except ValueError:
        raise UsageError("ca.pem holds no PEM certificate; restore it from a backup") from None
    if public_spki(certificate.public_key()) != spki_der(key):
        raise UsageError("ca.key and ca.pem are not a pair; restore both from the same backup")
    return Authority(key, certificate)


def make_ca(name: str, validity: Validity) -> Authority:
    """Make a consortium CA: a self-signed P-256 certificate that may sign leaves only."""
    _check_name(name, "consortium name")
    key = make_key()
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, f"Tidegate CA {name}")])
    usage = _key_usage(signs_certificates=True)
    ski = x509.SubjectKeyIdentifier.from_public_key(key.public_key())
    builder = (
        _builder(subject, subject, key.public_key(), validity)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(usage, critical=True)
        .add_extension(ski, critical=False)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(ski), critical=False
        )
    )
    return Authority(key, builder.sign(key, hashes.SHA256()))


def issue_server_cert(
    ca: Authority,
    public_key: ec.EllipticCurvePublicKey,
    hosts: Sequence[str],
    name: str,
    validity: Validity,
) -> bytes:
    """Issue the aggregator's certificate for the hosts (names or addresses) it is dialled by; PEM.

    Raises:
        UsageError: No host, or one that is neither a DNS name nor an IP address.
    """
    if not hosts:
        raise UsageError("the aggregator's certificate needs at least one host; pass --host")
    names: list[x509.GeneralName] = [_host_name(host) for host in hosts]
    return _issue(ca, public_key, ("aggregator", name), names, validity)


def issue_operator_cert(
    ca: Authority, public_key: ec.EllipticCurvePublicKey, name: str, validity: Validity
) -> bytes:
    """Issue an operator's client certificate; PEM."""
    return _issue(ca, public_key, ("operator", name), [], validity)


def make_csr(key: ec.EllipticCurvePrivateKey, site_id: str) -> bytes:
    """Make the CSR for a site's TLS key; DER. The name in it only helps a reader."""
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, site_id)])
    builder = x509.CertificateSigningRequestBuilder().subject_name(subject)
    return builder.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.DER)


def check_csr(csr_der: bytes) -> ec.EllipticCurvePublicKey:
    """Return the public key of a CSR after checking that the asker holds its private half.

    Raises:
        PeerError: No CSR or not P-256 (MALFORMED), too long (TOO_LARGE), or not signed by its own
            key (BAD_SIGNATURE).
    """
    if len(csr_der) > _MAX_CSR_BYTES:
        raise PeerError(Reason.TOO_LARGE, f"the CSR has more than {_MAX_CSR_BYTES} bytes")
    try:
        csr = x509.load_der_x509_csr(csr_der)
        key = csr.public_key()
    except (ValueError, UnsupportedAlgorithm):
        raise PeerError(Reason.MALFORMED, "the CSR is no PKCS #10 request in DER") from None
    public_spki(key)
    try:
        signed = csr.is_signature_valid
    except (ValueError, UnsupportedAlgorithm):
        signed = False
    if not signed or not isinstance(key, ec.EllipticCurvePublicKey):
        raise PeerError(Reason.BAD_SIGNATURE, "the CSR is not signed by the key it names")
    return key


def issue_site_cert_from_csr(
    ca: Authority, csr_der: bytes, site_id: str, validity: Validity
) -> bytes:
    """Issue a site's client certificate for the key in a CSR; PEM.

    The site id comes from the redeemed token: the CSR's own subject and extensions are ignored, or
    a site could ask for another's name or for an operator's role.

    Raises:
        PeerError: As ``check_csr``.
    """
    return _issue(ca, check_csr(csr_der), ("site", site_id), [], validity)


def load_certificate(data: bytes) -> x509.Certificate:
    """Read one certificate from PEM or DER.

    Raises:
        PeerError: The bytes are neither (MALFORMED).
    """
    try:
        if data.lstrip().startswith(b"-----BEGIN"):
            return x509.load_pem_x509_certificate(data)
        return x509.load_der_x509_certificate(data)
    except (ValueError, UnsupportedAlgorithm):
        raise PeerError(Reason.MALFORMED, "the certificate is neither PEM nor DER") from None


def certificate_spki(data: bytes) -> bytes:
    """Return the SubjectPublicKeyInfo (DER) of the key that a certificate names."""
    try:
        return public_spki(load_certificate(data).public_key())
    except (ValueError, UnsupportedAlgorithm):
        raise PeerError(Reason.MALFORMED, "the certificate's key cannot be read") from None


def role_of(data: bytes) -> tuple[str, str]:
    """Read the role and name that the CA gave a certificate's holder, from its one SAN URI.

    This trusts that TLS has verified the chain; it only reads. Each listener takes one role
    (architecture.md section 3).

    Args:
        data: The peer's certificate, PEM or DER.

    Returns:
        ``("site" | "operator" | "aggregator", name)``.

    Raises:
        PeerError: Not exactly one well-formed URI, or its role and the key usage differ
            (UNAUTHENTICATED); no certificate (MALFORMED).
    """
    certificate = load_certificate(data)
    try:
        extensions = certificate.extensions
        names = extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        usages = set(extensions.get_extension_for_class(x509.ExtendedKeyUsage).value)
    except (ValueError, x509.ExtensionNotFound, x509.DuplicateExtension):
        raise PeerError(Reason.UNAUTHENTICATED, "the certificate names no Tidegate role") from None
    uris = names.get_values_for_type(x509.UniformResourceIdentifier)
    if len(uris) != 1:
        raise PeerError(Reason.UNAUTHENTICATED, "the certificate must hold exactly one SAN URI")
    match = re.fullmatch(rf"tidegate://({'|'.join(ROLES)})/({NAME.pattern})", uris[0])
    if match is None:
        raise PeerError(Reason.UNAUTHENTICATED, "the certificate's SAN URI names no Tidegate role")
    role, name = match.group(1), match.group(2)
    if usages != {_usage_of(role)}:
        raise PeerError(Reason.UNAUTHENTICATED, f"the certificate's key usage is not a {role}'s")
    if role != "aggregator" and len(names) != 1:
        raise PeerError(Reason.UNAUTHENTICATED, f"a {role}'s certificate holds one name only")
    return role, name


def enrolment_message(token_hash: bytes, csr_der: bytes) -> bytes:
    """Return what a site signs with its signing key on enrolment, to prove that it holds it."""
    return b"tidegate/enrol/1" + hash_of("enrol", token_hash, csr_der)


def _issue(
    ca: Authority,
    public_key: ec.EllipticCurvePublicKey,
    holder: tuple[str, str],
    names: list[x509.GeneralName],
    validity: Validity,
) -> bytes:
    role, name = holder
    _check_name(name, f"{role} name")
    public_spki(public_key)
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, f"{role} {name}")])
    uri = x509.UniformResourceIdentifier(f"tidegate://{role}/{name}")
    issuer_ski = ca.certificate.extensions.get_extension_for_class(x509.SubjectKeyIdentifier).value
    builder = (
        _builder(subject, ca.certificate.subject, public_key, validity)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_key_usage(signs_certificates=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage([_usage_of(role)]), critical=False)
        .add_extension(x509.SubjectAlternativeName([*names, uri]), critical=False)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(public_key), critical=False)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(issuer_ski),
            critical=False,
        )
    )
    certificate = builder.sign(ca.key, hashes.SHA256())
    return certificate.public_bytes(serialization.Encoding.PEM)


def _builder(
    subject: x509.Name,
    issuer: x509.Name,
    public_key: ec.EllipticCurvePublicKey,
    validity: Validity,
) -> x509.CertificateBuilder:
    begin_s = int(validity.now_s) - BACKDATE_S
    end_s = int(validity.end_s(CA_VALID_S if subject == issuer else LEAF_VALID_S))
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(public_key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(dt.datetime.fromtimestamp(begin_s, dt.UTC))
        .not_valid_after(dt.datetime.fromtimestamp(end_s, dt.UTC))
    )


def _key_usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        encipher_only=False,
        decipher_only=False,
    )


def _usage_of(role: str) -> x509.ObjectIdentifier:
    if role == "aggregator":
        return ExtendedKeyUsageOID.SERVER_AUTH
    return ExtendedKeyUsageOID.CLIENT_AUTH


def _host_name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        pass
    label = r"(?!-)[A-Za-z0-9-]{1,63}(?<!-)"
    if len(host) > 253 or re.fullmatch(rf"{label}(\.{label})*", host) is None:
        raise UsageError(f"host {host!r} is neither a DNS name nor an IP address")
    return x509.DNSName(host)


def _check_name(name: str, what: str) -> None:
    if NAME.fullmatch(name) is None:
        raise UsageError(f"{what} {name!r} is not allowed: {NAME_RULE}")
