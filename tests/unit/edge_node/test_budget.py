"""The ledger's shell: budgets are made once, charged durably, never refunded, and never edited."""

import contextlib
import dataclasses
import json
import math
import sqlite3

import pytest

from edge_node.boot_key import BootKey
from edge_node.budget import Ledgers, budget_lines
from edge_node.policy import BudgetRule, Policy
from edge_node.reconcile import reconcile
from edge_node.store import Store
from edge_node.store_schema import StepRecord, StoredAttempt, StoredBundle, connect, read_ledgers
from privacy.accounting.chain import TIER_ENFORCED, Occasion
from privacy.accounting.events import NoDpEvent, SkellamRecordEvent
from privacy.errors import PeerError, Reason, UsageError

KEY = BootKey(b"k" * 32, fresh=False, on_memory=True)
EVENT = SkellamRecordEvent(q=0.1, V=1e8, D1=1e6, D2=1e4, d=10_000, n_sites=5)
PLAN = dataclasses.replace(EVENT, steps=50)
POLICY = Policy(budgets=(BudgetRule("loans", 4.0, 1e-5),))


@pytest.fixture
def store(tmp_path):
    store = Store(tmp_path / "state" / "site.db", tmp_path / "generation", KEY)
    yield store
    store.close()


def occasion(number):
    return Occasion("job-1", number, 1, "ab" * 32, TIER_ENFORCED)


def charge(store, ledgers, number, event=EVENT):
    """Charge as step 2 does, in an attempt of its own."""
    ctx = number.to_bytes(32, "big")
    (serial,) = store.reserve_serials(1)
    store.add_bundles([StoredBundle(serial, b"signed", b"s" * 32)], 512)
    begun = StoredAttempt(ctx, "job-1", number, 1, b"facts", b"t" * 96, serial)
    store.commit_step(StepRecord(ctx, 1, b"d" * 32, b"slot", begin=begun))
    prepared = ledgers.prepare("loans", event, occasion(number), 1e9 + number)
    store.commit_step(StepRecord(ctx, 2, b"d" * 32, b"slot", charge=prepared.row))
    ledgers.accept(prepared)
    store.erase(ctx)


def test_charges_survive_a_restart_to_the_last_digit(tmp_path, store):
    ledgers = Ledgers(store, "bank-a")
    ledgers.ensure(POLICY, "loans", PLAN)
    for number in range(1, 4):
        charge(store, ledgers, number)
    again = Ledgers(store, "bank-a")
    assert again.spent("loans") == ledgers.spent("loans") > 0
    (line,) = budget_lines("bank-a", store.ledgers())
    assert (line.charges, line.by_tier, line.epsilon) == (3, {"enforced": 3}, 4.0)
    assert math.isclose(line.spent_epsilon + line.left_epsilon, 4.0)


def test_a_prepared_charge_that_is_not_stored_counts_for_nothing(store):
    ledgers = Ledgers(store, "bank-a")
    ledgers.ensure(POLICY, "loans", PLAN)
    ledgers.prepare("loans", EVENT, occasion(1), 1e9)
    assert ledgers.spent("loans") == 0.0
    assert budget_lines("bank-a", store.ledgers())[0].charges == 0


def test_an_exhausted_budget_is_refused_ahead_and_at_the_charge(store):
    ledgers = Ledgers(store, "bank-a")
    ledgers.ensure(POLICY, "loans", PLAN)
    number = ledgers._states["loans"].tallies[0].steps_that_fit(EVENT)
    for step in range(1, number + 1):
        ledgers.look_ahead("loans", EVENT)
        charge(store, ledgers, step)
    with pytest.raises(PeerError) as ahead:
        ledgers.look_ahead("loans", EVENT)
    assert ahead.value.reason is Reason.BUDGET_EXHAUSTED
    assert "left" in str(ahead.value)
    with pytest.raises(PeerError) as caught:
        ledgers.prepare("loans", EVENT, occasion(99), 1e9)
    assert caught.value.reason is Reason.BUDGET_EXHAUSTED
    assert ledgers.spent("loans") <= 4.0
    assert number > 1


