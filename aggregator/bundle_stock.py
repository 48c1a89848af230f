"""Hold each site's one-time key bundles, so that advertising keys costs a round no round trip.

A bundle is checked when it comes in and handed out once. The stock is memory: after a restart the
sites are asked for new ones. Bundles of another instance are dropped when a site connects, as the
site holds no secrets for them any more (secure-aggregation.md, Keys and bundles).
"""

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field

from privacy.errors import PeerError, Reason
from privacy.secagg.keys import Suite
from privacy.secagg.messages import Fingerprint, SignedBundle
from privacy.secagg.statements import bundle_statement

_EXPIRY_MARGIN_S = 600
"""A bundle that expires sooner than this is not used: the attempt might outlive it."""


@dataclass
class _Shelf:
    """One site's bundles, in the order of their serials."""

    instance_id: bytes
    bundles: deque[SignedBundle] = field(default_factory=deque)
    last_serial: int = -1
    asked: bool = False


class BundleStock:
    """All sites' bundles, by fingerprint."""

    def __init__(self, suite: Suite, consortium_id: str, target: int) -> None:
        """Start empty.

        Args:
            suite: The manifest's suite.
            consortium_id: What the bundles must be made for.
            target: How many bundles a site keeps here.
        """
        self._suite = suite
        self._consortium_id = consortium_id
        self._target = target
        self._shelves: dict[Fingerprint, _Shelf] = {}
        # Keys of all bundles in stock: no roster may hold one key twice (SA-1, Values), and a site
        # that copies another's key must not be able to stop that one's attempt.
        self._keys: set[bytes] = set()

    def connect(self, site: Fingerprint, instance_id: bytes) -> None:
        """Note a site's instance; bundles of another instance are void."""
        shelf = self._shelves.get(site)
        if shelf is None or shelf.instance_id != instance_id:
            for signed in shelf.bundles if shelf else ():
                self._keys.difference_update(self._identities(signed))
            shelf = self._shelves[site] = _Shelf(instance_id)
        shelf.asked = False

    def count(self, site: Fingerprint, now_s: float) -> int:
        """Return how many bundles of a site are here that hold for an attempt begun soon."""
        shelf = self._shelves.get(site)
        if shelf is None:
            return 0
        self._drop_expired(shelf, now_s + _EXPIRY_MARGIN_S)
        return len(shelf.bundles)

    def missing(self, site: Fingerprint, now_s: float) -> int:
        """Return how many bundles to ask a connected site for now; 0 while it was asked already."""
        shelf = self._shelves.get(site)
        if shelf is None or shelf.asked or self.count(site, now_s) > self._target // 2:
            return 0
        shelf.asked = True
        return self._target - len(shelf.bundles)

    def add(
        self, site: Fingerprint, signing_spki: bytes, bundles: Iterable[SignedBundle], now_s: float
    ) -> None:
        """Take bundles of a site into stock.

        Args:
            site: Who sent them.
            signing_spki: The pinned key of that site.
            bundles: As received.
            now_s: Unix seconds.

        Raises:
            PeerError: WRONG_CONTEXT, made for another site, instance or consortium; REPLAY, a
                serial that was here before; MALFORMED, a key that is no point; BAD_SIGNATURE;
                TOO_LARGE, more than there is room for. Bundles before the bad one stay.
        """
        shelf = self._shelves.get(site)
        if shelf is None:
            raise PeerError(Reason.WRONG_CONTEXT, "bundles before Hello")
        shelf.asked = False
        for signed in bundles:
            self._check(shelf, site, signed, now_s)
            self._suite.verify(signing_spki, signed.signature, bundle_statement(signed.bundle))
            self._keys.update(self._identities(signed))
            shelf.last_serial = signed.bundle.serial
            shelf.bundles.append(signed)

    def take(self, site: Fingerprint, now_s: float) -> SignedBundle | None:
        """Take one bundle out, for good; None where there is none.

        What was counted is taken up to half the margin later: a site that was ready with a bundle
        does not lose it while the cohort gathers.
        """
        shelf = self._shelves.get(site)
        if shelf is None:
            return None
        self._drop_expired(shelf, now_s + _EXPIRY_MARGIN_S / 2)
        if not shelf.bundles:
            return None
        signed = shelf.bundles.popleft()
        self._keys.difference_update(self._identities(signed))
        return signed

    def _drop_expired(self, shelf: _Shelf, until_s: float) -> None:
        """Drop the bundles that do not hold beyond a moment; a site makes them in order."""
        while shelf.bundles and shelf.bundles[0].bundle.not_after_s <= until_s:
            self._keys.difference_update(self._identities(shelf.bundles.popleft()))

    def _check(self, shelf: _Shelf, site: Fingerprint, signed: SignedBundle, now_s: float) -> None:
        bundle = signed.bundle
        if len(shelf.bundles) >= self._target:
            raise PeerError(Reason.TOO_LARGE, f"more than {self._target} bundles in stock")
        if bundle.site != site or bundle.instance_id != shelf.instance_id:
            raise PeerError(Reason.WRONG_CONTEXT, "a bundle is of another site or instance")
        if bundle.consortium_id != self._consortium_id:
            raise PeerError(Reason.WRONG_CONTEXT, "a bundle was made for another consortium")
        if bundle.serial <= shelf.last_serial:
            raise PeerError(Reason.REPLAY, f"bundle {bundle.serial} came before")
        if bundle.not_after_s <= now_s + _EXPIRY_MARGIN_S:
            raise PeerError(Reason.REPLAY, f"bundle {bundle.serial} expires too soon")
        keys = self._identities(signed)
        if len(keys) < len(self._suite.key_identities(bundle)) or keys & self._keys:
            raise PeerError(Reason.REPLAY, f"bundle {bundle.serial} holds a key that is in stock")

    def _identities(self, signed: SignedBundle) -> set[bytes]:
        return set(self._suite.key_identities(signed.bundle))
