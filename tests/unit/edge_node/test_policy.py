import dataclasses
import math
from pathlib import Path

import pytest

from edge_node.config import TrainerSettings
from edge_node.policy import (
    JobFacts,
    Policy,
    TrainerCeilings,
    cohort_policy,
    judge,
    manifest_warnings,
)
from edge_node.policy_file import load_policy
from privacy.accounting.budget import Budget
from privacy.errors import PeerError, Reason, UsageError
from tests.support.site_simulation import make_manifest

SAMPLE = Path(__file__).parents[3] / "docs" / "samples" / "policy.toml"
APP = "ab" * 32
BASE = f"""
modes = ["record-distributed"]
allowed_apps = ["sha256:{APP}"]
datasets = ["credit"]
max_epsilon_per_job = 3.0
max_delta_dp = 1e-5
"""
GOOD = JobFacts(
    mode="record-distributed",
    dataset="credit",
    dataset_known=True,
    app_sha256=APP,
    epsilon=3.0,
    delta_dp=1e-5,
    noise_multiplier=0.8,
    sandboxed=True,
)
USERS = """[budgets.credit]
epsilon = 2.0
delta_dp = 1e-5
unit = 'user'
max_rows_per_user = 3
user_column = 'customer'
"""


def load(tmp_path, text):
    path = tmp_path / "policy.toml"
    path.write_text(text)
    return load_policy(path)


def test_the_sample_loads():
    policy = load_policy(SAMPLE)
    assert policy.budgets[0].dataset_id == "loans-2026"
    assert not policy.allow_no_dp
    assert policy.min_honest == 3


def test_a_missing_file_refuses_every_job_and_says_why(tmp_path):
    policy = load_policy(tmp_path / "policy.toml")
    with pytest.raises(PeerError, match="no policy file") as caught:
        judge(policy, GOOD)
    assert caught.value.reason is Reason.POLICY


def test_a_job_within_every_rule_passes(tmp_path):
    judge(load(tmp_path, BASE), GOOD)


@pytest.mark.parametrize(
    ("change", "rule"),
    [
        ({"mode": "none"}, "modes"),
        ({"dataset": "payroll"}, "datasets"),
        ({"dataset_known": False}, "datasets"),
        ({"app_sha256": "cd" * 32}, "allowed_apps"),
        ({"epsilon": 3.01}, "max_epsilon_per_job"),
        ({"epsilon": math.inf}, "max_epsilon_per_job"),
        ({"epsilon": math.nan}, "max_epsilon_per_job"),
        ({"delta_dp": 1e-4}, "max_delta_dp"),
        ({"noise_multiplier": 0.2}, "min_noise_multiplier"),
        ({"noise_multiplier": math.nan}, "min_noise_multiplier"),
        ({"is_statistics": True}, "allow_statistics"),
        ({"declares_dp": True}, "declared_dp_apps"),
    ],
)
def test_each_rule_refuses_by_its_name(tmp_path, change, rule):
    with pytest.raises(PeerError, match=f"by rule {rule}") as caught:
        judge(load(tmp_path, BASE), dataclasses.replace(GOOD, **change))
    assert caught.value.reason is Reason.POLICY


def test_statistics_need_consent_and_no_reviewed_app(tmp_path):
    policy = load(tmp_path, BASE + "allow_statistics = true\n")
    facts = dataclasses.replace(GOOD, is_statistics=True, runs_app=False, app_sha256="00" * 32)
    judge(policy, facts)
    with pytest.raises(PeerError, match="max_epsilon_per_job"):
        judge(policy, dataclasses.replace(facts, epsilon=4.0))
    plain = dataclasses.replace(facts, mode="none", epsilon=math.inf)
    consent = BASE.replace("[", '["none", ', 1) + "allow_no_dp = true\n"
    with pytest.raises(PeerError, match="allow_statistics"):
        judge(load(tmp_path, consent), plain)
    judge(load(tmp_path, consent + "allow_statistics = true\n"), plain)


