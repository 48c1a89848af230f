"""What a site's durable slots hold: enough to give the identical bytes again, and no secret.

Slot 0, sparse cohorts only: the roster, before r is revealed. Slot 1: the roster (or the sparse
graph's seed), the shares as sealed, the signature. Slot 2: U2 and the ciphertexts as received.
(Both kinds open only with the attempt's wrapped seeds.) Slot 3: one survivor set and its signature,
or the abort, never both. Slot 4: that the shares were released. Each begins with the digest of the
accepted input.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeVar

from privacy.errors import PeerError, UsageError
from privacy.secagg import statements
from privacy.secagg.cohort import Cohort
from privacy.secagg.commands import Step
from privacy.secagg.encoding import dec, enc
from privacy.secagg.messages import (
    AttemptContext,
    BaseVersion,
    Bundle,
    CohortPlan,
    Roster,
    SignedBundle,
)

_Part = TypeVar("_Part", str, bytes, int)


@dataclass(frozen=True)
class RevealSlot:
    """Slot 0 of a sparse cohort: the roster that r was revealed for."""

    input_digest: bytes
    roster: Roster

    def encode(self) -> bytes:
        """Return the slot's bytes."""
        return enc("slot-0", self.input_digest, *_roster_parts(self.roster))


@dataclass(frozen=True)
class SparseSharesSlot:
    """Slot 1 of a sparse cohort, whose roster is in slot 0."""

    input_digest: bytes
    graph_seed: bytes
    ciphertexts: tuple[bytes, ...]
    signature: bytes

    def encode(self) -> bytes:
        """Return the slot's bytes."""
        head = (self.input_digest, self.graph_seed, self.signature)
        return enc("slot-1-sparse", *head, *self.ciphertexts)


@dataclass(frozen=True)
class SharesSlot:
    """Slot 1 of a complete cohort."""

    input_digest: bytes
    roster: Roster
    ciphertexts: tuple[bytes, ...]
    signature: bytes

    def encode(self) -> bytes:
        """Return the slot's bytes."""
        size, roster = len(self.ciphertexts), _roster_parts(self.roster)
        head = (self.input_digest, self.signature)
        return enc("slot-1", *head, size, *self.ciphertexts, *roster)


@dataclass(frozen=True)
class MaskedSlot:
    """Slot 2: by dealer's index, ascending, every ciphertext that made U2."""

    input_digest: bytes
    ciphertexts: tuple[tuple[int, bytes], ...]

    def encode(self) -> bytes:
        """Return the slot's bytes."""
        flat: list[bytes | int] = []
        for index, ciphertext in self.ciphertexts:
            flat += [index, ciphertext]
        return enc("slot-2", self.input_digest, *flat)


@dataclass(frozen=True)
class SurvivorSlot:
    """Slot 3, with a survivor set."""

    input_digest: bytes
    dealt: tuple[int, ...]
    survivors: tuple[int, ...]
    signature: bytes

    def encode(self) -> bytes:
        """Return the slot's bytes."""
        sizes = (len(self.dealt), len(self.survivors))
        return enc(
            "slot-3-u3", self.input_digest, self.signature, *sizes, *self.dealt, *self.survivors
        )

    def statement(self, cohort: Cohort) -> bytes:
        """Return the u3 string that the signature is on."""
        return statements.survivor_statement(cohort.rh, cohort.mh, self.dealt, self.survivors)


@dataclass(frozen=True)
class AbortSlot:
    """Slot 3, with the abort."""

    signature: bytes
    accused: bytes

    def encode(self) -> bytes:
        """Return the slot's bytes."""
        return enc("slot-3-abort", self.signature, self.accused)


@dataclass(frozen=True)
class UnmaskSlot:
    """Slot 4."""

    input_digest: bytes

    def encode(self) -> bytes:
        """Return the slot's bytes."""
        return enc("slot-4", self.input_digest)


Slot = (
    RevealSlot | SharesSlot | SparseSharesSlot | MaskedSlot | SurvivorSlot | AbortSlot | UnmaskSlot
)


def first_of(stored: Mapping[Step, Slot]) -> RevealSlot | SharesSlot:
    """Return an attempt's first slot, which holds the roster.

    Raises:
        UsageError: It is missing, or the wrong one.
    """
    first = stored.get(Step.REVEAL, stored.get(Step.SHARE_KEYS))
    if not isinstance(first, RevealSlot | SharesSlot):
        raise UsageError("an attempt's first slot is missing: restore the site's database")
    return first


def decode(step: Step, slot: bytes) -> Slot:
    """Read a slot back.

    Raises:
        UsageError: The store gave something else than what ``Commit`` held.
    """
    try:
        reader = _Reader(dec(slot))
        found = _READERS[reader.text()](reader)
        reader.end()
    except (PeerError, KeyError) as error:
        raise UsageError(f"slot {int(step)} is damaged: restore the site's database") from error
    if _STEPS[type(found)] is not step or found.encode() != slot:
        raise UsageError(f"slot {int(step)} is not what was committed: restore the database")
    return found


