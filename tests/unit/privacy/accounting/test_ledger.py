"""The ledger: every edit of the chain is found and named, charges are all or none."""

import json
import math
from dataclasses import FrozenInstanceError, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from privacy.accounting.accountant import step_rdp
from privacy.accounting.budget import Budget
from privacy.accounting.chain import (
    TIER_CONDITIONAL,
    TIER_ENFORCED,
    TIER_NONE,
    Anchor,
    LedgerEntry,
    Occasion,
    canonical_json,
    verify_chain,
)
from privacy.accounting.events import GaussianRecordEvent, NoDpEvent, SkellamRecordEvent
from privacy.accounting.ledger import LedgerState, replay
from privacy.errors import PeerError, Reason, UsageError

RECORD = Budget("loans", "record", 3.0, 1e-5, 8)
USER = Budget("loans", "user", 30.0, 1e-5, 6, max_rows_per_user=2)
D2 = 4134.0
STEP = SkellamRecordEvent(0.01, (1.2 * D2) ** 2, 60 * D2, D2, 5761, 5)
CTX = "ab" * 32
CODE = "cd" * 32


def occasion(round_number=0, attempt=0, tier=TIER_ENFORCED, **more):
    values = {"job_id": "job-1", "context_digest": CTX, **more}
    return Occasion(round_number=round_number, attempt=attempt, tier=tier, **values)


def grown(state, count, event=STEP):
    """Charge `count` entries; return all entries and states, the genesis first."""
    entries, states = [], [state]
    for index in range(count):
        entry = states[-1].next_entry(event, occasion(index), 1.7e9 + index)
        entries.append(entry)
        states.append(states[-1].charge(entry))
    return entries, states


@pytest.fixture
def genesis():
    return LedgerState.open("bank-3", [RECORD, USER])


def test_charging_is_pure_and_adds_up(genesis):
    entries, states = grown(genesis, 4)
    assert states[0] == genesis
    assert [state.sequence for state in states] == [0, 1, 2, 3, 4]
    spent = [state.spent_epsilon() for state in states]
    assert spent[0] == 0.0
    assert spent == sorted(set(spent))
    assert states[4].remaining() == pytest.approx(3.0 - spent[4])
    assert states[4].tally("user").rdp_units > states[4].tally("record").rdp_units
    assert replay(genesis, entries) == states[4]
    with pytest.raises(FrozenInstanceError):
        states[1].head = "0" * 64


def test_replaying_any_prefix_and_going_on_gives_the_same(genesis):
    entries, states = grown(genesis, 5)
    for cut in range(6):
        state = replay(genesis, entries[:cut])
        assert state == states[cut]
        for entry in entries[cut:]:
            state = state.charge(entry)
        assert state == states[5]


def test_stored_bytes_give_back_the_entries(genesis):
    entries, states = grown(genesis, 3)
    stored = [entry.to_bytes() for entry in entries]
    assert [LedgerEntry.from_bytes(data) for data in stored] == entries
    assert replay(genesis, map(LedgerEntry.from_bytes, stored), states[3].anchor) == states[3]


def test_canonical_bytes_are_fixed_for_ever(genesis):
    # A change of these bytes would make every existing ledger unreadable.
    assert genesis.head == "fa56cc815187e27e3024b63cdd3ab47b70fda50ce03b528c0ec2c9626bd7e397"
    entry = genesis.next_entry(STEP, occasion(), 1.7e9)
    assert entry.entry_hash() == "1074fc6d2b25724ad0b170c0cc77c1330d9c2e051243a3d88a912e98a0334927"
    assert canonical_json({"b": 0.1, "a": [1, "é"]}) == b'{"a":[1,"\\u00e9"],"b":0.1}'


def altered(entry, **event_values):
    return replace(entry, event=replace(entry.event, **event_values))


