"""Know who may speak: invited, enrolled and revoked sites, and the certificates that say so.

Every rule about identity at the aggregator is here; the services only ask. A certificate of our CA
is not enough: its name must be enrolled with exactly this key and not be revoked, now. Tokens are
kept as SHA-256 only, hold once, and expire (architecture.md section 3).
"""

import hmac
from dataclasses import dataclass, replace
from functools import lru_cache

from sqlalchemy import insert, select, update
from sqlalchemy.exc import IntegrityError

from aggregator.config import AggregatorConfig
from aggregator.store import Store
from aggregator.tables import MANIFESTS, SITES, TOKENS
from privacy.errors import PeerError, Reason, UsageError
from privacy.secagg.keys import suite_named
from privacy.secagg.signatures import ECDSA_P256, SignatureScheme
from tidegate import pki, tokens
from tidegate.convert import DEFAULT_LIMITS, Limits
from tidegate.manifest import Manifest, Member, parse_and_verify
from tidegate.names import NAME, NAME_RULE
from tidegate.requests import EnrolmentRequest

_BUNDLE_REST_BYTES = 300
"""A bundle's names, numbers, commitment and signature with their tags, all at their longest."""

_SHARE_REST_BYTES = 80
"""Two commitments and the tags of a dealt share."""

_FRAME_REST_BYTES = 1024


@dataclass(frozen=True)
class EnrolledSite:
    """A site as enrolled.

    Attributes:
        site_id: Its name.
        node_fingerprint: SHA-256 of its TLS key's SPKI.
        signing_spki: SPKI (DER) of its signing key.
        fingerprint: SHA-256 of that, the site's name in SA-1.
        node_id: Flower's node id.
        revoked: It is refused everywhere from now on.
    """

    site_id: str
    node_fingerprint: bytes
    signing_spki: bytes
    fingerprint: bytes
    node_id: int
    revoked: bool = False


@dataclass(frozen=True)
class SealedManifest:
    """The manifest in force, with the bytes and signature that the sites check."""

    manifest: Manifest
    raw: bytes
    signature: bytes
    manifest_hash: bytes