def test_a_data_set_without_a_declared_budget_is_refused(store):
    with pytest.raises(PeerError, match=r"\[budgets.payroll\]") as caught:
        Ledgers(store, "bank-a").ensure(POLICY, "payroll", PLAN)
    assert caught.value.reason is Reason.POLICY


def test_a_charged_budget_stays_and_a_changed_declaration_is_refused(store):
    ledgers = Ledgers(store, "bank-a")
    ledgers.ensure(POLICY, "loans", PLAN)
    charge(store, ledgers, 1)
    ledgers.ensure(POLICY, "loans", PLAN)
    for rule, named in (
        (BudgetRule("loans", 8.0, 1e-5), r"\(epsilon\)"),
        (BudgetRule("loans", 0.01, 1e-7), r"\(epsilon, delta_dp\)"),  # no order may carry it
        (BudgetRule("loans", 4.0, 1e-5, alpha=99), r"\(alpha\)"),
    ):
        with pytest.raises(PeerError, match=f"{named}; a budget is fixed once it was charged"):
            Ledgers(store, "bank-a").ensure(Policy(budgets=(rule,)), "loans", PLAN)
    with pytest.raises(UsageError, match="were charged"):
        store.add_budget("loans", b"[]", "genesis")


def test_a_budget_that_was_never_charged_follows_the_policy(store):
    Ledgers(store, "bank-a").ensure(POLICY, "loans", PLAN)
    again = Ledgers(store, "bank-a")
    again.ensure(Policy(budgets=(BudgetRule("loans", 8.0, 1e-5),)), "loans", PLAN)
    charge(store, again, 1)
    (line,) = budget_lines("bank-a", store.ledgers())
    assert (line.epsilon, line.charges) == (8.0, 1)
    assert math.isclose(Ledgers(store, "bank-a").spent("loans"), line.spent_epsilon)


@pytest.mark.parametrize("at_first", [False, True])
def test_consent_to_no_privacy_is_asked_of_jobs_without_alone(store, at_first):
    ledgers = Ledgers(store, "bank-a")
    ledgers.ensure(dataclasses.replace(POLICY, allow_no_dp=at_first), "loans", PLAN)
    charge(store, ledgers, 1)
    later = dataclasses.replace(POLICY, allow_no_dp=not at_first)
    ledgers.ensure(later, "loans", PLAN)
    with pytest.raises(PeerError, match="allow_no_dp"):
        ledgers.ensure(later, "loans", NoDpEvent(1))
    if not at_first:
        with pytest.raises(PeerError, match="without differential privacy"):
            ledgers.look_ahead("loans", NoDpEvent(1))


def test_the_order_is_fixed_by_the_first_plan_and_by_no_later_one(store):
    ledgers = Ledgers(store, "bank-a")
    ledgers.ensure(POLICY, "loans", PLAN)
    alpha = budget_lines("bank-a", store.ledgers())[0].alpha
    ledgers.ensure(POLICY, "loans", dataclasses.replace(PLAN, q=0.5, V=1e10))
    assert budget_lines("bank-a", store.ledgers())[0].alpha == alpha
    named = Policy(budgets=(BudgetRule("other", 4.0, 1e-5, alpha=23),))
    ledgers.ensure(named, "other", PLAN)
    assert budget_lines("bank-a", store.ledgers())[1].alpha == 23


def test_no_other_order_carries_more_steps_than_the_chosen_one(store):
    ledgers = Ledgers(store, "bank-a")
    ledgers.ensure(POLICY, "loans", PLAN)
    tally = ledgers._states["loans"].tallies[0]
    most = tally.steps_that_fit(EVENT)
    others = 0
    for alpha in range(2, 40):
        with contextlib.suppress(UsageError):  # an order that the budget cannot carry at all
            budget = dataclasses.replace(tally.budget, alpha=alpha)
            assert dataclasses.replace(tally, budget=budget).steps_that_fit(EVENT) <= most
            others += 1
    assert others > 20


