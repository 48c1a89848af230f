"""The rules of the site's privacy ledger: what is charged, what is refused, what is left.

privacy.md, *Ledger*. One ledger per (site, administrator-declared data-set id); its genesis hash
binds both and every budget with its fixed order, so a chain moved to another site or data set, or
read under an edited budget, fails at its first entry. Every event charges every budget of the data
set, all or none; nothing is refunded. The same input charged twice is counted twice: whether an
attempt may reuse a charge is the retry rule's business (secure-aggregation.md).

Not here: durability (the shell commits a charge before the first byte leaves) and the mirror, whose
anchor goes to `replay`. A charge is O(1): prices are cached and tallies run on.
"""

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from privacy.accounting.budget import Budget, Tally, require_name
from privacy.accounting.chain import (
    LEDGER_VERSION,
    Anchor,
    LedgerEntry,
    Occasion,
    canonical_json,
    verify_chain,
)
from privacy.accounting.events import Event
from privacy.errors import PeerError, UsageError


@dataclass(frozen=True)
class LedgerState:
    """The state of one data set's ledger: where the chain ends and what is spent.

    Attributes:
        tallies: One per budget of the data set.
        sequence: Sequence number of the newest entry; 0 when there is none.
        head: Hex hash of the newest entry, or the genesis hash.
    """

    tallies: tuple[Tally, ...]
    sequence: int
    head: str

    @property
    def anchor(self) -> Anchor:
        """Where the chain stands now, for the mirror."""
        return Anchor(self.sequence, self.head)

    @classmethod
    def open(cls, site_id: str, budgets: Sequence[Budget]) -> "LedgerState":
        """Start an empty ledger for a site's data set.

        Raises:
            UsageError: No budget, budgets of several data sets, or two of the same unit.
        """
        require_name("site_id", site_id)
        datasets = {budget.dataset_id for budget in budgets}
        units = [budget.unit for budget in budgets]
        if len(datasets) != 1 or len(set(units)) != len(units):
            raise UsageError(
                f"a ledger is for one data set with at most one budget a unit; got data sets"
                f" {sorted(datasets)} with units {units}"
            )
        genesis = {
            "version": LEDGER_VERSION,
            "site_id": site_id,
            "budgets": [budget.to_dict() for budget in budgets],
        }
        head = hashlib.sha256(canonical_json(genesis)).hexdigest()
        return cls(tuple(Tally(budget) for budget in budgets), 0, head)

    def next_entry(self, event: Event, occasion: Occasion, charged_at_s: float) -> LedgerEntry:
        """Make the entry that `charge` accepts next; nothing is charged yet.

        Raises:
            UsageError: The event is of no known kind, or a value is out of range.
        """
        return LedgerEntry(self.sequence + 1, self.head, event, occasion, charged_at_s)

    def charge(self, entry: LedgerEntry) -> "LedgerState":
        """Append an entry and charge its event to every budget, all or none.

        Raises:
            PeerError: BUDGET_EXHAUSTED; says what would have been reached and what is left.
            UsageError: The entry does not follow the head, or its event is of no known kind.
        """
        if entry.sequence != self.sequence + 1:
            raise UsageError(
                f"ledger entry {entry.sequence} does not follow entry {self.sequence}: one is"
                " missing, doubled or out of order"
            )
        if entry.prev_hash != self.head:
            before = f"entry {self.sequence}" if self.sequence else "the ledger's genesis"
            raise UsageError(
                f"ledger entry {entry.sequence} does not continue {before}: it or the one before"
                " was altered, or it belongs to another site, data set or budget"
            )
        tallies = tuple(tally.charge(entry.event) for tally in self.tallies)
        return LedgerState(tallies, entry.sequence, entry.entry_hash())

    def tally(self, unit: str = "record") -> Tally:
        """Give the tally of a unit's budget.

        Raises:
            UsageError: The data set has no budget for the unit.
        """
        for tally in self.tallies:
            if tally.budget.unit == unit:
                return tally
        raise UsageError(f"the data set has no budget for the unit {unit!r}")

    def spent_epsilon(self, unit: str = "record") -> float:
        """Give the epsilon spent of a unit's budget, at its delta_dp."""
        return self.tally(unit).spent_epsilon

    def remaining(self, unit: str = "record") -> float:
        """Give the epsilon left of a unit's budget."""
        return self.tally(unit).remaining


def replay(
    genesis: LedgerState, entries: Iterable[LedgerEntry], anchor: Anchor | None = None
) -> LedgerState:
    """Verify a stored chain and sum up what it spent.

    Args:
        genesis: `LedgerState.open` of the site and its declared budgets.
        entries: The stored entries, oldest first.
        anchor: What the mirror says; see `verify_chain`.

    Raises:
        UsageError: The chain is broken, cut off, or holds a charge that its budgets never allowed;
            the message names the entry.
    """
    chain = list(entries)
    verify_chain(chain, genesis.head, anchor)
    state = genesis
    for entry in chain:
        try:
            state = state.charge(entry)
        except PeerError as error:
            raise UsageError(
                f"ledger entry {entry.sequence} was never allowed: {error.args[0]}"
            ) from error
    return state