class _Reader:
    """Take the parts of an encoding in order, each of the expected type."""

    def __init__(self, parts: tuple[str | bytes | int, ...]) -> None:
        self.left = len(parts)
        self._parts = iter(parts)

    def text(self) -> str:
        return self._take(str)

    def raw(self) -> bytes:
        return self._take(bytes)

    def number(self) -> int:
        return self._take(int)

    def numbers(self, count: int) -> tuple[int, ...]:
        return tuple(self.number() for _ in range(count))

    def end(self) -> None:
        if self.left:
            raise UsageError("a slot has parts left over: restore the site's database")

    def _take(self, kind: type[_Part]) -> _Part:
        part = next(self._parts, None)
        self.left -= 1
        if not isinstance(part, kind):
            raise UsageError("a slot lacks a part of its kind: restore the site's database")
        return part


def _roster_parts(roster: Roster) -> list[str | bytes | int]:
    context, plan = roster.context, roster.plan
    parts: list[str | bytes | int] = [
        context.suite,
        context.consortium_id,
        context.manifest_hash,
        context.job_id,
        context.roster_epoch,
        context.round,
        context.attempt,
        plan.encoding,
        plan.ring_bits,
        plan.length,
        plan.colluders,
        plan.min_survivors,
        plan.dropout_percent,
        plan.chain_head,
        len(plan.bases),
    ]
    for base in plan.bases:
        parts += [base.site, base.version]
    for signed in roster.bundles:
        bundle = signed.bundle
        parts += [
            bundle.consortium_id,
            bundle.site,
            bundle.instance_id,
            bundle.serial,
            bundle.c_pk,
            bundle.m_pk,
            bundle.r_commitment,
            bundle.not_after_s,
            signed.signature,
        ]
    return parts


def _roster(reader: _Reader) -> Roster:
    context = AttemptContext(
        suite=reader.text(),
        consortium_id=reader.text(),
        manifest_hash=reader.raw(),
        job_id=reader.text(),
        roster_epoch=reader.number(),
        round=reader.number(),
        attempt=reader.number(),
    )
    plan = CohortPlan(
        encoding=reader.raw(),
        ring_bits=reader.number(),
        length=reader.number(),
        colluders=reader.number(),
        min_survivors=reader.number(),
        dropout_percent=reader.number(),
        chain_head=reader.raw(),
        bases=tuple(BaseVersion(reader.raw(), reader.number()) for _ in range(reader.number())),
    )
    bundles = []
    while reader.left:
        bundle = Bundle(
            consortium_id=reader.text(),
            site=reader.raw(),
            instance_id=reader.raw(),
            serial=reader.number(),
            c_pk=reader.raw(),
            m_pk=reader.raw(),
            r_commitment=reader.raw(),
            not_after_s=reader.number(),
        )
        bundles.append(SignedBundle(bundle, reader.raw()))
    return Roster(context, tuple(bundles), plan)


def _shares_slot(reader: _Reader) -> Slot:
    digest, signature = reader.raw(), reader.raw()
    sealed = tuple(reader.raw() for _ in range(reader.number()))
    return SharesSlot(digest, _roster(reader), sealed, signature)


def _sparse_shares_slot(reader: _Reader) -> Slot:
    digest, seed, signature = reader.raw(), reader.raw(), reader.raw()
    sealed = tuple(reader.raw() for _ in range(reader.left))
    return SparseSharesSlot(digest, seed, sealed, signature)


def _masked_slot(reader: _Reader) -> Slot:
    digest = reader.raw()
    pairs = []
    while reader.left:
        pairs.append((reader.number(), reader.raw()))
    return MaskedSlot(digest, tuple(pairs))


def _survivor_slot(reader: _Reader) -> Slot:
    digest, signature = reader.raw(), reader.raw()
    dealt_count, survivor_count = reader.number(), reader.number()
    return SurvivorSlot(
        digest, reader.numbers(dealt_count), reader.numbers(survivor_count), signature
    )


_READERS: dict[str, Callable[[_Reader], Slot]] = {
    "slot-0": lambda reader: RevealSlot(reader.raw(), _roster(reader)),
    "slot-1": _shares_slot,
    "slot-1-sparse": _sparse_shares_slot,
    "slot-2": _masked_slot,
    "slot-3-u3": _survivor_slot,
    "slot-3-abort": lambda reader: AbortSlot(reader.raw(), reader.raw()),
    "slot-4": lambda reader: UnmaskSlot(reader.raw()),
}

_STEPS: dict[type[Slot], Step] = {
    RevealSlot: Step.REVEAL,
    SharesSlot: Step.SHARE_KEYS,
    SparseSharesSlot: Step.SHARE_KEYS,
    MaskedSlot: Step.MASKED_UPDATE,
    SurvivorSlot: Step.CONSISTENCY,
    AbortSlot: Step.CONSISTENCY,
    UnmaskSlot: Step.UNMASK,
}
