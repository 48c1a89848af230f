"""Hold the site's privacy ledgers: open them, look ahead, and prepare charges for the store.

The rules are in `privacy.accounting.ledger`; durability is the store's, which writes a charge in
the same transaction as the slot of step 2. A ledger is made when the first job on its data set is
accepted: its order alpha is then fixed from the administrator's word or the job's public plan,
before anything is charged (privacy.md, "Filter"). From the first charge on it never changes.
"""

import contextlib
import json
from collections.abc import Iterable
from dataclasses import dataclass

from edge_node import log
from edge_node.data.dataset import Dataset
from edge_node.policy import BudgetRule, Policy
from edge_node.store import Store
from edge_node.store_schema import StoredLedger
from privacy.accounting.accountant import ORDERS
from privacy.accounting.budget import Budget, Tally
from privacy.accounting.chain import (
    TIER_CONDITIONAL,
    TIER_ENFORCED,
    TIER_NONE,
    Anchor,
    LedgerEntry,
    Occasion,
    canonical_json,
)
from privacy.accounting.events import Event, NoDpEvent
from privacy.accounting.ledger import LedgerState, replay
from privacy.errors import PeerError, Reason, UsageError
from tidegate.jobfile import NONE, JobFile, PrivacyUnit

_PLAIN_ALPHA = 16  # where the first job has no differential privacy, no plan prefers an order


@dataclass(frozen=True)
class PreparedCharge:
    """A charge that the budgets allow: store ``row`` with the slot, then ``accept`` it.

    Attributes:
        row: (data-set id, sequence, canonical bytes, new head), for `StepRecord.charge`.
        state: The ledger's state once it is stored.
    """

    row: tuple[str, int, bytes, str]
    state: LedgerState


def charge_tier(job_file: JobFile, app_sha256: bytes) -> str:
    """Say who is trusted with the clip of a job (privacy.md, "Who is trusted with the clip").

    Args:
        job_file: The job.
        app_sha256: Digest of its app bundle, which the site's policy has judged.
    """
    if job_file.privacy.mode == NONE:
        return TIER_NONE
    if job_file.declares_dp:
        return f"{TIER_CONDITIONAL}{app_sha256.hex()}"  # its own code clips and adds the noise
    return TIER_ENFORCED


def check_unit(policy: Policy, dataset: Dataset, unit: PrivacyUnit) -> None:
    """Refuse a job whose events would not bound what the users of a user budget lose.

    An event of users is charged as it is, so its users must be those of the budget; an event of
    records is charged for the budget's row cap, so no user may have more rows, and no row may be
    without a user: it would be somebody's beyond the cap (privacy.md, "Ledger": no cap, refused).

    Raises:
        PeerError: POLICY.
    """
    rule = policy.budget_rule(dataset.dataset_id)
    if rule is None or rule.unit != "user" or unit.kind not in ("record", "user"):
        return
    if unit.kind == "user":
        if unit.column != rule.user_column:
            raise PeerError(
                Reason.POLICY,
                f"the budget of {dataset.dataset_id!r} protects other users than those of column"
                f" {unit.column!r}",
            )
        return
    try:
        users = dataset.groups(rule.user_column or "")
        most = int(users.counts_U.max(initial=0))
        fits = most <= (rule.max_rows_per_user or 0) and len(users.rows_N) == len(dataset)
        why = "a user has more rows than max_rows_per_user, or a row has no user"
    except UsageError as error:
        fits, why = False, f"users cannot be told apart: {error}"
    if not fits:
        log.warning("user budget and single records", dataset=dataset.name, why=why)
        raise PeerError(
            Reason.POLICY,
            f"the user budget of {dataset.dataset_id!r} cannot be held against single records:"
            " this site takes jobs with unit = 'user' only",
        )


@dataclass(frozen=True)
class BudgetLine:
    """One line of ``edge-node budget``: what is spent and left of one budget.

    Attributes:
        used_share: Share of all that the budget can carry that is used: what tells how many more
            such jobs there is room for, which epsilon, spent unevenly, does not.
        by_tier: How many charges each tier has, by the words of the ledger.
    """

    dataset_id: str
    unit: str
    alpha: int
    epsilon: float
    delta_dp: float
    spent_epsilon: float
    left_epsilon: float
    used_share: float
    charges: int
    by_tier: dict[str, int]