class Registry:
    """The sites of one consortium; kept in memory, written through to the store."""

    def __init__(
        self,
        store: Store,
        authority: pki.Authority,
        operator_spki: bytes,
        max_sites: int,
        signatures: SignatureScheme = ECDSA_P256,
    ) -> None:
        """Load what the store holds; ``signatures`` is that of the suite that is served."""
        self._signatures = signatures
        self._store = store
        self._authority = authority
        self.operator_spki = operator_spki
        self._max_sites = max_sites
        self._sites: dict[str, EnrolledSite] = {}
        self._invited: dict[str, int] = {}
        self.sealed: SealedManifest | None = None
        self._load()

    @property
    def ca_pem(self) -> bytes:
        """The CA certificate, PEM."""
        return self._authority.certificate_pem()

    @property
    def wire_limits(self) -> Limits:
        """What may come over the wire: as the sealed manifest says, before it the defaults."""
        return Limits.of(self.sealed.manifest) if self.sealed else DEFAULT_LIMITS

    def site(self, site_id: str) -> EnrolledSite | None:
        """Return an enrolled site, revoked ones too."""
        return self._sites.get(site_id)

    def sites(self) -> list[EnrolledSite]:
        """Return all enrolled sites by name, revoked ones too."""
        return [self._sites[name] for name in sorted(self._sites)]

    def invited(self, now_s: float) -> list[str]:
        """Return the names that hold a valid token and are not enrolled."""
        return sorted(
            name
            for name, expires in self._invited.items()
            if expires > now_s and name not in self._sites
        )

    def create_token(self, site_id: str, valid_s: int, now_s: float) -> tuple[str, int]:
        """Make a one-time token for a site.

        Args:
            site_id: The name that its certificate will carry.
            valid_s: Seconds until it expires.
            now_s: Unix seconds.

        Returns:
            The secret, and the Unix second at which it expires.

        Raises:
            UsageError: No such name is possible, it is enrolled already, or the time is too long.
        """
        if NAME.fullmatch(site_id) is None:
            raise UsageError(f"{site_id!r} is no site id: use {NAME_RULE}")
        if site_id in self._sites:
            raise UsageError(f"site {site_id} is enrolled already; choose another name")
        if not 0 < valid_s <= tokens.MAX_VALID_S:
            raise UsageError(f"a token may hold 1 to {tokens.MAX_VALID_S} s, not {valid_s}")
        secret = tokens.new_secret()
        expires_at_s = int(now_s) + valid_s
        row = {
            "secret_sha256": tokens.hash_secret(secret),
            "site_id": site_id,
            "expires_at_s": expires_at_s,
        }
        with self._store.transaction() as connection:
            connection.execute(insert(TOKENS), row)
        self._invited[site_id] = max(expires_at_s, self._invited.get(site_id, 0))
        return secret, expires_at_s

    def enrol(self, request: EnrolmentRequest, now_s: float) -> tuple[EnrolledSite, bytes]:
        """Redeem a token: check everything, burn it and issue the certificate, in one transaction.

        Returns:
            The site, and its certificate as PEM.

        Raises:
            PeerError: TOKEN_UNKNOWN, TOKEN_EXPIRED, TOKEN_USED; BAD_SIGNATURE, the site holds not
                the keys that it names; REPLAY, the name or a key is enrolled already.
        """
        token_hash = tokens.hash_secret(request.secret)
        site_id = self._check_token(token_hash, now_s)
        proof = pki.enrolment_message(token_hash, request.csr_der)
        if not self._signatures.is_canonical(request.signing_spki):
            kind = self._signatures.key_kind
            raise PeerError(Reason.MALFORMED, f"the signing key is no {kind} key in canonical DER")
        self._signatures.verify(request.signing_spki, request.signing_proof, proof)
        tls_spki = pki.public_spki(pki.check_csr(request.csr_der))
        site = EnrolledSite(
            site_id=site_id,
            node_fingerprint=pki.fingerprint(tls_spki),
            signing_spki=request.signing_spki,
            fingerprint=pki.fingerprint(request.signing_spki),
            node_id=pki.node_id(request.signing_spki),
        )
        self._check_new(site)
        certificate = pki.issue_site_cert_from_csr(
            self._authority, request.csr_der, site_id, pki.Validity(now_s)
        )
        self._burn_and_insert(token_hash, site, certificate, int(now_s))
        self._sites[site_id] = site
        return site, certificate

    def revoke(self, site_id: str, why: str, now_s: float) -> None:
        """Refuse a site from now on, for ever; durable before it returns.

        Raises:
            UsageError: No such site.
        """
        site = self._sites.get(site_id)
        if site is None:
            raise UsageError(f"no site {site_id!r} is enrolled; `tidegate site list` shows them")
        change = update(SITES).where(SITES.c.site_id == site_id, SITES.c.revoked_at_s.is_(None))
        with self._store.transaction() as connection:
            connection.execute(change, {"revoked_at_s": int(now_s), "revoked_why": why})
        self._sites[site_id] = replace(site, revoked=True)

    def authenticate(self, certificate_pem: bytes) -> EnrolledSite:
        """Return the site that a certificate, verified by TLS, belongs to.

        Raises:
            PeerError: UNAUTHENTICATED, it is no site's, or not the enrolled one's key; REVOKED.
        """
        role, name, key = _read_certificate(certificate_pem)
        site = self._sites.get(name) if role == "site" else None
        if site is None:
            raise PeerError(
                Reason.UNAUTHENTICATED,
                f"the certificate is for {role} {name!r}; this listener takes enrolled sites only",
            )
        if not hmac.compare_digest(key, site.node_fingerprint):
            raise PeerError(
                Reason.UNAUTHENTICATED, f"site {name} is enrolled with another key: enrol anew"
            )
        if site.revoked:
            raise PeerError(Reason.REVOKED, f"site {name} is revoked; ask the operator why")
        return site

    def put_manifest(
        self, raw: bytes, signature: bytes, now_s: float, config: AggregatorConfig
    ) -> SealedManifest:
        """Take the manifest that the operator sealed.

        Raises:
            PeerError: Not the operator's signature, not valid, of another suite or consortium or
                with larger messages than configured, or it names keys or sites that are not
                enrolled here (POLICY); a second, different manifest (REPLAY).
        """
        manifest = parse_and_verify(raw, signature, self.operator_spki)
        _check_manifest(manifest, config)
        sealed = SealedManifest(manifest, raw, signature, manifest.hash())
        if self.sealed is not None:
            if self.sealed.raw == raw:
                return self.sealed
            raise PeerError(
                Reason.REPLAY,
                "another manifest is sealed and pinned by the sites; this version knows one epoch",
            )
        for member in manifest.members:
            self._check_member(member)
        row = {
            "manifest_hash": sealed.manifest_hash,
            "roster_epoch": manifest.roster_epoch,
            "manifest": raw,
            "signature": signature,
            "sealed_at_s": int(now_s),
        }
        with self._store.transaction() as connection:
            connection.execute(insert(MANIFESTS), row)
        self.sealed = sealed
        return sealed

    def _check_member(self, member: Member) -> None:
        site = self._sites.get(member.site_id)
        if site is None or site.revoked:
            raise PeerError(Reason.POLICY, f"manifest member {member.site_id} is not enrolled here")
        keys = (site.node_fingerprint.hex(), site.signing_spki)
        if (member.node_fingerprint, member.spki()) != keys:
            raise PeerError(
                Reason.POLICY, f"manifest member {member.site_id} has other keys than enrolled"
            )

    def _check_token(self, token_hash: bytes, now_s: float) -> str:
        """Find a token by its hash, in a time that does not depend on which one is near."""
        with self._store.transaction() as connection:
            rows = connection.execute(select(TOKENS)).all()
        found = None
        for row in rows:
            if hmac.compare_digest(bytes(row.secret_sha256), token_hash):
                found = row
        if found is None:
            raise PeerError(Reason.TOKEN_UNKNOWN, "the token is unknown here: ask for a new one")
        if found.used_at_s is not None:
            raise PeerError(
                Reason.TOKEN_USED,
                f"the token for {found.site_id} was used; if not by you, tell the operator now",
            )
        if found.expires_at_s <= now_s:
            raise PeerError(Reason.TOKEN_EXPIRED, f"the token for {found.site_id} has expired")
        return str(found.site_id)

    def _check_new(self, site: EnrolledSite) -> None:
        if len(self._sites) >= self._max_sites:
            raise PeerError(Reason.POLICY, f"{self._max_sites} sites are enrolled: no room")
        if hmac.compare_digest(site.node_fingerprint, site.fingerprint):
            raise PeerError(Reason.POLICY, "TLS key and signing key must be two keys")
        for other in self._sites.values():
            keys = {other.node_fingerprint, other.fingerprint}
            if other.site_id == site.site_id:
                raise PeerError(Reason.REPLAY, f"site {site.site_id} is enrolled already")
            if keys & {site.node_fingerprint, site.fingerprint} or other.node_id == site.node_id:
                raise PeerError(Reason.REPLAY, "one of the keys belongs to another enrolled site")

    def _burn_and_insert(
        self, token_hash: bytes, site: EnrolledSite, certificate: bytes, now_s: int
    ) -> None:
        burn = update(TOKENS).where(
            TOKENS.c.secret_sha256 == token_hash, TOKENS.c.used_at_s.is_(None)
        )
        row = {
            "site_id": site.site_id,
            "node_fingerprint": site.node_fingerprint,
            "signing_spki": site.signing_spki,
            "node_id": site.node_id,
            "certificate_pem": certificate,
            "enrolled_at_s": now_s,
        }
        try:
            with self._store.transaction() as connection:
                if connection.execute(burn, {"used_at_s": now_s}).rowcount != 1:
                    raise PeerError(Reason.TOKEN_USED, "the token was used a moment ago")
                connection.execute(insert(SITES), row)
        except IntegrityError:
            raise PeerError(Reason.REPLAY, "the site or one of its keys is enrolled") from None

    def _load(self) -> None:
        with self._store.transaction() as connection:
            sites = connection.execute(select(SITES)).all()
            unused = connection.execute(select(TOKENS).where(TOKENS.c.used_at_s.is_(None))).all()
            sealed = connection.execute(
                select(MANIFESTS).order_by(MANIFESTS.c.roster_epoch.desc()).limit(1)
            ).first()
        for row in sites:
            spki = bytes(row.signing_spki)
            self._sites[row.site_id] = EnrolledSite(
                site_id=row.site_id,
                node_fingerprint=bytes(row.node_fingerprint),
                signing_spki=spki,
                fingerprint=pki.fingerprint(spki),
                node_id=row.node_id,
                revoked=row.revoked_at_s is not None,
            )
        for row in unused:
            self._invited[row.site_id] = max(row.expires_at_s, self._invited.get(row.site_id, 0))
        if sealed is not None:
            raw, signature = bytes(sealed.manifest), bytes(sealed.signature)
            manifest = parse_and_verify(raw, signature, self.operator_spki)
            self.sealed = SealedManifest(manifest, raw, signature, manifest.hash())


