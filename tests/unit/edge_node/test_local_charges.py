"""Local steps are charged before the first one runs, whatever comes; users' budgets hold."""

import asyncio
import dataclasses
import math
import os
import signal
import sqlite3
import subprocess
import sys
from types import SimpleNamespace

import numpy as np
import pytest

from edge_node import commands as ec
from edge_node.bench import Bench
from edge_node.boot_key import BootKey
from edge_node.budget import Ledgers, budget_lines, charge_tier, check_unit
from edge_node.data import from_table
from edge_node.policy import BudgetRule, Policy
from edge_node.reconcile import _mend
from edge_node.rounds.contract import JobAtSite
from edge_node.steps import StepWriter, local_steps_digest
from edge_node.store import Store
from edge_node.store_schema import StoredBundle, connect, read_ledgers
from edge_node.trainer.trainer import TrainerFailure
from edge_node.updates import UpdateDesk
from privacy.accounting.accountant import Accountant
from privacy.accounting.chain import TIER_CONDITIONAL, TIER_ENFORCED, TIER_NONE, LedgerEntry
from privacy.errors import PeerError, Reason
from privacy.noise import NoisedUpdate
from privacy.pipeline import Mode
from privacy.planning import CohortRules, step_event
from privacy.secagg.commands import Commit, Step
from privacy.secagg.keys import BundleSecrets
from privacy.secagg.site import SiteSecrets
from privacy.spec import TensorSpec, VectorSpec
from tests.support.encoding_plans import make_plan
from tidegate.jobfile import JobFile, PrivacyUnit

KEY = BootKey(b"k" * 32, fresh=False, on_memory=True)
RULES = CohortRules(1, 4, 5)
SPEC = VectorSpec((TensorSpec("w", (5,)),))
WANTED = SimpleNamespace(announcement=b"")  # the version is there already
LOCAL = make_plan(Mode.RECORD_LOCAL, gradient=5, metrics=0, z=2.0, steps=4)
SHARED = make_plan(gradient=5, metrics=0, z=2.0)
UPDATE = NoisedUpdate(np.arange(5, dtype=np.int64))
POLICY = Policy(budgets=(BudgetRule("loans", 2.0, 1e-5),))


class Work:
    """A job's work whose update is made by a function."""

    def __init__(self, plan, making, delta_dp, tier):
        job_file = SimpleNamespace(privacy=SimpleNamespace(delta_dp=delta_dp))
        table = np.zeros((4, 1), np.float32)
        dataset = from_table("loans", "loans", ("x",), table)
        event = step_event(plan, RULES)
        self.job = JobAtSite("job-1", job_file, plan, SPEC, event, tier, dataset)
        self.making = making
        self.made = 0

    async def make_update(self, _request):
        self.made += 1
        self.making()
        return UPDATE


class Versions:
    """Every model version is there already."""

    async def come_to(self, _wanted, _job):
        return SimpleNamespace(model_D=np.zeros(5, np.float32), passed_lint=True)


class Site:
    """The shell's parts that charge, around a real store."""

    def __init__(self, folder, plan=LOCAL, making=lambda: None, delta_dp=1e-5, tier=TIER_ENFORCED):
        self.path = folder / "state" / "site.db"
        self.store = Store(self.path, folder / "generation", KEY)
        self.ledgers = Ledgers(self.store, "bank-a")
        self.bench = Bench()
        self.work = Work(plan, making, delta_dp, tier)
        self.bench.jobs["job-1"] = self.work
        self.ledgers.ensure(POLICY, "loans", step_event(plan, RULES, 10))
        self.steps = StepWriter(self.store, self.ledgers, self.bench)
        books = self.ledgers, self.steps
        self.desk = UpdateDesk(None, Versions(), POLICY, books, self.bench)

    def make(self, number=1):
        key = ec.UpdateKey(number, number - 1, "")
        return asyncio.run(self.desk.make(ec.Train("job-1", key, WANTED, b"")))

    def commit(self, ctx, step, number=1, attempt=1, seeds=()):
        """Commit a step of an attempt, as the participant asks for it."""
        mode = self.work.job.plan.mode
        charge = step is Step.MASKED_UPDATE and mode is not Mode.RECORD_LOCAL
        if step is Step.SHARE_KEYS:
            (serial,) = self.store.reserve_serials(1)
            self.store.add_bundles([StoredBundle(serial, b"signed", b"s" * 32)], 512)
            secrets = SiteSecrets(BundleSecrets(b"s" * 32), b"t" * 32, b"u" * 32, seeds)
            self.bench.joining[ctx] = (serial, secrets)
        key = ec.UpdateKey(number, number - 1, "")
        commit = Commit(step, b"i" * 32, b"slot", charge, step is Step.SHARE_KEYS)
        return self.steps.commit(ec.CommitStep(ctx, "job-1", key, attempt, commit, b"facts"))

    def entries(self):
        """Give the durable charges, as another process sees them."""
        db = connect(self.path, read_only=True)
        try:
            (ledger,) = read_ledgers(db)
        finally:
            db.close()
        return [LedgerEntry.from_bytes(raw) for raw in ledger.entries]


