"""Plans of mode record-local, site and none, and of evaluations: what they promise and refuse."""

import math
from dataclasses import replace

import numpy as np
import pytest
from dp_accounting import dp_event
from dp_accounting.rdp import RdpAccountant

from privacy.accounting.accountant import ORDERS, Accountant
from privacy.accounting.events import GaussianRecordEvent, NoDpEvent, SkellamRecordEvent
from privacy.compress import MapKind
from privacy.decode import decode_sum
from privacy.delta import Delta
from privacy.encode import encode_delta
from privacy.errors import PeerError, Reason, UsageError
from privacy.pipeline import EncodingPlan, Mode
from privacy.planning import (
    CohortRules,
    PrivacyTerms,
    check_encoding,
    check_evaluation,
    derive_encoding,
    evaluation_encoding,
    evaluation_spec,
    job_epsilon,
    step_event,
)
from privacy.quantise import Rounding
from privacy.spec import VectorSpec
from tests.support.ring_values import reduce_to_ring

SPEC = VectorSpec.of({"w": np.zeros((50, 100), np.float32), "b": np.zeros(50, np.float32)})
RULES = CohortRules(colluders=1, min_survivors=4, members=5)
MANY = CohortRules(colluders=20, min_survivors=250, members=300)
SEED = bytes(range(32))
LOCAL = PrivacyTerms(
    mode=Mode.RECORD_LOCAL,
    rounds=40,
    epsilon=3.0,
    delta_dp=1e-5,
    sampling_rate=0.02,
    clipping_norm=0.5,
    metrics_norm=0.125,
    metrics_length=41,
    expected_batch_size=64.0,
    max_records=100_000,
    rounding=Rounding.PLAIN,
    noise_multiplier=None,
    map_kind=MapKind.IDENTITY,
    keep=1.0,
    signal_range=1.0,
    local_steps=10,
    update_norm=2.0,
)
SITE = replace(
    LOCAL,
    mode=Mode.SITE,
    epsilon=8.0,
    sampling_rate=1.0,
    expected_batch_size=0.0,
    max_records=0,
    rounding=Rounding.CONDITIONAL,
    local_steps=1,
    update_norm=0.0,
)
NONE = replace(SITE, mode=Mode.NONE, epsilon=0.0, delta_dp=0.0)


@pytest.fixture(scope="module")
def local():
    return derive_encoding(LOCAL, SPEC, RULES, SEED)


@pytest.fixture(scope="module")
def site():
    return derive_encoding(SITE, SPEC, MANY, SEED)


def peer_epsilon(q, z, steps, delta_dp):
    """Ask dp-accounting, on the same integer orders."""
    accountant = RdpAccountant(list(ORDERS))
    gaussian = dp_event.PoissonSampledDpEvent(q, dp_event.GaussianDpEvent(z))
    accountant.compose(dp_event.SelfComposedDpEvent(gaussian, steps))
    return accountant.get_epsilon(delta_dp)


# --- record-local --------------------------------------------------------------------------------


@pytest.mark.parametrize("unit", ["record", "user"])
def test_local_epsilon_is_that_of_dp_accounting_for_all_local_steps(unit):
    """The effective z: deviation over D2 with its rounding, all in grid units.

    The noise is the discrete Gaussian of at least z*D2, so what is charged is the Gaussian of z;
    sqrt(d)/2 is inside D2, and the sampler's total variation is some 1e-22 of delta.
    """
    terms = replace(LOCAL, unit=unit, max_rows=7 if unit == "user" else 0)
    plan = derive_encoding(terms, SPEC, RULES, SEED)
    effective = math.sqrt(plan.local.variance) / plan.local.sensitivity
    assert plan.noise_multiplier <= effective <= plan.noise_multiplier * (1 + 1e-6)
    ours = job_epsilon(plan, terms, RULES)
    peer = peer_epsilon(0.02, plan.noise_multiplier, 40 * 10, 1e-5)
    assert ours == pytest.approx(peer, rel=1e-6)
    assert ours >= peer_epsilon(0.02, effective, 40 * 10, 1e-5) * (1 - 1e-9)
    assert 2.99 < ours <= 3.0