def _check_manifest(manifest: Manifest, config: AggregatorConfig) -> None:
    """Refuse a manifest that this aggregator, as configured, cannot serve."""
    expected = (config.suite, config.consortium_id)
    if (manifest.suite, manifest.consortium_id) != expected:
        raise PeerError(
            Reason.POLICY,
            f"the manifest is for {manifest.consortium_id} with {manifest.suite}; this"
            f" aggregator serves {config.consortium_id} with {config.suite}",
        )
    if manifest.limits.max_message_bytes > config.limits.max_message_bytes:
        raise PeerError(
            Reason.POLICY,
            f"the manifest allows messages of {manifest.limits.max_message_bytes} bytes: raise"
            " [limits] max_message_bytes in aggregator.toml and restart, or seal a lower limit",
        )
    needed = _largest_frame(manifest, config.limits.bundle_stock)
    if manifest.limits.max_message_bytes < needed:
        raise PeerError(
            Reason.POLICY,
            f"the manifest allows messages of {manifest.limits.max_message_bytes} bytes; a site of"
            f" {manifest.suite} sends up to {needed}: seal a higher limit",
        )


def _largest_frame(manifest: Manifest, stock: int) -> int:
    """Bound what a site sends at once: its whole stock of bundles, or a share for each member."""
    suite = suite_named(manifest.suite)
    bundle = suite.transport.public_key_bytes + suite.masks.public_key_bytes + _BUNDLE_REST_BYTES
    share = suite.share_ciphertext_bytes + _SHARE_REST_BYTES
    return max(stock * bundle, len(manifest.members) * share) + _FRAME_REST_BYTES


@lru_cache(maxsize=1024)
def _read_certificate(certificate_pem: bytes) -> tuple[str, str, bytes]:
    """Read role, name and key fingerprint; every call of a site asks for the same ones."""
    role, name = pki.role_of(certificate_pem)
    return role, name, pki.fingerprint(pki.certificate_spki(certificate_pem))