@pytest.mark.parametrize("bad", range(6))
@pytest.mark.parametrize(
    "edit",
    [
        lambda entry: altered(entry, q=0.001),
        lambda entry: altered(entry, V=entry.event.V * 2),
        lambda entry: altered(entry, steps=2),
        lambda entry: replace(entry, charged_at_s=0.0),
        lambda entry: replace(entry, occasion=replace(entry.occasion, job_id="job-2")),
        lambda entry: replace(entry, occasion=replace(entry.occasion, attempt=9)),
        lambda entry: replace(
            entry, occasion=replace(entry.occasion, tier=TIER_CONDITIONAL + CODE)
        ),
        lambda entry: replace(entry, occasion=replace(entry.occasion, context_digest=CODE)),
    ],
)
def test_an_edit_of_any_entry_is_found_and_named(genesis, bad, edit):
    entries, states = grown(genesis, 6)
    entries[bad] = edit(entries[bad])
    with pytest.raises(UsageError, match=rf"ledger entry {bad + 1} was altered"):
        verify_chain(entries, genesis.head, states[6].anchor)
    with pytest.raises(UsageError, match=rf"ledger entry {bad + 1} "):
        replay(genesis, entries, states[6].anchor)


@pytest.mark.parametrize("bad", range(1, 6))
def test_an_edited_link_is_found_and_named(genesis, bad):
    entries, states = grown(genesis, 6)
    entries[bad] = replace(entries[bad], prev_hash="00" * 32)
    with pytest.raises(UsageError, match=rf"ledger entry {bad + 1} was altered"):
        verify_chain(entries, genesis.head, states[6].anchor)


@pytest.mark.parametrize("missing", range(6))
def test_a_removed_entry_is_found_and_named(genesis, missing):
    entries, states = grown(genesis, 6)
    del entries[missing]
    with pytest.raises(UsageError, match=rf"ledger entry {missing + 1} is missing"):
        verify_chain(entries, genesis.head, states[6].anchor)


@pytest.mark.parametrize("first", range(5))
def test_swapped_entries_are_found(genesis, first):
    entries, _ = grown(genesis, 6)
    entries[first], entries[first + 1] = entries[first + 1], entries[first]
    with pytest.raises(UsageError, match=rf"entry {first + 1} is missing"):
        verify_chain(entries, genesis.head)


def test_a_doubled_entry_is_found(genesis):
    entries, _ = grown(genesis, 3)
    with pytest.raises(UsageError, match="entry 3 is missing"):
        verify_chain([*entries[:2], entries[1], entries[2]], genesis.head)


@pytest.mark.parametrize("kept", range(6))
def test_truncation_is_found_by_the_mirrors_anchor(genesis, kept):
    entries, states = grown(genesis, 6)
    verify_chain(entries[:kept], genesis.head)  # a chain alone cannot tell
    with pytest.raises(UsageError, match=rf"entry {kept + 1} is missing.*administrator"):
        verify_chain(entries[:kept], genesis.head, states[6].anchor)


def test_a_mirror_that_lags_behind_is_normal(genesis):
    entries, states = grown(genesis, 6)
    for state in states:
        assert verify_chain(entries, genesis.head, state.anchor) == states[6].anchor


def test_a_rewritten_tail_is_found_by_the_mirrors_anchor(genesis):
    entries, states = grown(genesis, 6)
    cheap, _ = grown(states[3], 3, replace(STEP, V=STEP.V * 100))
    forged = entries[:3] + cheap
    verify_chain(forged, genesis.head)
    with pytest.raises(UsageError, match="entry 6 was altered"):
        verify_chain(forged, genesis.head, states[6].anchor)


@pytest.mark.parametrize(
    "other",
    [
        LedgerState.open("bank-4", [RECORD, USER]),
        LedgerState.open("bank-3", [RECORD]),
        LedgerState.open("bank-3", [replace(RECORD, epsilon=4.0), USER]),
        LedgerState.open("bank-3", [replace(RECORD, alpha=9), USER]),
        LedgerState.open(
            "bank-3", [replace(RECORD, dataset_id="cards"), replace(USER, dataset_id="cards")]
        ),
    ],
)
def test_a_chain_fits_only_its_site_data_set_and_budgets(genesis, other):
    entries, states = grown(genesis, 2)
    with pytest.raises(UsageError, match=r"entry 1 .*another"):
        replay(other, entries)
    with pytest.raises(UsageError, match="budgets differ"):
        replay(other, [], genesis.anchor)
    with pytest.raises(UsageError, match="entry 3 does not continue"):
        replace(other, sequence=2).charge(states[2].next_entry(STEP, occasion(), 0.0))


def test_an_entry_must_follow_the_head(genesis):
    entries, states = grown(genesis, 2)
    for entry in entries:
        with pytest.raises(UsageError, match="does not follow"):
            states[2].charge(entry)
    with pytest.raises(UsageError, match="does not follow"):
        genesis.charge(entries[1])