def test_the_noise_is_calibrated_to_every_step_not_to_every_round(local):
    one_step = derive_encoding(replace(LOCAL, local_steps=1), SPEC, RULES, SEED)
    same_steps = derive_encoding(replace(LOCAL, local_steps=1, rounds=400), SPEC, RULES, SEED)
    assert one_step.noise_multiplier < local.noise_multiplier
    assert same_steps.noise_multiplier == local.noise_multiplier


def test_the_event_of_a_round_is_all_of_its_local_steps(local):
    event = step_event(local, RULES)
    assert isinstance(event, GaussianRecordEvent)
    assert (event.q, event.z, event.steps) == (0.02, local.noise_multiplier, 10)
    assert (event.d, event.unit) == (SPEC.length + 41, "record")
    assert event.sampler_tv > 0
    assert step_event(local, RULES, 40).steps == 400


def test_a_local_plan_survives_the_wire_and_the_check(local):
    again = EncodingPlan.from_bytes(local.to_bytes())
    assert again == local
    assert check_encoding(again, LOCAL, SPEC, RULES) == job_epsilon(local, LOCAL, RULES)


def test_a_local_plans_ring_holds_every_sites_difference_and_metrics(local):
    assert (local.clip_gradient, local.noise_variance, local.sensitivity) == (2.0, 0, 0.0)
    assert local.clip_metrics >= 4 * LOCAL.metrics_norm
    assert RULES.members * (local.clip * local.scale + 1) < 2**31
    assert (local.local.clip_gradient, local.local.clip_metrics) == (0.5, 0.125)


@pytest.mark.parametrize(
    "change",
    [
        {"steps": 9},
        {"clip_gradient": 0.4},
        {"clip_metrics": 0.1},
        {"expected_batch": 63.0},
        {"grid_exponent": -30},
        {"level_variance": 2**23},
        {"sensitivity": 2.0**25},
    ],
    ids=str,
)
def test_each_local_number_is_derived_anew_and_compared(local, change):
    with pytest.raises(PeerError):
        check_encoding(replace(local, local=replace(local.local, **change)), LOCAL, SPEC, RULES)


@pytest.mark.parametrize(
    "change",
    [{"sampling_rate": 0.01}, {"n_max": 5}, {"clip_gradient": 1.0}, {"scale": 4.0}],
    ids=str,
)
def test_the_other_numbers_are_compared_too(local, change):
    with pytest.raises(PeerError) as caught:
        check_encoding(replace(local, **change), LOCAL, SPEC, RULES)
    assert caught.value.reason is Reason.POLICY


def test_the_unit_is_compared(local):
    with pytest.raises(PeerError, match=r"unit|max_rows"):
        check_encoding(replace(local, unit="user", max_rows=3), LOCAL, SPEC, RULES)


def test_less_local_noise_consistently_derived_is_refused_by_its_epsilon():
    lazy = derive_encoding(replace(LOCAL, noise_multiplier=0.5), SPEC, RULES, SEED)
    with pytest.raises(PeerError, match="cost epsilon"):
        check_encoding(lazy, LOCAL, SPEC, RULES)


def test_a_stated_noise_multiplier_is_taken_as_it_is():
    stated = replace(LOCAL, noise_multiplier=2.5)
    assert derive_encoding(stated, SPEC, RULES, SEED).noise_multiplier == 2.5


def test_more_records_than_exact_sums_carry_are_refused_at_once():
    with pytest.raises(UsageError, match="max_records"):
        derive_encoding(replace(LOCAL, max_records=2**39), SPEC, RULES, SEED)


# --- users ---------------------------------------------------------------------------------------


