"""Make the one-time key bundles of a site and find them again when a roster comes.

secure-aggregation.md, "Keys and bundles": serials are unique, the seeds are durable (wrapped)
before the public halves leave, and step 1 burns the serial.
"""

import asyncio
import secrets
import time
from collections.abc import Iterator

from edge_node.store import Store
from edge_node.store_schema import StoredBundle
from privacy.secagg.keys import BundleSecrets, SoftwareSigner, Suite, make_bundle, suite_named
from privacy.secagg.messages import Roster, SignedBundle
from privacy.secagg.site import SiteSecrets
from privacy.secagg.statements import bundle_statement
from tidegate.convert.secagg import bundle_from_wire, bundle_to_wire
from tidegate.manifest import Manifest
from tidegate.v1 import secagg_pb2

SEED_BYTES = 32
VALID_S = 30 * 86_400
MAX_STOCK = 512
"""The oldest beyond it are forgotten: an aggregator that lost its stock asks for new ones."""
_BATCH = 4


class BundleMaker:
    """Fill the stock, a few bundles at a time, so that the session stays answered."""

    def __init__(self, store: Store, signer: SoftwareSigner) -> None:
        """Take where the stock lies and the pinned key."""
        self._store = store
        self._signer = signer

    async def make(self, manifest: Manifest, count: int) -> tuple[SignedBundle, ...]:
        """Make bundles and put them into stock.

        Args:
            manifest: Gives suite and consortium.
            count: How many.
        """
        made: list[tuple[SignedBundle, StoredBundle]] = []
        for number, serial in enumerate(self._store.reserve_serials(count)):
            made.append(self._one(manifest, serial))
            if number % _BATCH == _BATCH - 1:
                await asyncio.sleep(0)
        self._store.add_bundles([stored for _, stored in made], MAX_STOCK)
        return tuple(signed for signed, _ in made)

    def _one(self, manifest: Manifest, serial: int) -> tuple[SignedBundle, StoredBundle]:
        seed = secrets.token_bytes(SEED_BYTES)
        bundle = make_bundle(
            suite_named(manifest.suite),
            BundleSecrets(seed),
            self._signer.fingerprint,
            manifest.consortium_id,
            self._store.instance_id,
            serial,
            int(time.time()) + VALID_S,
        )
        signed = SignedBundle(bundle, self._signer.sign(bundle_statement(bundle)))
        return signed, StoredBundle(serial, encode_bundle(signed), seed)

    def find(
        self, roster: Roster, suite: Suite, surplus_seeds: tuple[bytes, ...]
    ) -> tuple[SignedBundle, SiteSecrets] | None:
        """Give the own bundle of a roster and its attempt's secrets, two of them fresh.

        Args:
            roster: As received.
            suite: The manifest's.
            surplus_seeds: Of the update that the attempt is to send.

        Returns:
            None when the roster holds no bundle of this site that is still in stock.
        """
        for serial in _own_serials(roster, self._signer.fingerprint):
            stored = self._store.bundle(serial)
            if stored is not None:
                secret = SiteSecrets(
                    BundleSecrets(stored.seed),
                    secrets.token_bytes(SEED_BYTES),
                    secrets.token_bytes(SEED_BYTES),
                    surplus_seeds,
                )
                return decode_bundle(stored.signed, suite), secret
        return None


def pack_secrets(attempt: SiteSecrets) -> bytes:
    """Write an attempt's secrets in one piece, for the store to wrap."""
    seeds = (attempt.bundle.seed, attempt.self_mask_seed, attempt.coefficient_seed)
    return b"".join((*seeds, *attempt.surplus_seeds))


def unpack_secrets(raw: bytes) -> SiteSecrets:
    """Read what `pack_secrets` wrote."""
    bundle_seed, self_mask_seed, coefficient_seed, *surplus_seeds = split_seeds(raw)
    return SiteSecrets(
        BundleSecrets(bundle_seed), self_mask_seed, coefficient_seed, tuple(surplus_seeds)
    )


def split_seeds(raw: bytes) -> tuple[bytes, ...]:
    """Cut seeds that were written in one piece."""
    return tuple(raw[i : i + SEED_BYTES] for i in range(0, len(raw), SEED_BYTES))


def encode_bundle(signed: SignedBundle) -> bytes:
    """Write a signed bundle as it travels."""
    return bundle_to_wire(signed).SerializeToString()


def decode_bundle(raw: bytes, suite: Suite) -> SignedBundle:
    """Read a signed bundle from the store.

    Raises:
        PeerError: The stored bytes are damaged.
    """
    return bundle_from_wire(secagg_pb2.Bundle.FromString(raw), "stored bundle", suite)


def _own_serials(roster: Roster, me: bytes) -> Iterator[int]:
    for signed in roster.bundles:
        if signed.bundle.site == me:
            yield signed.bundle.serial