@pytest.fixture
def make_site(tmp_path):
    sites = []

    def make(**options):
        sites.append(Site(tmp_path, **options))
        return sites[-1]

    yield make
    for site in sites:
        site.store.close()


def test_the_charge_is_durable_before_the_first_local_step_runs(make_site):
    seen = []
    site = make_site(making=lambda: seen.extend(site.entries()))
    answer = site.make()
    assert isinstance(answer, ec.Trained)
    assert answer.epsilon_spent == site.ledgers.spent("loans") > 0
    (entry,) = seen
    assert entry.event == site.work.job.event
    assert entry.event.steps == 4, "all local steps of the round"
    occasion = entry.occasion
    assert (occasion.job_id, occasion.round_number) == ("job-1", 1)
    assert occasion.context_digest == local_steps_digest("job-1", ec.UpdateKey(1, 0, ""))
    assert site.bench.ready["job-1"][1] is UPDATE


def test_other_modes_are_not_charged_before_they_leave(make_site):
    site = make_site(plan=SHARED, making=lambda: None)
    assert isinstance(site.make(), ec.Trained)
    assert site.entries() == []
    ctx = b"a" * 32
    site.commit(ctx, Step.SHARE_KEYS)
    site.commit(ctx, Step.MASKED_UPDATE)
    assert len(site.entries()) == 1
    assert "job-1" not in site.bench.ready, "it belongs to the attempt"


def test_a_failure_after_the_charge_gives_nothing_back_and_the_next_try_is_charged_anew(make_site):
    def fail():
        raise TrainerFailure("the app raised", "detail")

    site = make_site(making=fail)
    answer = site.make()
    assert isinstance(answer, ec.TrainFailed)
    once = site.ledgers.spent("loans")
    assert answer.epsilon_spent == once > 0
    site.work.making = lambda: None
    assert isinstance(site.make(), ec.Trained)
    assert len(site.entries()) == 2
    assert site.ledgers.spent("loans") > once


def test_without_budget_no_local_step_runs(make_site):
    dear = make_plan(Mode.RECORD_LOCAL, gradient=5, metrics=0, z=1.0, steps=200)
    site = make_site(plan=dear)
    number = 0
    while isinstance(answer := site.make(number := number + 1), ec.Trained):
        assert number < 50
    assert answer.reason is Reason.BUDGET_EXHAUSTED
    assert site.work.made == number - 1 == len(site.entries()) > 1
    assert site.ledgers.spent("loans") <= 2.0


def test_without_a_durable_charge_no_local_step_runs(make_site, monkeypatch):
    site = make_site()

    def broken(_row):
        raise sqlite3.OperationalError("disk is full")

    monkeypatch.setattr(site.store, "charge", broken)
    answer = site.make()
    assert isinstance(answer, ec.TrainFailed)
    assert answer.reason is Reason.INTERNAL
    assert site.work.made == 0
    assert site.ledgers.spent("loans") == 0.0


def test_step_two_charges_nothing_more_and_the_update_stays_ready(make_site):
    site = make_site()
    site.make()
    for attempt, ctx in ((1, b"a" * 32), (2, b"b" * 32)):
        site.commit(ctx, Step.SHARE_KEYS, attempt=attempt)
        assert isinstance(site.commit(ctx, Step.MASKED_UPDATE, attempt=attempt), ec.StepCommitted)
        assert site.bench.charged[ctx] is UPDATE
        assert site.bench.ready["job-1"][1] is UPDATE, "offered again without a charge"
        site.bench.forget_attempt(ctx)
        site.store.erase(ctx)
    assert len(site.entries()) == 1
    assert site.work.made == 1


KILLED = """
import os, pathlib, signal, sys
from tests.unit.edge_node.test_local_charges import Site
site = Site(pathlib.Path(sys.argv[1]), making=lambda: os.kill(os.getpid(), signal.SIGKILL))
site.make()
"""


