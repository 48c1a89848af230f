"""Seal a released model's provenance, and check that a file is the model that a job released.

The metadata of the safetensors file states job, privacy spent and every digest. The aggregator
signs it with the key of its TLS certificate, which travels along; whoever holds the consortium's CA
certificate can check the file without asking anybody. The tensors are bound by the digest of the
flat vector that the last round published.

Shapes: D = coordinates of the model vector.
"""

import base64
import binascii
import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
from cryptography.exceptions import InvalidSignature
from numpy.typing import NDArray

from privacy.errors import PeerError, Reason
from privacy.secagg.encoding import hash_of
from privacy.spec import VectorSpec
from tidegate import keys, pki

SPEC = "vector_spec"
DIGEST = "model_sha256"
_CERTIFICATE = "certificate"
_SIGNATURE = "signature"
_MAX_METADATA_BYTES = 1 << 20


@dataclass(frozen=True)
class Provenance:
    """Checked provenance.

    Attributes:
        facts: The metadata, without certificate and signature.
        aggregator: Name of the aggregator that signed, as the consortium's CA certified it.
    """

    facts: Mapping[str, str]
    aggregator: str


def seal(
    facts: Mapping[str, str], certificate_pem: bytes, sign: Callable[[bytes], bytes]
) -> dict[str, str]:
    """Sign a model's metadata.

    Args:
        facts: What is stated, `SPEC` and `DIGEST` among it.
        certificate_pem: Of the signer, issued by the consortium's CA.
        sign: Signs a message with the certificate's key.
    """
    sealed = dict(facts) | {_CERTIFICATE: certificate_pem.decode("ascii")}
    return sealed | {_SIGNATURE: base64.b64encode(sign(_message(sealed))).decode("ascii")}


def check(
    metadata: Mapping[str, str], tensors: Mapping[str, NDArray[np.float32]], ca_pem: bytes
) -> Provenance:
    """Check that tensors are those a job released, and that its aggregator states the rest.

    Args:
        metadata: Of the safetensors file.
        tensors: Its tensors.
        ca_pem: The consortium's CA certificate.

    Raises:
        PeerError: MALFORMED: there is no provenance; WRONG_DIGEST: the tensors were changed;
            BAD_SIGNATURE, UNAUTHENTICATED: the statement is not an aggregator's of this consortium.
    """
    facts = dict(metadata)
    try:
        signature = base64.b64decode(facts.pop(_SIGNATURE), validate=True)
        certificate = facts[_CERTIFICATE].encode("ascii")
        spec = VectorSpec.from_bytes(facts[SPEC].encode("ascii"))
        digest = facts[DIGEST]
    except (KeyError, UnicodeEncodeError, binascii.Error) as error:
        raise PeerError(Reason.MALFORMED, "the file carries no provenance of Tidegate") from error
    aggregator = _check_certificate(certificate, ca_pem)
    keys.verify(pki.certificate_spki(certificate), signature, _message(facts))
    if hashlib.sha256(spec.flatten(tensors).tobytes()).hexdigest() != digest:
        raise PeerError(
            Reason.WRONG_DIGEST, "the tensors are not those that the job released: export it again"
        )
    del facts[_CERTIFICATE]
    return Provenance(facts, aggregator)


def _check_certificate(certificate: bytes, ca_pem: bytes) -> str:
    role, name = pki.role_of(certificate)
    try:
        pki.load_certificate(certificate).verify_directly_issued_by(pki.load_certificate(ca_pem))
    except (ValueError, TypeError, InvalidSignature) as error:
        message = "the signer's certificate is not of this consortium's CA"
        raise PeerError(Reason.UNAUTHENTICATED, message) from error
    if role != "aggregator":
        raise PeerError(Reason.UNAUTHENTICATED, f"{role} {name} signed; only aggregators may")
    return name


def _message(metadata: Mapping[str, str]) -> bytes:
    raw = json.dumps(dict(metadata), sort_keys=True, separators=(",", ":")).encode("ascii")
    if len(raw) > _MAX_METADATA_BYTES:
        raise PeerError(Reason.TOO_LARGE, f"more than {_MAX_METADATA_BYTES} bytes of provenance")
    return b"tidegate/provenance/1" + hash_of("provenance", raw)