def test_an_app_that_adds_its_own_noise_needs_more_than_a_review_for_other_modes(tmp_path):
    facts = dataclasses.replace(GOOD, declares_dp=True)
    judge(load(tmp_path, BASE + f'declared_dp_apps = ["sha256:{APP}"]\n'), facts)
    other = load(tmp_path, BASE + f'declared_dp_apps = ["sha256:{"cd" * 32}"]\n')
    with pytest.raises(PeerError, match="declared_dp_apps"):
        judge(other, facts)
    judge(other, GOOD)
    with pytest.raises(UsageError, match="declared_dp_apps"):
        load(tmp_path, BASE + f'declared_dp_apps = ["{APP}"]\n')


def test_a_user_budget_names_its_users_and_their_row_cap(tmp_path):
    (rule,) = load(tmp_path, BASE + USERS).budgets
    budget = rule.budget(16, allow_no_dp=False)
    assert (budget.unit, budget.max_rows_per_user, budget.user_column) == ("user", 3, "customer")
    assert Budget.from_dict(budget.to_dict()) == budget


def test_a_required_sandbox_is_required(tmp_path):
    policy = load(tmp_path, BASE + "require_sandbox = true\n")
    judge(policy, GOOD)
    with pytest.raises(PeerError, match="require_sandbox"):
        judge(policy, dataclasses.replace(GOOD, sandboxed=False))


def test_mode_none_needs_both_words_of_the_administrator(tmp_path):
    listed = BASE.replace('["record-distributed"]', '["record-distributed", "none"]')
    with pytest.raises(UsageError, match="allow_no_dp"):
        load(tmp_path, listed)
    plain = dataclasses.replace(GOOD, mode="none", epsilon=math.inf, noise_multiplier=0.0)
    judge(load(tmp_path, listed + "allow_no_dp = true\n"), plain)
    with pytest.raises(PeerError):
        judge(Policy(modes=("none",), datasets=("credit",)), plain)


@pytest.mark.parametrize(
    ("text", "word"),
    [
        (BASE + "max_epsilon = 5\n", "max_epsilon_per_job"),
        (BASE.replace("allowed_apps", "allowed_app"), "allowed_apps"),
        (BASE + "[budgets.credit]\nepsilons = 1\n", "epsilon"),
    ],
)
def test_an_unknown_key_is_an_error_and_the_closest_named(tmp_path, text, word):
    with pytest.raises(UsageError, match="unknown key") as caught:
        load(tmp_path, text)
    assert repr(word) in str(caught.value)


@pytest.mark.parametrize(
    "text",
    [
        BASE.replace("3.0", '"lots"'),
        BASE.replace(f"sha256:{APP}", APP),
        BASE.replace('["credit"]', '"credit"'),
        BASE.replace("record-distributed", "records"),
        BASE + "min_honest = 1\n",
        BASE + "min_honest = 2\n",
        BASE + "[budgets.credit]\nepsilon = 0.0\ndelta_dp = 1e-5\n",
        BASE + "[budgets.credit]\nepsilon = 1.0\n",
        BASE + "[budgets.credit]\nepsilon = 0.5\ndelta_dp = 1e-5\nalpha = 2\n",
        BASE + "[budgets.credit]\nepsilon = 1.0\ndelta_dp = 1e-5\nunit = 'user'\n",
        BASE + USERS.replace("max_rows_per_user = 3\n", ""),
        BASE + USERS.replace("user_column = 'customer'\n", ""),
        BASE + USERS.replace("'customer'", "'no such; column'"),
        BASE + USERS.replace("unit = 'user'", "unit = 'record'"),
    ],
)
def test_a_value_that_protects_nobody_is_refused_at_load(tmp_path, text):
    with pytest.raises(UsageError):
        load(tmp_path, text)


def test_a_small_cohort_needs_explicit_consent(tmp_path):
    policy = load(tmp_path, BASE + "min_honest = 2\nsmall_cohort_consent = true\n")
    assert policy.min_honest == 2