@given(q=st.floats(1e-3, 0.1), z=st.floats(0.8, 5.0))
@settings(max_examples=15, deadline=None)
def test_the_plan_agrees_with_charging_step_by_step(q, z):
    # The user's budget runs out first or the record's: whichever, the plan knows the last step.
    start = LedgerState.open("bank-3", [RECORD, replace(USER, epsilon=12.0)])
    event = SkellamRecordEvent(q, (z * D2) ** 2, 60 * D2, D2, 5761, 5)
    fits = min(tally.steps_that_fit(event) for tally in start.tallies)
    state = start
    if fits > 20:
        entry = start.next_entry(replace(event, steps=fits - 20), occasion(), 0.0)
        state = start.charge(entry)
    left = min(tally.steps_that_fit(event) for tally in state.tallies)
    assert left == min(fits, 20)
    for _ in range(left):
        state = state.charge(state.next_entry(event, occasion(), 0.0))
    with pytest.raises(PeerError):
        state.charge(state.next_entry(event, occasion(), 0.0))


def test_a_refused_charge_changes_no_budget():
    tight_user = replace(USER, epsilon=4.0)
    state = LedgerState.open("bank-3", [RECORD, tight_user])
    fits = state.tally("user").steps_that_fit(STEP)
    assert fits < state.tally("record").steps_that_fit(STEP)
    entry = state.next_entry(replace(STEP, steps=fits + 1), occasion(), 0.0)
    before = (state.tallies, state.head, state.sequence)
    with pytest.raises(PeerError, match="user unit") as caught:
        state.charge(entry)
    assert caught.value.reason is Reason.BUDGET_EXHAUSTED
    assert (state.tallies, state.head, state.sequence) == before


def test_a_stored_charge_that_was_never_allowed_is_named(genesis):
    entries, states = grown(genesis, 2)
    greedy = states[2].next_entry(replace(STEP, steps=10**7), occasion(2), 0.0)
    with pytest.raises(UsageError, match="entry 3 was never allowed"):
        replay(genesis, [*entries, greedy])


def test_release_without_dp_in_the_ledger():
    consenting = replace(RECORD, allow_no_dp=True)
    state = LedgerState.open("bank-3", [consenting])
    entry = state.next_entry(NoDpEvent(), occasion(tier=TIER_NONE), 0.0)
    after = state.charge(entry)
    assert after.spent_epsilon() == math.inf
    assert replay(state, [LedgerEntry.from_bytes(entry.to_bytes())]) == after
    refusing = LedgerState.open("bank-3", [RECORD])
    with pytest.raises(PeerError, match="allow_no_dp"):
        refusing.charge(refusing.next_entry(NoDpEvent(), occasion(tier=TIER_NONE), 0.0))
    # Consent must hold for every budget of the data set.
    mixed = LedgerState.open("bank-3", [consenting, USER])
    with pytest.raises(PeerError, match="user unit"):
        mixed.charge(mixed.next_entry(NoDpEvent(), occasion(tier=TIER_NONE), 0.0))


@pytest.mark.parametrize(
    ("event", "tier"),
    [(NoDpEvent(), TIER_ENFORCED), (STEP, TIER_NONE), (GaussianRecordEvent(0.1, 1.0), TIER_NONE)],
)
def test_the_tier_cannot_dress_up_the_event(genesis, event, tier):
    with pytest.raises(UsageError, match="does not fit"):
        genesis.next_entry(event, occasion(tier=tier), 0.0)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("job_id", ""),
        ("job_id", 7),
        ("round_number", -1),
        ("round_number", 1.0),
        ("attempt", True),
        ("context_digest", "ab" * 31),
        ("context_digest", "AB" * 32),
        ("context_digest", None),
        ("tier", ""),
        ("tier", "conditional"),
        ("tier", TIER_CONDITIONAL + "xyz"),
        ("tier", CODE),
        ("tier", None),
    ],
)
def test_a_bad_occasion_is_refused_by_name(name, value):
    with pytest.raises(UsageError, match=name):
        replace(occasion(), **{name: value})


