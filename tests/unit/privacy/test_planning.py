"""The plan both ends derive: the same bytes, enough noise, and no weaker plan gets by."""

import math
from dataclasses import replace

import numpy as np
import pytest

from privacy.accounting.events import DEFAULT_SAMPLER_TV, NoDpEvent
from privacy.compress import MapKind
from privacy.errors import PeerError, UsageError
from privacy.noise import MAX_STD, skellam_table
from privacy.pipeline import EncodingPlan, Mode
from privacy.planning import (
    CohortRules,
    PrivacyTerms,
    check_encoding,
    derive_encoding,
    encoding_for_version,
    job_epsilon,
    step_event,
)
from privacy.quantise import Rounding
from privacy.spec import VectorSpec

SPEC = VectorSpec.of({"w": np.zeros((50, 100), np.float32), "b": np.zeros(50, np.float32)})
RULES = CohortRules(colluders=1, min_survivors=4, members=5)
SEED = bytes(range(32))
TERMS = PrivacyTerms(
    mode=Mode.RECORD_DISTRIBUTED,
    rounds=600,
    epsilon=3.0,
    delta_dp=1e-5,
    sampling_rate=0.01,
    clipping_norm=0.5,
    metrics_norm=0.125,
    metrics_length=41,
    expected_batch_size=900.0,
    max_records=1_000_000,
    rounding=Rounding.RECORD,
    noise_multiplier=None,
    map_kind=MapKind.IDENTITY,
    keep=1.0,
    signal_range=0.25,
)
PLAIN = replace(
    TERMS,
    mode=Mode.NONE,
    epsilon=0.0,
    delta_dp=0.0,
    sampling_rate=1.0,
    clipping_norm=10.0,
    metrics_norm=0.0,
    metrics_length=0,
)


@pytest.fixture(scope="module")
def plan():
    return derive_encoding(TERMS, SPEC, RULES, SEED)


def test_calibrated_plan_reaches_epsilon_and_not_more(plan):
    epsilon = job_epsilon(plan, TERMS, RULES)
    assert 2.99 < epsilon <= 3.0
    assert 0.7 < plan.noise_multiplier < 0.95  # about 0.82 as privacy.md's neighbours suggest
    assert check_encoding(EncodingPlan.from_bytes(plan.to_bytes()), TERMS, SPEC, RULES) == epsilon


def test_noise_of_the_fewest_honest_survivors_is_the_whole_noise(plan):
    needed = (plan.noise_multiplier * plan.sensitivity) ** 2
    assert plan.noise_variance * 3 >= needed
    assert plan.noise_variance * 3 <= needed * 1.001
    assert pytest.approx(plan.noise_variance * 3) == step_event(plan, RULES).V


@pytest.mark.parametrize(
    "weaker",
    [
        {"noise_variance": 10},
        {"sensitivity": 1e6},
        {"scale": 2.0},
        {"sampling_rate": 0.02},
        {"clip_gradient": 0.4},
        {"map_kind": MapKind.ROTATION},
        {"bits": 32},
        {"n_max": 5},
    ],
)
def test_a_plan_that_differs_in_one_number_is_refused_by_name(plan, weaker):
    # Some forgeries contradict themselves and cannot even be made; the others must be found out.
    with pytest.raises(PeerError) as caught:
        check_encoding(replace(plan, **weaker), TERMS, SPEC, RULES)
    assert caught.value.reason in {"policy", "malformed"}


def test_less_noise_consistently_derived_is_refused_by_its_epsilon():
    lazy = derive_encoding(replace(TERMS, noise_multiplier=0.6), SPEC, RULES, SEED)
    with pytest.raises(PeerError, match="cost epsilon"):
        check_encoding(lazy, TERMS, SPEC, RULES)


def test_a_plan_for_another_manifest_is_refused(plan):
    with pytest.raises(PeerError):
        check_encoding(plan, TERMS, SPEC, replace(RULES, min_survivors=3))


def test_a_plan_for_another_model_is_refused(plan):
    other = VectorSpec.of({"w": np.zeros((50, 101), np.float32)})
    with pytest.raises(PeerError):
        check_encoding(plan, TERMS, other, RULES)


def test_mode_none_cannot_wrap_and_has_no_finite_epsilon():
    plain = derive_encoding(PLAIN, SPEC, RULES, SEED)
    largest = RULES.members * (10.0 * plain.scale + 1)
    assert largest < 2**31
    assert check_encoding(plain, PLAIN, SPEC, RULES) == math.inf
    assert isinstance(step_event(plain, RULES), NoDpEvent)


def test_each_version_has_its_own_map_seed_but_only_where_there_is_a_map(plan):
    assert encoding_for_version(plan, 7) is plan
    rotated = derive_encoding(replace(TERMS, map_kind=MapKind.ROTATION), SPEC, RULES, SEED)
    assert encoding_for_version(rotated, 7) == encoding_for_version(rotated, 7)
    assert encoding_for_version(rotated, 7) != encoding_for_version(rotated, 8)


def test_the_samplers_own_error_stays_below_what_the_accountant_charges_for():
    assert skellam_table(MAX_STD**2).tv <= DEFAULT_SAMPLER_TV


def test_a_plan_with_another_noise_multiplier_than_the_job_states_is_refused():
    job = replace(TERMS, epsilon=100.0, noise_multiplier=5.0)
    weaker = derive_encoding(replace(job, noise_multiplier=1.0), SPEC, RULES, SEED)
    with pytest.raises(PeerError, match="noise_multiplier"):
        check_encoding(weaker, job, SPEC, RULES)


@pytest.mark.parametrize("kind", list(MapKind))
def test_one_metric_of_every_record_of_the_batch_fits_the_ring(kind):
    terms = replace(TERMS, map_kind=kind, keep=0.1, signal_range=1.0)
    plan = encoding_for_version(derive_encoding(terms, SPEC, RULES, SEED), 0)
    gradient = np.zeros(SPEC.length)
    record = np.concatenate([gradient, [terms.metrics_norm], np.zeros(terms.metrics_length - 1)])
    summed = plan.linear_map.apply(record[np.newaxis])[0] * terms.expected_batch_size * plan.scale
    noise = 5 * math.sqrt(RULES.members * plan.noise_variance)
    assert np.abs(summed).max() <= 2 ** (plan.bits - 1)
    assert noise <= 2 ** (plan.bits - 1)


# The third is just below 2^24 for all members: their noise needs a bit of its own.
@pytest.mark.parametrize("max_records", [1000, 1_000_000, 3_355_443, 50_000_000])
def test_bounded_sums_of_all_members_fit_the_ring(max_records):
    terms = replace(TERMS, rounds=1, metrics_norm=0.0, metrics_length=0, site_range=max_records)
    bounded = derive_encoding(terms, SPEC, RULES, SEED)
    noise = math.sqrt(RULES.members * bounded.noise_variance)
    most = RULES.members * max_records * bounded.scale
    assert most + 5 * noise < 2 ** (bounded.bits - 1)
    assert bounded.scale >= 1
    assert check_encoding(bounded, terms, SPEC, RULES) <= terms.epsilon * (1 + 1e-6)


def test_sums_that_no_ring_holds_are_refused():
    terms = replace(TERMS, metrics_norm=0.0, metrics_length=0, site_range=1e9)
    with pytest.raises(UsageError, match="max_records"):
        derive_encoding(terms, SPEC, RULES, SEED)