def test_users_of_record_distributed_cost_as_records_do_and_say_so():
    terms = replace(
        LOCAL, mode=Mode.RECORD_DISTRIBUTED, rounding=Rounding.RECORD, unit="user", max_rows=5
    )
    plan = derive_encoding(terms, SPEC, RULES, SEED)
    by_record = derive_encoding(replace(terms, unit="record", max_rows=0), SPEC, RULES, SEED)
    assert plan.noise_variance == by_record.noise_variance
    event = step_event(plan, RULES)
    assert event.unit == "user"
    assert check_encoding(plan, terms, SPEC, RULES) == pytest.approx(
        job_epsilon(by_record, replace(terms, unit="record"), RULES)
    )
    # A single record of such a sum is a changed user: dearer than a missing one.
    as_record = Accountant().compose(step_event(plan, RULES, 40)).get_epsilon(1e-5)
    assert as_record > job_epsilon(plan, terms, RULES)


# --- site ----------------------------------------------------------------------------------------


def test_a_site_plan_reaches_its_epsilon_for_whole_sites(site):
    epsilon = check_encoding(EncodingPlan.from_bytes(site.to_bytes()), SITE, SPEC, MANY)
    assert 7.99 < epsilon <= 8.0
    event = step_event(site, MANY)
    assert isinstance(event, SkellamRecordEvent)
    assert (event.q, event.unit, event.steps) == (1.0, "site", 1)
    needed = (site.noise_multiplier * site.sensitivity) ** 2
    assert needed <= site.noise_variance * MANY.honest_sites <= needed * 1.001
    # What one record can do inside a site's vector is twice as much.
    as_record = Accountant().compose(step_event(site, MANY, 40)).get_epsilon(1e-5)
    assert as_record > 1.5 * epsilon


@pytest.mark.parametrize("kind", [MapKind.IDENTITY, MapKind.ROTATION, MapKind.ROTATION_RANDOM_K])
def test_sites_encode_sum_and_decode_to_the_clipped_mean_and_noise(kind):
    terms = replace(SITE, map_kind=kind, keep=0.5 if kind.selects else 1.0)
    plan = derive_encoding(terms, SPEC, MANY, SEED)
    rng = np.random.default_rng(5)
    total = np.zeros(plan.length, np.int64)
    deltas = rng.normal(scale=0.01, size=(12, SPEC.length)).astype(np.float32)
    metrics = rng.uniform(0, 0.015, size=(12, 41)).astype(np.float32)
    for number in range(12):
        seeds = (bytes([number]) * 32, bytes([100 + number]) * 32)
        delta = Delta(deltas[number], SPEC.digest)
        total += encode_delta(plan, delta, metrics[number], *seeds).vector_D
    mean = decode_sum(plan, reduce_to_ring(total, plan.bits), 12.0)
    factors = np.minimum(1.0, 0.5 / np.linalg.norm(deltas.astype(np.float64), axis=1))
    wanted = (deltas * factors[:, None]).mean(axis=0)
    spread = math.sqrt(12 * plan.noise_variance) / plan.scale  # of each coordinate of the sum
    assert np.abs(mean.metric_sums_M - metrics.sum(axis=0)).max() < 5.5 * spread
    if not kind.selects:
        error = (mean.gradient_D - wanted) * 12
        assert np.abs(error).max() < 5.5 * spread
        assert error.std() == pytest.approx(spread, rel=0.1)


@pytest.mark.parametrize("change", [{"noise_variance": 9}, {"bits": 30}, {"clip_gradient": 0.4}])
def test_a_site_plan_that_differs_is_refused(site, change):
    with pytest.raises(PeerError):
        check_encoding(replace(site, **change), SITE, SPEC, MANY)