class Ledgers:
    """The ledgers of all data sets of a site."""

    def __init__(self, store: Store, site_id: str) -> None:
        """Verify every stored chain.

        Raises:
            UsageError: A chain is broken; the message names the data set and the first bad entry.
        """
        self._store = store
        self._site_id = site_id
        self._states = {
            ledger.dataset_id: open_ledger(site_id, ledger) for ledger in store.ledgers()
        }

    def ensure(self, policy: Policy, dataset_id: str, plan: Event) -> None:
        """Make the ledger of a data set if it has none, or anew if it was changed uncharged.

        Args:
            policy: Declares the budget.
            dataset_id: What is charged.
            plan: What a first job costs, all rounds, from its public plan: chooses alpha if open.

        Raises:
            PeerError: POLICY: no budget is declared, or it was changed after it was charged.
        """
        made = self._states.get(dataset_id)
        state = ledger_for(self._site_id, policy, dataset_id, plan, made)
        if state is made:
            return
        budgets = canonical_json([tally.budget.to_dict() for tally in state.tallies])
        self._store.add_budget(dataset_id, budgets, state.head)
        self._states[dataset_id] = state

    def look_ahead(self, dataset_id: str, event: Event) -> None:
        """Check that every budget still allows an event, before the site says that it is ready.

        Raises:
            PeerError: BUDGET_EXHAUSTED; says what would have been reached and what is left.
        """
        check_fits(self._state(dataset_id), event)

    def prepare(
        self, dataset_id: str, event: Event, occasion: Occasion, now_s: float
    ) -> PreparedCharge:
        """Make the next entry of a ledger, if the budgets allow it.

        Raises:
            PeerError: BUDGET_EXHAUSTED.
        """
        state = self._state(dataset_id)
        entry = state.next_entry(event, occasion, now_s)
        after = state.charge(entry)
        return PreparedCharge((dataset_id, after.sequence, entry.to_bytes(), after.head), after)

    def accept(self, charge: PreparedCharge) -> None:
        """Count a charge that the store has made durable."""
        self._states[charge.row[0]] = charge.state

    def spent(self, dataset_id: str, delta_dp: float | None = None) -> float:
        """Give the epsilon spent of a data set's budget; 0 before it has a ledger.

        Args:
            dataset_id: Whose.
            delta_dp: A job's delta, to say what it and all private releases before it cost at that;
                None for the budget's own, where a release without privacy makes it infinite.
        """
        state = self._states.get(dataset_id)
        if state is None:
            return 0.0
        tally = state.tallies[0]
        return tally.spent_epsilon if delta_dp is None else tally.private_epsilon(delta_dp)

    def _state(self, dataset_id: str) -> LedgerState:
        try:
            return self._states[dataset_id]
        except KeyError:
            raise UsageError(f"data set id {dataset_id!r} has no ledger yet") from None


def ledger_for(
    site_id: str, policy: Policy, dataset_id: str, plan: Event, made: LedgerState | None
) -> LedgerState:
    """Give the ledger that a job on a data set is charged to.

    Args:
        site_id: Whose ledger.
        policy: Declares the budget.
        dataset_id: What is charged.
        plan: What all rounds of the job cost, from its public plan: chooses alpha if open.
        made: The data set's ledger, if it has one.

    Returns:
        ``made`` itself where it stands as declared; else a new one, uncharged.

    Raises:
        PeerError: POLICY: no budget is declared, or it was changed after it was charged;
            BUDGET_EXHAUSTED: not one step fits it at any order.
    """
    rule = policy.budget_rule(dataset_id)
    if rule is None:
        raise PeerError(
            Reason.POLICY,
            f"the site's policy declares no budget for data set id {dataset_id!r}:"
            f" add [budgets.{dataset_id}] to policy.toml",
        )
    if made is not None:
        changed = _changes(rule, made.tallies[0].budget, policy, plan)
        if not changed:
            return made
        if made.sequence:
            raise PeerError(
                Reason.POLICY,
                f"the budget of {dataset_id!r} in policy.toml differs from the one that its"
                f" ledger was made with ({', '.join(changed)}); a budget is fixed once it was"
                " charged: restore it",
            )
    alpha = rule.alpha or _lasting_alpha(rule, plan)
    return LedgerState.open(site_id, [rule.budget(alpha, allow_no_dp=policy.allow_no_dp)])