def test_cohort_rules_come_from_the_manifest_and_the_policy():
    manifest, _ = make_manifest([f"bank-{c}" for c in "abcde"])
    rules = cohort_policy(Policy(min_cohort=5, min_pinned_peers=4), manifest, "none", frozenset())
    assert (rules.colluders, rules.min_survivors, rules.own_floor) == (1, 4, 5)
    assert rules.min_pinned_peers == 4
    assert rules.previous_survivors == frozenset()
    private = cohort_policy(Policy(), manifest, "record-distributed", frozenset())
    assert private.previous_survivors is None
    adjacent = cohort_policy(Policy(allow_adjacent_cohorts=True), manifest, "none", frozenset())
    assert adjacent.previous_survivors is None


def test_a_policy_that_will_stop_rounds_warns_at_start():
    manifest, _ = make_manifest([f"bank-{c}" for c in "abcde"], min_survivors=4)
    assert manifest_warnings(Policy(), manifest) == []
    assert "min_cohort 5" in manifest_warnings(Policy(min_cohort=5), manifest)[0]
    assert "every attempt will be refused" in manifest_warnings(Policy(min_honest=4), manifest)[0]


CEILINGS = BASE + "[trainer]\nmemory_mib = 2048\ntime_limit_s = 60.0\nprocesses = 2\n"


def test_settings_up_to_the_ceilings_pass(tmp_path):
    settings = TrainerSettings(memory_mib=2048, time_limit_s=60.0, threads=1024, processes=2)
    load(tmp_path, CEILINGS).trainer.check(dataclasses.asdict(settings))
    load(tmp_path, BASE).trainer.check(dataclasses.asdict(TrainerSettings(memory_mib=1 << 24)))


@pytest.mark.parametrize(
    "setting", [{"memory_mib": 2049}, {"time_limit_s": 60.1}, {"processes": 3}]
)
def test_a_setting_above_its_ceiling_is_refused_by_name(tmp_path, setting):
    (name,) = setting
    settings = TrainerSettings(**{"memory_mib": 64, "time_limit_s": 1.0, **setting})
    with pytest.raises(UsageError, match=rf"site.toml: \[trainer\] {name} .* policy.toml"):
        load(tmp_path, CEILINGS).trainer.check(dataclasses.asdict(settings))


@pytest.mark.parametrize(("line", "word"), [("memory_mb = 1", "memory_mib"), ("threads = 0", "")])
def test_a_wrong_ceiling_is_refused(tmp_path, line, word):
    with pytest.raises(UsageError) as caught:
        load(tmp_path, BASE + f"[trainer]\n{line}\n")
    assert word in str(caught.value)


def test_every_ceiling_is_one_of_a_setting():
    ceilings = {field.name for field in dataclasses.fields(TrainerCeilings)}
    assert ceilings < {field.name for field in dataclasses.fields(TrainerSettings)}


def test_what_the_lint_may_let_pass_is_named(tmp_path):
    assert load(tmp_path, BASE).lint_allow == ()
    policy = load(tmp_path, BASE + '[lint]\nallow = ["imprint", "trap"]\n')
    assert policy.lint_allow == ("imprint", "trap")
    for wrong in ('["imprints"]', '"imprint"', "[1]"):
        with pytest.raises(UsageError, match="allow"):
            load(tmp_path, f"{BASE}[lint]\nallow = {wrong}\n")


def test_a_leakage_audit_can_be_required(tmp_path):
    assert not load(tmp_path, BASE).require_leakage_audit
    policy = load(tmp_path, "require_leakage_audit = true\nleakage_audit_days = 30" + BASE)
    assert (policy.require_leakage_audit, policy.leakage_audit_days) == (True, 30)
    with pytest.raises(UsageError, match="leakage_audit_days"):
        load(tmp_path, "leakage_audit_days = 0" + BASE)


@pytest.mark.parametrize("mode", ["none", "record-distributed"])
def test_a_site_that_asks_for_audits_takes_reviewed_apps_only_in_every_mode(tmp_path, mode):
    text = BASE.replace("modes = [", 'modes = ["none", ')
    strict = load(tmp_path, f"allow_no_dp = true\nrequire_leakage_audit = true\n{text}")
    facts = dataclasses.replace(GOOD, mode=mode)
    judge(strict, facts)
    other = dataclasses.replace(facts, app_sha256="cd" * 32)
    with pytest.raises(PeerError, match="allowed_apps"):
        judge(strict, other)
    judge(strict, dataclasses.replace(other, runs_app=False))