def test_a_site_job_that_would_drown_in_its_noise_is_refused_with_the_numbers():
    few = replace(SITE, epsilon=1.0)
    with pytest.raises(
        UsageError, match=r"n = 5 sites.*n/\(z\*sqrt\(d\)\).*Take at\s+least"
    ) as caught:
        derive_encoding(few, SPEC, RULES, SEED)
    assert "record-distributed" in str(caught.value)
    # At a stated z the limit is exact: n / (z * sqrt(d)) must be above 0.1.
    d = SPEC.length + SITE.metrics_length
    edge = 5 / (0.1 * math.sqrt(d))
    stated = replace(SITE, epsilon=100.0)
    derive_encoding(replace(stated, noise_multiplier=edge * 0.999), SPEC, RULES, SEED)
    with pytest.raises(UsageError, match="learn nothing"):
        derive_encoding(replace(stated, noise_multiplier=edge * 1.001), SPEC, RULES, SEED)


def test_the_gate_stands_at_the_site_too(site):
    terms = replace(SITE, epsilon=100.0, noise_multiplier=5.0)
    forged = replace(site, noise_multiplier=5.0)
    with pytest.raises(PeerError, match="learn nothing") as caught:
        check_encoding(forged, terms, SPEC, RULES)
    assert caught.value.reason is Reason.POLICY


# --- none ----------------------------------------------------------------------------------------


def test_mode_none_sums_clipped_metrics():
    plan = derive_encoding(NONE, SPEC, RULES, SEED)
    assert check_encoding(plan, NONE, SPEC, RULES) == math.inf
    assert RULES.members * (plan.clip * plan.scale + 1) < 2**31
    delta = Delta(np.full(SPEC.length, 0.001, np.float32), SPEC.digest)
    small, large = np.full(41, 0.01, np.float32), np.full(41, 5.0, np.float32)
    total = sum(encode_delta(plan, delta, metrics).vector_D for metrics in (small, large))
    mean = decode_sum(plan, reduce_to_ring(total, plan.bits), 2.0)
    assert np.allclose(mean.gradient_D, 0.001, atol=1e-7)
    assert np.allclose(mean.metric_sums_M, 0.01 + 0.125 / math.sqrt(41), atol=1e-6)


# --- evaluations ---------------------------------------------------------------------------------

EVALUATED = replace(SITE, evaluation_rounds=8, evaluation_length=6)