def test_a_kill_between_charge_and_update_costs_the_charge_and_the_next_update_is_anew(
    tmp_path, make_site
):
    done = subprocess.run(
        [sys.executable, "-c", KILLED, str(tmp_path)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
        check=False,
        timeout=60,
    )
    assert done.returncode == -signal.SIGKILL
    site = make_site()
    assert len(site.entries()) == 1
    assert site.ledgers.spent("loans") > 0
    assert site.bench.ready == {}
    assert isinstance(site.make(), ec.Trained)
    assert len(site.entries()) == 2


def test_a_lost_charge_of_local_steps_is_made_up_with_all_of_them(make_site, monkeypatch):
    site = make_site()
    site.make()
    (before,) = budget_lines("bank-a", site.store.ledgers())
    monkeypatch.setattr(site.store, "missing_steps", lambda: 2)
    _mend(site.store, "bank-a", accept=True)
    (line,) = budget_lines("bank-a", site.store.ledgers())
    entry = site.entries()[-1]
    assert entry.event == dataclasses.replace(site.work.job.event, steps=2 * 4)
    assert line.spent_epsilon > before.spent_epsilon
    # What was made up is no charge of a round: a second loss is not priced by it.
    _mend(site.store, "bank-a", accept=True)
    assert site.entries()[-1].event.steps == 2 * 4


def test_what_a_conditional_charge_lost_is_never_made_up_as_an_enforced_one(make_site, monkeypatch):
    conditional = f"{TIER_CONDITIONAL}{'ab' * 32}"
    site = make_site(tier=conditional)
    site.make()
    monkeypatch.setattr(site.store, "missing_steps", lambda: 2)
    _mend(site.store, "bank-a", accept=True)
    assert site.entries()[-1].occasion.job_id == "reconcile"
    assert [entry.occasion.tier for entry in site.entries()] == [conditional, conditional]


def test_what_is_shown_as_spent_is_at_the_delta_that_it_is_shown_with(make_site):
    """The budget's delta is ten times the job's: its epsilon beside the job's would be too low."""
    site = make_site(delta_dp=1e-6)
    told = site.make().epsilon_spent
    alpha = site.ledgers._states["loans"].tallies[0].budget.alpha
    exact = Accountant((alpha,)).compose(site.work.job.event).get_epsilon(1e-6)
    assert told == pytest.approx(exact, rel=1e-9)
    assert told > site.ledgers.spent("loans") * 1.2


def test_a_release_without_privacy_does_not_make_the_private_ones_look_free(make_site):
    site = make_site()
    before = site.make().epsilon_spent
    state = site.ledgers._states["loans"]
    plain = dataclasses.replace(state.tallies[0], no_dp_steps=1)
    site.ledgers._states["loans"] = dataclasses.replace(state, tallies=(plain,))
    assert site.ledgers.spent("loans") == math.inf
    assert site.make(2).epsilon_spent > before > 0


# --- who is trusted, and whose budget -----------------------------------------------------------

FLOWER = """
[job]
name = "credit"
dataset = "loans"
rounds = 3
[flower]
[privacy]
mode = "{mode}"
{numbers}
{more}
[strategy]
name = "FedAvg"
[round]
target_sites = 5
"""
TARGET = "epsilon = 4.0\ndelta_dp = 1e-6\nclipping_norm = 0.5"
RECORDS = """sampling_rate = 0.1
expected_batch_size = 8
update_norm = 1.0
noise_multiplier = 1.0
[local]
steps = 2
"""


@pytest.mark.parametrize(
    ("mode", "numbers", "more", "tier"),
    [
        ("record-local", TARGET, RECORDS, f"{TIER_CONDITIONAL}{'ab' * 32}"),
        ("site", TARGET, "", TIER_ENFORCED),
        ("none", "clipping_norm = 0.5", "", TIER_NONE),
    ],
)
def test_an_apps_own_noise_is_conditional_on_its_reviewed_code(mode, numbers, more, tier):
    job = JobFile.parse(FLOWER.format(mode=mode, numbers=numbers, more=more).encode())
    assert charge_tier(job, b"\xab" * 32) == tier


def test_a_tasks_local_steps_are_ours_and_enforced():
    toml = FLOWER.format(mode="record-local", numbers=TARGET, more=RECORDS)
    toml = toml.replace("[flower]\n", "").replace("steps = 2", "steps = 2\nlearning_rate = 0.1")
    assert charge_tier(JobFile.parse(toml.encode()), b"\xab" * 32) == TIER_ENFORCED


def rows_of(customers):
    table = np.array(customers, np.float32).reshape(-1, 1)
    return from_table("loans", "loans", ("customer",), table)


BY_USER = Policy(
    budgets=(BudgetRule("loans", 2.0, 1e-5, "user", None, 3, "customer"),),
)


@pytest.mark.parametrize(
    ("customers", "unit", "fits"),
    [
        ([1, 1, 1, 2], PrivacyUnit("record"), True),
        ([1, 1, 1, 1, 2], PrivacyUnit("record"), False),
        ([1, 1, 1, 1, 2], PrivacyUnit("user", "customer", 2), True),
        ([1, 2], PrivacyUnit("user", "transaction", 2), False),
        ([1, 1, 1, 1, 2], PrivacyUnit("site"), True),
        ([1, 1, 1, 1, 2], PrivacyUnit("none"), True),
        ([], PrivacyUnit("record"), True),
        ([1, math.nan, 2], PrivacyUnit("record"), False),
        ([1, math.nan, 2], PrivacyUnit("user", "customer", 2), True),
    ],
)
def test_a_user_budget_takes_only_events_that_bound_its_users(customers, unit, fits):
    dataset = rows_of(customers)
    check_unit(POLICY, dataset, unit)  # a record budget bounds any of them
    if fits:
        check_unit(BY_USER, dataset, unit)
        return
    with pytest.raises(PeerError) as caught:
        check_unit(BY_USER, dataset, unit)
    assert caught.value.reason is Reason.POLICY


def test_users_that_cannot_be_told_apart_are_no_licence():
    dataset = from_table("loans", "loans", ("x",), np.zeros((2, 1), np.float32))
    with pytest.raises(PeerError):
        check_unit(BY_USER, dataset, PrivacyUnit("record"))
    check_unit(POLICY, SimpleNamespace(dataset_id="other"), PrivacyUnit("record"))
