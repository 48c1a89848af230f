"""The chain of a site's ledger: entries, canonical bytes, and the check that none was changed.

privacy.md, *Ledger*. Each entry holds the hash of the one before; the first holds the ledger's
genesis hash, which binds site, data set and budgets. SHA-256 over canonical JSON. Not here: what a
charge costs and whether it is allowed (`ledger`).

The chain has no key: who can rewrite all of it can forge it. That is what the anchor is for, the
newest (sequence, hash) kept in the mirror outside the backup set.
"""

import hashlib
import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from privacy.accounting.budget import require_name
from privacy.accounting.events import (
    Event,
    NoDpEvent,
    event_from_dict,
    event_to_dict,
    require_count,
    require_event,
    require_keys,
    require_real,
)
from privacy.errors import UsageError

LEDGER_VERSION: Final = "tidegate/ledger/1"
TIER_ENFORCED: Final = "enforced"
TIER_CONDITIONAL: Final = "conditional on reviewed code sha256:"
TIER_NONE: Final = "no differential privacy"
_HEX_64: Final = re.compile(r"[0-9a-f]{64}")
_MAX_COUNTER: Final = 2**53


@dataclass(frozen=True)
class Occasion:
    """What a charge was for.

    Attributes:
        job_id: The job.
        round_number: Its round, from 0.
        attempt: The attempt at the round's secure exchange, from 0.
        context_digest: Hex SHA-256 of the attempt's context (ctx of secure-aggregation.md).
        tier: Who is trusted with the clip: `TIER_ENFORCED`, `TIER_CONDITIONAL` followed by the hex
            digest of the reviewed code, or `TIER_NONE` for events without differential privacy.
    """

    job_id: str
    round_number: int
    attempt: int
    context_digest: str
    tier: str

    def __post_init__(self) -> None:
        require_name("ledger entry: job_id", self.job_id)
        require_count("ledger entry: round_number", self.round_number, _MAX_COUNTER, low=0)
        require_count("ledger entry: attempt", self.attempt, _MAX_COUNTER, low=0)
        _require_digest("context_digest", self.context_digest)
        if self.tier not in (TIER_ENFORCED, TIER_NONE):
            code_digest = str(self.tier).removeprefix(TIER_CONDITIONAL)
            if code_digest == self.tier or not _HEX_64.fullmatch(code_digest):
                raise UsageError(
                    f"ledger entry: tier is {self.tier!r}, must be {TIER_ENFORCED!r},"
                    f" {TIER_NONE!r} or '{TIER_CONDITIONAL}<64 hex digits>'"
                )


@dataclass(frozen=True)
class LedgerEntry:
    """One charge in the chain.

    Attributes:
        sequence: Position, from 1.
        prev_hash: Hex hash of the entry before, or the ledger's genesis hash.
        event: What was charged.
        occasion: What it was for.
        charged_at_s: Seconds since the epoch; for people only, no rule uses it.
    """

    sequence: int
    prev_hash: str
    event: Event
    occasion: Occasion
    charged_at_s: float

    def __post_init__(self) -> None:
        require_count("ledger entry: sequence", self.sequence, _MAX_COUNTER)
        _require_digest("prev_hash", self.prev_hash)
        require_event(self.event)
        if not isinstance(self.occasion, Occasion):
            raise UsageError("ledger entry: occasion must be an Occasion")
        where = "ledger entry: charged_at_s"
        at_s = require_real(where, self.charged_at_s, 0.0, 1e12, zero_allowed=True)
        object.__setattr__(self, "charged_at_s", at_s)
        if isinstance(self.event, NoDpEvent) != (self.occasion.tier == TIER_NONE):
            raise UsageError(
                f"ledger entry: tier {self.occasion.tier!r} does not fit the event"
                f" {self.event.KIND!r}: {TIER_NONE!r} goes with {NoDpEvent.KIND!r} and only with it"
            )

    def to_dict(self) -> dict[str, object]:
        """Give the JSON-able form."""
        occasion = self.occasion
        return {
            "version": LEDGER_VERSION,
            "sequence": self.sequence,
            "prev_hash": self.prev_hash,
            "event": event_to_dict(self.event),
            "job_id": occasion.job_id,
            "round_number": occasion.round_number,
            "attempt": occasion.attempt,
            "context_digest": occasion.context_digest,
            "tier": occasion.tier,
            "charged_at_s": self.charged_at_s,
        }

    @classmethod
    def from_dict(cls, data: dict[str, object]) -> "LedgerEntry":
        """Build an entry from its JSON-able form; unknown and missing keys are refused.

        Raises:
            UsageError: A key or value is wrong; the message names it.
        """
        if not isinstance(data, dict):
            raise UsageError(f"a ledger entry must be an object, not {type(data).__name__}")
        rest = dict(data)
        if rest.pop("version", None) != LEDGER_VERSION:
            raise UsageError(f"ledger entry: version is not {LEDGER_VERSION!r}")
        occasion_keys = set(Occasion.__dataclass_fields__)
        require_keys(
            "ledger entry",
            rest,
            {"sequence", "prev_hash", "event", "charged_at_s"} | occasion_keys,
        )
        occasion = Occasion(**{key: rest.pop(key) for key in occasion_keys})  # type: ignore[arg-type]
        event = event_from_dict(rest.pop("event"))
        return cls(event=event, occasion=occasion, **rest)  # type: ignore[arg-type]

    def to_bytes(self) -> bytes:
        """Give the canonical bytes, which are hashed and stored."""
        return canonical_json(self.to_dict())

    @classmethod
    def from_bytes(cls, data: bytes) -> "LedgerEntry":
        """Parse canonical bytes; any other spelling of the same entry is refused.

        Raises:
            UsageError: Not JSON, not an entry, or not in canonical form.
        """
        try:
            entry = cls.from_dict(json.loads(data))
        except (ValueError, RecursionError) as error:
            raise UsageError(f"ledger entry is not JSON: {error}") from error
        if entry.to_bytes() != data:
            raise UsageError("ledger entry is not in canonical form: it was edited or re-encoded")
        return entry

    def entry_hash(self) -> str:
        """Give the hex SHA-256 of the canonical bytes: the next entry's `prev_hash`."""
        return hashlib.sha256(self.to_bytes()).hexdigest()


