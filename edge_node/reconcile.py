"""Mend a site whose database is older than its mirror: restored from a backup, on purpose.

What the backup forgot cannot be known, only bounded: each durable step since then could have been a
charge. So every ledger is charged, for every missing step, with the dearest event that it knows;
one-time keys and live attempts are void, and the generation goes beyond the mirror's. A data set
whose ledger knows no event cannot be bounded; the administrator is told to judge that one.
"""

import hashlib
import time
from dataclasses import replace

from edge_node.boot_key import load_or_make
from edge_node.budget import open_ledger, read_entries
from edge_node.config import SiteConfig
from edge_node.lock import FolderLock
from edge_node.store import Store
from edge_node.store_schema import StoredLedger
from privacy.accounting.chain import Occasion
from privacy.accounting.events import NoDpEvent
from privacy.accounting.ledger import LedgerState

_JOB = "reconcile"


def reconcile(config: SiteConfig, *, accept: bool) -> list[str]:
    """Say what is missing and, when accepted, make up for it.

    Args:
        config: The site.
        accept: Do it; else only say what would be done.

    Returns:
        Lines for the administrator.

    Raises:
        UsageError: The edge node runs, or the database is damaged.
    """
    lock = FolderLock(config.folder)
    try:
        boot = load_or_make(config.folder, config.boot_key_folder)
        store = Store(config.database, config.mirror_file, boot, reconcile=True)
        try:
            return _mend(store, config.site_id, accept=accept)
        finally:
            store.close()
    finally:
        lock.release()


def _mend(store: Store, site_id: str, *, accept: bool) -> list[str]:
    missing = store.missing_steps()
    lines = [f"database at step {store.generation}, {missing} steps behind its mirror"]
    rows: list[tuple[str, int, bytes, str]] = []
    for stored in store.ledgers():
        row, line = _charge(open_ledger(site_id, stored), stored, missing)
        lines.append(f"data set {stored.dataset_id}: {line}")
        rows += [] if row is None else [row]
    lines.append("one-time keys and live attempts become void")
    if accept:
        store.reconcile(rows)
        lines.append(f"done: the site goes on at step {store.generation}")
    else:
        lines.append("nothing was changed: repeat with --accept to do this")
    return lines


def _charge(
    state: LedgerState, stored: StoredLedger, missing: int
) -> tuple[tuple[str, int, bytes, str] | None, str]:
    """Charge every missing step with the dearest known event, as far as the budget goes."""
    if not missing:
        return None, "nothing is missing"
    tally = state.tallies[0]
    digest = hashlib.sha256(b"reconcile").hexdigest()
    events = {
        entry.event: entry.occasion.tier
        for entry in read_entries(stored)
        if entry.occasion.context_digest != digest and not isinstance(entry.event, NoDpEvent)
    }
    # A charge may be of several steps: all of a round's local ones.
    event = max(events, key=lambda one: tally.after(one).rdp_units, default=None)
    if event is None:
        return None, (
            f"its ledger knows no private charge, so up to {missing} lost ones cannot be priced:"
            " count it as used up if it was in use"
        )
    lost = missing * event.steps
    steps = min(lost, tally.steps_that_fit(event))
    if not steps:
        return None, "its budget is used up already"
    occasion = Occasion(_JOB, 0, 0, digest, events[event])
    entry = state.next_entry(replace(event, steps=steps), occasion, round(time.time(), 3))
    after = state.charge(entry)
    row = (stored.dataset_id, after.sequence, entry.to_bytes(), after.head)
    beyond = "" if steps == lost else ", after which its budget is used up"
    return row, f"{steps} steps of its dearest charge are charged again{beyond}"