def check_fits(state: LedgerState, event: Event) -> None:
    """Check that every budget of a ledger still allows an event.

    Raises:
        PeerError: BUDGET_EXHAUSTED; says what would have been reached and what is left.
    """
    for tally in state.tallies:
        tally.charge(event)


def _changes(rule: BudgetRule, made: Budget, policy: Policy, plan: Event) -> list[str]:
    """Name the keys that policy.toml changed since the ledger was made, if the job needs them.

    Consent to mode ``none`` counts for jobs in that mode alone: whoever withdraws it keeps the
    others, and whoever gives it later never gives it to a budget that was charged without.
    """
    changed = [
        name
        for name in ("unit", "epsilon", "delta_dp", "max_rows_per_user", "user_column")
        if getattr(rule, name) != getattr(made, name)
    ]
    if rule.alpha is not None and rule.alpha != made.alpha:
        changed.append("alpha")
    if isinstance(plan, NoDpEvent) and policy.allow_no_dp != made.allow_no_dp:
        changed.append("allow_no_dp")
    return changed


def _lasting_alpha(rule: BudgetRule, plan: Event) -> int:
    """Choose the order at which the budget carries the most steps of a public plan.

    Raises:
        PeerError: BUDGET_EXHAUSTED: not one step fits at any order.
    """
    if isinstance(plan, NoDpEvent):
        return _PLAIN_ALPHA
    most, chosen = 0, 0
    for alpha in ORDERS:
        with contextlib.suppress(UsageError):  # this order alone costs more than the budget
            steps = Tally(rule.budget(alpha, allow_no_dp=False)).steps_that_fit(plan)
            if steps > most:
                most, chosen = steps, alpha
    if not chosen:
        raise PeerError(
            Reason.BUDGET_EXHAUSTED,
            f"the budget of {rule.dataset_id!r}, epsilon {rule.epsilon:g} at delta_dp"
            f" {rule.delta_dp:g}, does not carry one step of this job",
        )
    return chosen


def open_ledger(site_id: str, stored: StoredLedger) -> LedgerState:
    """Verify a stored ledger from its genesis on and sum up what it spent.

    Raises:
        UsageError: Names the data set and the first bad entry.
    """
    try:
        genesis = LedgerState.open(site_id, _budgets(stored))
        anchor = Anchor(len(stored.entries), stored.head)
        return replay(genesis, read_entries(stored), anchor)
    except UsageError as error:
        raise UsageError(f"privacy ledger of data set {stored.dataset_id!r}: {error}") from error


def budget_lines(site_id: str, ledgers: Iterable[StoredLedger]) -> list[BudgetLine]:
    """Give what each budget has spent and left, from verified chains.

    Raises:
        UsageError: A chain is broken.
    """
    lines = []
    for stored in ledgers:
        state = open_ledger(site_id, stored)
        by_tier: dict[str, int] = {}
        for entry in read_entries(stored):
            by_tier[entry.occasion.tier] = by_tier.get(entry.occasion.tier, 0) + 1
        for tally in state.tallies:
            budget = tally.budget
            lines.append(
                BudgetLine(
                    dataset_id=stored.dataset_id,
                    unit=budget.unit,
                    alpha=budget.alpha,
                    epsilon=budget.epsilon,
                    delta_dp=budget.delta_dp,
                    spent_epsilon=tally.spent_epsilon,
                    left_epsilon=tally.remaining,
                    used_share=tally.used_share,
                    charges=state.sequence,
                    by_tier=by_tier,
                )
            )
    return lines


def _budgets(stored: StoredLedger) -> list[Budget]:
    try:
        data = json.loads(stored.budgets)
    except (ValueError, RecursionError) as error:
        raise UsageError("its budgets are not JSON") from error
    if not isinstance(data, list):
        raise UsageError("its budgets are not a list")
    return [Budget.from_dict(item) for item in data]


def read_entries(stored: StoredLedger) -> list[LedgerEntry]:
    """Read a stored ledger's entries.

    Raises:
        UsageError: Names the first that is damaged.
    """
    entries = []
    for number, raw in enumerate(stored.entries, start=1):
        try:
            entries.append(LedgerEntry.from_bytes(raw))
        except UsageError as error:
            raise UsageError(f"entry {number}: {error}") from error
    return entries