def test_a_budget_that_carries_no_step_is_refused_before_it_is_made(store):
    tiny = Policy(budgets=(BudgetRule("loans", 0.01, 1e-5),))
    with pytest.raises(PeerError) as caught:
        Ledgers(store, "bank-a").ensure(tiny, "loans", PLAN)
    assert caught.value.reason is Reason.BUDGET_EXHAUSTED
    assert store.ledgers() == []


def test_a_release_without_privacy_needs_consent_and_makes_epsilon_infinite(store):
    ledgers = Ledgers(store, "bank-a")
    ledgers.ensure(POLICY, "loans", NoDpEvent())
    with pytest.raises(PeerError):
        ledgers.look_ahead("loans", NoDpEvent())
    consent = Policy(allow_no_dp=True, budgets=(BudgetRule("plain", 4.0, 1e-5),))
    ledgers.ensure(consent, "plain", NoDpEvent())
    ledgers.look_ahead("plain", NoDpEvent())


@pytest.mark.parametrize("victim", [1, 2, 3])
def test_an_edited_entry_is_named(tmp_path, store, victim):
    ledgers = Ledgers(store, "bank-a")
    ledgers.ensure(POLICY, "loans", PLAN)
    for number in range(1, 4):
        charge(store, ledgers, number)
    db = sqlite3.connect(tmp_path / "state" / "site.db")
    (raw,) = db.execute("SELECT entry FROM ledger WHERE sequence = ?", (victim,)).fetchone()
    entry = json.loads(raw)
    entry["event"]["V"] *= 2
    forged = json.dumps(entry, sort_keys=True, separators=(",", ":")).encode()
    db.execute("UPDATE ledger SET entry = ? WHERE sequence = ?", (forged, victim))
    db.commit()
    db.close()
    with pytest.raises(UsageError, match=r"data set 'loans'.*\d") as caught:
        Ledgers(store, "bank-a")
    assert any(f"entry {n}" in str(caught.value) for n in (victim, victim + 1))


def test_another_sites_ledger_is_not_taken(store):
    ledgers = Ledgers(store, "bank-a")
    ledgers.ensure(POLICY, "loans", PLAN)
    charge(store, ledgers, 1)
    with pytest.raises(UsageError):
        Ledgers(store, "bank-b")


# --- after a restore -----------------------------------------------------------------------------

SITE = """
[site]
id = "bank-a"
folder = "state"
[store]
mirror_file = "generation"
boot_key_folder = "boot"
[policy]
file = "policy.toml"
"""


def test_reconcile_charges_what_a_backup_may_have_forgotten(tmp_path):
    from edge_node import service
    from edge_node.config import load_config

    (tmp_path / "site.toml").write_text(SITE)
    config = load_config(tmp_path / "site.toml")
    store = service.open_store(config)
    ledgers = Ledgers(store, "bank-a")
    ledgers.ensure(POLICY, "loans", PLAN)
    charge(store, ledgers, 1)
    store.add_bundles([StoredBundle(99, b"signed", b"s" * 32)], 512)
    store.close()
    backup = config.database.read_bytes()
    store = service.open_store(config)
    ledgers = Ledgers(store, "bank-a")
    for number in (2, 3):
        charge(store, ledgers, number)
    truth = ledgers.spent("loans")
    store.close()
    for left_over in config.folder.glob("site.db-*"):
        left_over.unlink()
    config.database.write_bytes(backup)

    with pytest.raises(UsageError, match="older copy"):
        service.open_store(config)
    assert "nothing was changed" in reconcile(config, accept=False)[-1]
    with pytest.raises(UsageError, match="older copy"):
        service.open_store(config)
    assert "goes on at step" in reconcile(config, accept=True)[-1]

    store = service.open_store(config)
    assert Ledgers(store, "bank-a").spent("loans") >= truth, "never less than what was spent"
    assert store.bundle(99) is None
    store.close()
    database = connect(config.database, read_only=True)
    assert read_ledgers(database)[0].dataset_id == "loans"
    database.close()