@dataclass(frozen=True)
class Anchor:
    """Where a chain stood: kept in the mirror, to show that nothing after it was cut off.

    Attributes:
        sequence: Number of entries; 0 for an empty ledger.
        head: Hex hash of the newest entry, or the genesis hash.
    """

    sequence: int
    head: str

    def __post_init__(self) -> None:
        require_count("ledger anchor: sequence", self.sequence, _MAX_COUNTER, low=0)
        _require_digest("head", self.head)


def verify_chain(
    entries: Iterable[LedgerEntry], genesis_head: str, anchor: Anchor | None = None
) -> Anchor:
    """Check a whole chain, oldest entry first: sequence numbers, hashes and the mirror's anchor.

    The chain may be longer than the anchor says (the mirror catches up), never shorter. Without an
    anchor, a chain whose newest entries were cut off or rewritten together passes.

    Args:
        entries: The stored entries.
        genesis_head: Head of `LedgerState.open` for the site and its declared budgets.
        anchor: What the mirror says.

    Returns:
        The chain's own newest anchor.

    Raises:
        UsageError: Names the first bad entry by its sequence number and what is wrong with it.
    """
    chain = list(entries)
    # heads[k] is the head after k entries.
    heads = [genesis_head, *(entry.entry_hash() for entry in chain)]
    for index, entry in enumerate(chain):
        if entry.sequence != index + 1:
            raise UsageError(
                f"ledger entry {index + 1} is missing: entry {entry.sequence} stands in its place;"
                " entries were removed, doubled or reordered"
            )
        if entry.prev_hash != heads[index]:
            raise UsageError(_broken_link(chain, heads, index, anchor))
    if anchor is not None and (len(chain) < anchor.sequence):
        raise UsageError(
            f"ledger entry {len(chain) + 1} is missing: the chain ends at {len(chain)}, the mirror"
            f" knows {anchor.sequence}; an old backup was restored or entries were cut off. Refuse"
            " work until an administrator reconciles them"
        )
    if anchor is not None and heads[anchor.sequence] != anchor.head:
        raise UsageError(
            f"ledger entry {anchor.sequence} was altered: the mirror knows another hash for it"
            if anchor.sequence
            else "the ledger's site, data set or budgets differ from what the mirror was made with"
        )
    return Anchor(len(chain), heads[-1])


def canonical_json(data: object) -> bytes:
    """Encode as compact ASCII JSON with sorted keys; floats by repr, so equal values, equal bytes.

    Raises:
        UsageError: The data holds NaN, an infinity or something JSON does not know.
    """
    try:
        text = json.dumps(data, sort_keys=True, separators=(",", ":"), allow_nan=False)
    except (ValueError, TypeError) as error:
        raise UsageError(f"not encodable as canonical JSON: {error}") from error
    return text.encode("ascii")


def _broken_link(
    chain: Sequence[LedgerEntry], heads: Sequence[str], index: int, anchor: Anchor | None
) -> str:
    """Say which side of a broken link was altered: what later hashes vouch for is sound."""
    if index + 1 < len(chain):
        vouched = chain[index + 1].prev_hash == heads[index + 1]
    else:
        vouched = anchor == Anchor(index + 1, heads[index + 1])
    if index == 0:
        return (
            "ledger entry 1 does not begin this ledger: it was altered, or it belongs to another"
            " site, data set or set of budgets"
        )
    bad = index if vouched else index + 1
    return f"ledger entry {bad} was altered: entries {index} and {index + 1} do not link"


def _require_digest(name: str, value: object) -> None:
    if not isinstance(value, str) or not _HEX_64.fullmatch(value):
        raise UsageError(f"ledger entry: {name} is {value!r}, must be 64 lower-case hex digits")
