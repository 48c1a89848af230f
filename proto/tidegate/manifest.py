"""Seal and open the consortium manifest: who takes part under which rules, signed by the operator.

Version 1 is canonical JSON (sorted keys, no spaces, ASCII) and an ECDSA signature of the operator's
key over ``enc("manifest", bytes)``. Sites pin its hash, and every context of SA-1 names it, so the
aggregator can neither add a member nor lower N_min (secure-aggregation.md, Threat model). Here:
bytes to a valid value, or an error. Not here: pinning and storing.
"""

import hashlib
import json
import re
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

from privacy.errors import PeerError, Reason, UsageError
from privacy.secagg import keys
from privacy.secagg.encoding import enc
from privacy.secagg.rules import DEFAULT_DROPOUT_PERCENT
from privacy.secagg.signatures import SignatureScheme
from tidegate import pki
from tidegate.names import NAME, NAME_RULE

VERSION = 1
SUITES = tuple(keys.SUITES)
"""What a manifest may name; the kind of the members' signing keys follows from it."""

MAX_BYTES = 1 << 20
MAX_SITES = 1000
"""Above 200 sites cohorts have the sparse graph (``privacy.secagg.graph``)."""

MAX_DROPOUT_PERCENT = 33
"""More than a third missing leaves no quorum."""

_FINGERPRINT = re.compile(r"[0-9a-f]{64}")
_HEX = re.compile(r"([0-9a-f]{2}){1,256}")


@dataclass(frozen=True)
class ManifestLimits:
    """The largest things members have to handle."""

    max_message_bytes: int = 4_194_304
    max_vector_length: int = 1 << 26
    max_sites: int = MAX_SITES


@dataclass(frozen=True)
class Member:
    """A site: its name, SHA-256 of its TLS key's SPKI, and its signing key's SPKI; both in hex."""

    site_id: str
    node_fingerprint: str
    signing_spki: str

    def spki(self) -> bytes:
        """Return the SPKI (DER) of the pinned signing key."""
        return bytes.fromhex(self.signing_spki)

    def fingerprint(self) -> bytes:
        """Return the site's name in SA-1: SHA-256 of the signing key's SPKI, 32 bytes."""
        return pki.fingerprint(self.spki())


@dataclass(frozen=True)
class Manifest:
    """What sites signed up to. ``colluders`` is c, ``min_survivors`` N_min; both absolute.

    ``max_sites_per_person`` is k_max: in how many sites one person's data may lie, for which every
    job's epsilon is stated beside that for one site (privacy.md, "Accounting").
    ``dropout_percent`` is how many sites of a cohort may be expected to drop out: cohorts above 200
    sites have more neighbours each where it is above 20.
    """

    consortium_id: str
    roster_epoch: int
    colluders: int
    min_survivors: int
    members: tuple[Member, ...]
    suite: str = keys.P256.name
    limits: ManifestLimits = ManifestLimits()
    max_sites_per_person: int = 2
    dropout_percent: int = DEFAULT_DROPOUT_PERCENT
    version: int = VERSION

    def canonical(self) -> bytes:
        """Return the one encoding of this manifest that is signed and hashed."""
        return json.dumps(asdict(self), sort_keys=True, separators=(",", ":")).encode()

    def hash(self) -> bytes:
        """Return the manifest hash that every context of SA-1 names: 32 bytes."""
        return hashlib.sha256(self.canonical()).digest()

    def member(self, site_id: str) -> Member | None:
        """Return the entry of a site, if it is a member."""
        return next((member for member in self.members if member.site_id == site_id), None)

    def pinned(self) -> dict[bytes, bytes]:
        """Return the pinned signing keys: SPKI (DER) by site fingerprint."""
        return {member.fingerprint(): member.spki() for member in self.members}


def make_member(site_id: str, node_fingerprint: bytes, signing_spki: bytes) -> Member:
    """Make a member's entry from what the registry holds."""
    return Member(site_id, node_fingerprint.hex(), signing_spki.hex())


def seal(manifest: Manifest, sign: Callable[[bytes], bytes]) -> tuple[bytes, bytes]:
    """Check a manifest, sign it with the operator's key and return its bytes and the signature.

    Raises:
        UsageError: It breaks a rule that every site would refuse it for.
    """
    try:
        check(manifest)
    except PeerError as error:
        raise UsageError(f"the manifest cannot be sealed: {error.args[0]}") from None
    raw = manifest.canonical()
    return raw, sign(sign_bytes(raw))


def sign_bytes(raw: bytes) -> bytes:
    """Return what the operator signs for these manifest bytes."""
    return enc("manifest", raw)


def parse_and_verify(raw: bytes, signature: bytes, operator_spki: bytes) -> Manifest:
    """Open a manifest: the signature first, then every rule.

    Args:
        raw: The bytes as signed.
        signature: The operator's signature, DER.
        operator_spki: The operator's public key as pinned at enrolment, SPKI (DER).

    Raises:
        PeerError: Not signed by that key (BAD_SIGNATURE), or not a valid manifest (MALFORMED).
    """
    if len(raw) > MAX_BYTES:
        raise PeerError(Reason.TOO_LARGE, f"the manifest has more than {MAX_BYTES} bytes")
    pki.verify(operator_spki, signature, sign_bytes(raw))
    return parse(raw)


