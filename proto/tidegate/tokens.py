"""Pack and open the one string an operator hands a site to enrol with: ``tg1.<base64url JSON>``.

The token carries what a site must know before it can trust anybody: where to dial, the CA, and the
fingerprint of the operator's key, which the aggregator never holds (architecture.md section 3). The
aggregator stores only the hash of the secret. A token is itself a secret: 0600 files, no logs.
"""

import base64
import hashlib
import json
import re
import secrets
from dataclasses import asdict, dataclass, field

from privacy.errors import UsageError
from privacy.secagg.keys import P256, SUITES
from tidegate.names import ADDRESS, NAME

PREFIX = "tg1."
MAX_VALID_S = 30 * 86_400
_MAX_TOKEN_CHARS = 16_384
_SECRET = re.compile(r"[A-Za-z0-9_-]{32,128}")
_FINGERPRINT = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True)
class EnrolmentToken:
    """What a token says: who enrols where, and whom to trust. Addresses are ``host:port``.

    ``suite`` is the consortium's: the site's signing key is made for it.
    """

    site_id: str
    secret: str = field(repr=False)
    enrolment: str
    sites: str
    operator_fingerprint: str
    ca_pem: str
    expires_at_s: int
    suite: str = P256.name


def new_secret() -> str:
    """Make the secret of a token: 32 random bytes, base64url."""
    return secrets.token_urlsafe(32)


def hash_secret(secret: str) -> bytes:
    """Return SHA-256 of a secret, the only form the aggregator keeps: 32 bytes.

    A plain hash is enough, as the secret is 256 random bits and not a password.
    """
    return hashlib.sha256(secret.encode()).digest()


def encode(token: EnrolmentToken) -> str:
    """Return the token as one line of text."""
    _check(token)
    raw = json.dumps(asdict(token), sort_keys=True, separators=(",", ":")).encode()
    return PREFIX + base64.urlsafe_b64encode(raw).rstrip(b"=").decode()


def decode(text: str) -> EnrolmentToken:
    """Open a token.

    Raises:
        UsageError: It is cut short, of another version, or holds anything but the known fields.
            The message never repeats the token.
    """
    text = text.strip()
    if not text.startswith(PREFIX):
        raise UsageError(f"the enrolment token does not start with {PREFIX!r}: copy it whole")
    if len(text) > _MAX_TOKEN_CHARS:
        raise UsageError("the enrolment token is too long: the file holds something else")
    body = text[len(PREFIX) :]
    try:
        raw = base64.b64decode(body + "=" * (-len(body) % 4), altchars=b"-_", validate=True)
        fields = json.loads(raw)
    except (ValueError, RecursionError):
        raise UsageError("the enrolment token is damaged: copy it again, whole") from None
    if not isinstance(fields, dict) or fields.keys() != EnrolmentToken.__dataclass_fields__.keys():
        raise UsageError("the enrolment token has other fields than version 1 has")
    token = EnrolmentToken(**fields)
    _check(token)
    return token


def _check(token: EnrolmentToken) -> None:
    """Refuse a token whose fields are not what version 1 says; never repeat the secret."""
    patterns = (
        ("site_id", token.site_id, NAME),
        ("secret", token.secret, _SECRET),
        ("enrolment", token.enrolment, ADDRESS),
        ("sites", token.sites, ADDRESS),
        ("operator_fingerprint", token.operator_fingerprint, _FINGERPRINT),
    )
    for name, value, pattern in patterns:
        if not isinstance(value, str) or pattern.fullmatch(value) is None:
            raise UsageError(f"the enrolment token's {name} is not well formed: ask for a new one")
    pem = token.ca_pem
    if not isinstance(pem, str) or not pem.startswith("-----BEGIN CERTIFICATE-----"):
        raise UsageError("the enrolment token's ca_pem is no certificate: ask for a new one")
    if token.suite not in tuple(SUITES):
        raise UsageError("the enrolment token names a suite that this version has not: update it")
    expiry = token.expires_at_s
    if not isinstance(expiry, int) or isinstance(expiry, bool) or not 0 < expiry < 1 << 40:
        raise UsageError("the enrolment token's expires_at_s is no time: ask for a new one")