def test_the_conditional_tier_names_the_reviewed_code(genesis):
    conditional = occasion(tier=TIER_CONDITIONAL + CODE)
    assert genesis.next_entry(STEP, conditional, 0.0).occasion.tier.endswith(CODE)
    assert conditional.tier.startswith("conditional on reviewed code sha256:")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("sequence", 0),
        ("sequence", 1.0),
        ("prev_hash", "zz"),
        ("prev_hash", None),
        ("charged_at_s", -1.0),
        ("charged_at_s", math.nan),
        ("charged_at_s", "now"),
        ("event", "no-dp"),
        ("event", None),
        ("occasion", None),
    ],
)
def test_a_bad_entry_is_refused(genesis, name, value):
    entry = genesis.next_entry(STEP, occasion(), 0.0)
    with pytest.raises(UsageError, match="event" if name == "event" else name):
        replace(entry, **{name: value})


def test_only_the_canonical_spelling_is_read(genesis):
    entry = genesis.next_entry(STEP, occasion(), 5.0)
    data = entry.to_bytes()
    spaced = json.dumps(json.loads(data), sort_keys=True).encode()
    doubled = data[:-1] + b',"sequence":1}'
    for bad in (
        spaced,
        doubled,
        data + b"\n",
        data.replace(b'"charged_at_s":5.0', b'"charged_at_s":5'),
    ):
        with pytest.raises(UsageError, match="canonical form"):
            LedgerEntry.from_bytes(bad)
    for bad in (b"", b"{", b"\xff", b"[" * 100_000, data[:-1]):
        with pytest.raises(UsageError, match="not JSON"):
            LedgerEntry.from_bytes(bad)
    for bad in (b"[]", b"null", b"7"):
        with pytest.raises(UsageError, match="must be an object"):
            LedgerEntry.from_bytes(bad)
    nan = data.replace(b'"charged_at_s":5.0', b'"charged_at_s":NaN')
    with pytest.raises(UsageError, match="charged_at_s"):
        LedgerEntry.from_bytes(nan)


def test_unknown_missing_and_wrong_keys_of_an_entry_are_refused(genesis):
    data = genesis.next_entry(STEP, occasion(), 5.0).to_dict()
    with pytest.raises(UsageError, match="refund"):
        LedgerEntry.from_dict({**data, "refund": True})
    for key in data:
        with pytest.raises(UsageError, match=key):
            LedgerEntry.from_dict({name: data[name] for name in data if name != key})
    with pytest.raises(UsageError, match="version"):
        LedgerEntry.from_dict({**data, "version": "tidegate/ledger/2"})
    with pytest.raises(UsageError, match="unknown privacy event kind"):
        LedgerEntry.from_dict({**data, "event": {"kind": "gdp", "steps": 1}})


def test_what_json_cannot_say_is_not_encoded():
    for bad in (math.nan, math.inf, {1, 2}, b"x"):
        with pytest.raises(UsageError, match="canonical"):
            canonical_json({"x": bad})


@pytest.mark.parametrize(
    "budgets",
    [
        [],
        [RECORD, RECORD],
        [RECORD, replace(RECORD, epsilon=5.0)],
        [RECORD, replace(USER, dataset_id="cards")],
    ],
)
def test_a_ledger_is_for_one_data_set_and_each_unit_once(budgets):
    with pytest.raises(UsageError, match="one data set"):
        LedgerState.open("bank-3", budgets)


def test_a_missing_unit_is_refused():
    state = LedgerState.open("bank-3", [RECORD])
    with pytest.raises(UsageError, match="user"):
        state.spent_epsilon("user")
    with pytest.raises(UsageError, match="site_id"):
        LedgerState.open("", [RECORD])


@pytest.mark.parametrize(("sequence", "head"), [(-1, CTX), (True, CTX), (1, "x"), (1, None)])
def test_a_bad_anchor_is_refused(sequence, head):
    with pytest.raises(UsageError, match="ledger"):
        Anchor(sequence, head)


def test_a_charge_looks_its_price_up(genesis, monkeypatch):
    # The ledger prices an event each round: after the first time, nothing is computed again.
    event = replace(STEP, q=0.012345)
    state = genesis.charge(genesis.next_entry(event, occasion(), 0.0))

    def fail(*_args, **_kwargs):
        raise AssertionError("priced again")

    monkeypatch.setattr("privacy.accounting.budget.step_rdp", fail)
    for _ in range(3):
        state = state.charge(state.next_entry(replace(event), occasion(), 0.0))
    assert state.sequence == 4
    assert step_rdp(event) is step_rdp(event)