def parse(raw: bytes) -> Manifest:
    """Read and check a manifest whose signature the caller has checked.

    Raises:
        PeerError: It is not the canonical encoding of a valid manifest (MALFORMED).
    """
    try:
        fields = json.loads(raw)
    except (ValueError, RecursionError):
        raise _bad("it is not JSON") from None
    top = _exact(fields, Manifest, "manifest")
    limits = ManifestLimits(**_exact(top["limits"], ManifestLimits, "limits"))
    entries = top["members"]
    if not isinstance(entries, list) or len(entries) > MAX_SITES:
        raise _bad(f"members must be a list of at most {MAX_SITES}")
    members = tuple(Member(**_exact(entry, Member, "members")) for entry in entries)
    manifest = Manifest(**{**top, "limits": limits, "members": members})
    check(manifest)
    # One manifest, one encoding: otherwise two hashes would name the same rules.
    if manifest.canonical() != raw:
        raise _bad("it is not in canonical form")
    return manifest


def check(manifest: Manifest) -> None:
    """Refuse a manifest under which secure aggregation would promise nothing.

    Raises:
        PeerError: MALFORMED, naming the field and the rule.
    """
    if not _whole(manifest.version, VERSION, VERSION):
        raise _bad(f"version {manifest.version!r} is not {VERSION}")
    if not _text(manifest.consortium_id, NAME):
        raise _bad(f"consortium_id must be {NAME_RULE}")
    if not _whole(manifest.roster_epoch, 1, (1 << 32) - 1):
        raise _bad("roster_epoch must be a whole number from 1")
    if manifest.suite not in SUITES:
        raise _bad(f"suite {manifest.suite!r} is not known")
    if not _whole(manifest.dropout_percent, 1, MAX_DROPOUT_PERCENT):
        raise _bad(f"dropout_percent must lie in 1..{MAX_DROPOUT_PERCENT}")
    _check_limits(manifest.limits)
    _check_thresholds(manifest)
    _check_members(manifest.members, keys.suite_named(manifest.suite).signatures)


def _check_thresholds(manifest: Manifest) -> None:
    """Hold N_min and c to the threat model of SA-1: 1 <= c < N_min, N_min - c >= 2."""
    most = min(manifest.limits.max_sites, len(manifest.members))
    c, n_min = manifest.colluders, manifest.min_survivors
    if len(manifest.members) > manifest.limits.max_sites:
        raise _bad(f"it has more members than limits.max_sites = {manifest.limits.max_sites}")
    if not _whole(c, 1, MAX_SITES):
        raise _bad("colluders (c) must be a whole number from 1")
    if not _whole(n_min, c + 1, MAX_SITES):
        raise _bad("min_survivors (N_min) must be a whole number greater than colluders (c)")
    if n_min - c < 2:
        raise _bad("min_survivors - colluders is 1: a sum would hold one honest site's update")
    if n_min > most:
        raise _bad(f"min_survivors = {n_min}, but there are only {most} members")
    if not _whole(manifest.max_sites_per_person, 1, len(manifest.members)):
        raise _bad(
            f"max_sites_per_person must lie in 1..{len(manifest.members)}, the number of members"
        )


def _check_limits(limits: ManifestLimits) -> None:
    if not _whole(limits.max_message_bytes, 65_536, 1 << 26):
        raise _bad("limits.max_message_bytes must lie in 65536..67108864")
    if not _whole(limits.max_vector_length, 1, 1 << 34):
        raise _bad("limits.max_vector_length must lie in 1..2^34")
    if not _whole(limits.max_sites, 1, MAX_SITES):
        raise _bad(f"limits.max_sites must lie in 1..{MAX_SITES}")


def _check_members(members: tuple[Member, ...], signatures: SignatureScheme) -> None:
    """Refuse Sybils by repetition: each name once, in order, and one key in one place only."""
    taken: set[str] = set()
    last = ""
    for member in members:
        if not _text(member.site_id, NAME):
            raise _bad(f"a member's site_id must be {NAME_RULE}")
        where = f"member {member.site_id}"
        if member.site_id <= last:
            raise _bad(f"{where}: members must be sorted by site_id, each once")
        last = member.site_id
        if not _text(member.node_fingerprint, _FINGERPRINT):
            raise _bad(f"{where}: node_fingerprint must be 64 lower-case hex digits")
        if not _text(member.signing_spki, _HEX):
            raise _bad(f"{where}: signing_spki must be lower-case hex")
        if not signatures.is_canonical(member.spki()):
            raise _bad(f"{where}: signing_spki is no {signatures.key_kind} key in canonical DER")
        # One key never serves both TLS and signing, nor two members.
        for key in (member.node_fingerprint, member.fingerprint().hex()):
            if key in taken:
                raise _bad(f"{where}: one key serves twice; each site needs two keys of its own")
            taken.add(key)


def _exact(
    fields: object,
    kind: type[Manifest] | type[ManifestLimits] | type[Member],
    where: str,
) -> dict[str, Any]:
    """Return a JSON object that has exactly the fields of a dataclass."""
    if not isinstance(fields, dict):
        raise _bad(f"{where} is not an object")
    wrong = fields.keys() ^ kind.__dataclass_fields__.keys()
    if wrong:
        raise _bad(f"{where} has a missing or unknown field: {min(wrong)[:40]!r}")
    return fields


def _whole(value: object, low: int, high: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and low <= value <= high


def _text(value: object, pattern: re.Pattern[str]) -> bool:
    return isinstance(value, str) and pattern.fullmatch(value) is not None


def _bad(message: str) -> PeerError:
    return PeerError(Reason.MALFORMED, f"manifest: {message}")