def test_an_evaluation_is_a_vector_of_metrics_with_the_noise_of_training():
    plan = derive_encoding(EVALUATED, SPEC, MANY, SEED)
    evaluation = evaluation_encoding(EVALUATED, MANY, plan, SEED)
    assert (evaluation.gradient_length, evaluation.metrics_length, evaluation.length) == (6, 0, 6)
    assert evaluation.noise_multiplier == plan.noise_multiplier
    assert evaluation.clip_gradient == SITE.metrics_norm
    assert evaluation.spec_digest == evaluation_spec(6).digest
    assert (
        evaluation.noise_variance * MANY.honest_sites
        >= (plan.noise_multiplier * evaluation.sensitivity) ** 2
    )
    check_evaluation(EncodingPlan.from_bytes(evaluation.to_bytes()), EVALUATED, MANY, plan)
    weaker = replace(evaluation, noise_variance=evaluation.noise_variance // 2)
    with pytest.raises(PeerError, match="noise_variance"):
        check_evaluation(weaker, EVALUATED, MANY, plan)


def test_evaluations_are_paid_from_the_same_epsilon():
    plan = derive_encoding(EVALUATED, SPEC, MANY, SEED)
    without = derive_encoding(SITE, SPEC, MANY, SEED)
    assert plan.noise_multiplier > without.noise_multiplier
    assert 7.99 < check_encoding(plan, EVALUATED, SPEC, MANY) <= 8.0
    accountant = Accountant(unit="site").compose(step_event(plan, MANY, 40))
    evaluation = evaluation_encoding(EVALUATED, MANY, plan, SEED)
    accountant.compose(step_event(evaluation, MANY, 8))
    assert job_epsilon(plan, EVALUATED, MANY) == accountant.get_epsilon(1e-5)
    with pytest.raises(PeerError, match="cost epsilon"):
        check_encoding(without, EVALUATED, SPEC, MANY)


def test_where_any_round_may_be_an_evaluation_the_dearer_is_counted():
    either = replace(SITE, evaluation_length=6)
    plan = derive_encoding(either, SPEC, MANY, SEED)
    epsilon = check_encoding(plan, either, SPEC, MANY)
    assert epsilon <= 8.0
    evaluation = evaluation_encoding(either, MANY, plan, SEED)
    for evaluations in (0, 1, 20, 40):
        accountant = Accountant(unit="site")
        if evaluations:
            accountant.compose(step_event(evaluation, MANY, evaluations))
        if evaluations < 40:
            accountant.compose(step_event(plan, MANY, 40 - evaluations))
        assert accountant.get_epsilon(1e-5) <= epsilon + 1e-12
    # It is no more than a hair dearer than training alone, not twice as dear.
    assert epsilon == pytest.approx(job_epsilon(plan, SITE, MANY), rel=0.01)


def test_an_evaluation_dearer_than_a_round_is_not_counted_as_one():
    either = replace(SITE, epsilon=100.0, rounds=3, noise_multiplier=0.6, evaluation_length=6)
    plan = derive_encoding(either, SPEC, RULES, SEED)
    evaluation = evaluation_encoding(either, RULES, plan, SEED)
    only = Accountant(unit="site").compose(step_event(evaluation, RULES, 3)).get_epsilon(1e-5)
    # Fewer coordinates, a coarser grid: Skellam's own term weighs more there.
    assert job_epsilon(plan, replace(either, evaluation_length=0), RULES) < only
    assert only <= job_epsilon(plan, either, RULES) <= only * (1 + 1e-9)


def test_evaluation_metrics_have_a_norm_where_training_has_none():
    terms = replace(EVALUATED, metrics_norm=0.0, metrics_length=0)
    plan = derive_encoding(terms, SPEC, MANY, SEED)
    assert evaluation_encoding(terms, MANY, plan, SEED).clip_gradient == 1.0


def test_evaluations_sum_and_decode():
    plan = derive_encoding(replace(NONE, evaluation_length=6), SPEC, RULES, SEED)
    terms = replace(NONE, evaluation_length=6)
    evaluation = evaluation_encoding(terms, RULES, plan, SEED)
    metrics = np.array([0.01, 0.02, 0, 0, 0.03, 0.1], np.float32)
    delta = Delta(metrics, evaluation_spec(6).digest)
    total = sum(encode_delta(evaluation, delta).vector_D for _ in range(3))
    mean = decode_sum(evaluation, reduce_to_ring(total, evaluation.bits), 3.0)
    assert np.allclose(mean.gradient_D, metrics, atol=1e-7)
    assert isinstance(step_event(evaluation, RULES), NoDpEvent)


def test_a_local_apps_evaluation_is_charged_like_a_round():
    terms = replace(LOCAL, noise_multiplier=1.2, evaluation_rounds=5, evaluation_length=6)
    plan = derive_encoding(terms, SPEC, RULES, SEED)
    evaluation = evaluation_encoding(terms, RULES, plan, SEED)
    event = step_event(evaluation, RULES)
    assert (event.q, event.z, event.steps, event.d) == (0.02, 1.2, 10, 6)
    longer = job_epsilon(plan, replace(terms, rounds=45, evaluation_length=0), RULES)
    assert job_epsilon(plan, terms, RULES) == pytest.approx(longer, rel=1e-9)


def test_jobs_without_evaluations_have_no_plan_for_them(site):
    with pytest.raises(UsageError, match="evaluation"):
        evaluation_encoding(SITE, MANY, site, SEED)
    records = replace(LOCAL, mode=Mode.RECORD_DISTRIBUTED, evaluation_length=3)
    with pytest.raises(UsageError):
        evaluation_encoding(records, RULES, site, SEED)
    with pytest.raises(PeerError):
        check_evaluation(site, SITE, MANY, site)
