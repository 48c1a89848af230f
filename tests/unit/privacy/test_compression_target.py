"""A job's target: the mildest map that reaches it, the same at both ends, or the nearest named."""

from dataclasses import replace

import numpy as np
import pytest

from privacy.compress import MapKind
from privacy.compression_target import resolve, size_of
from privacy.errors import UsageError
from privacy.pipeline import Mode
from privacy.planning import check_encoding, derive_encoding
from privacy.quantise import Rounding
from privacy.spec import TensorSpec, VectorSpec
from privacy.step_size import RANGE_DEVIATIONS, RingUse, bits_for, next_scale, scale_for
from privacy.terms import CohortRules, PrivacyTerms

RULES = CohortRules(colluders=1, min_survivors=4, members=16)
SPEC = VectorSpec(
    (
        TensorSpec("w1", (200, 784)),
        TensorSpec("b1", (200,)),
        TensorSpec("w2", (10, 200)),
        TensorSpec("b2", (10,)),
    )
)
LARGE = VectorSpec((TensorSpec("w", (2048, 2048)), TensorSpec("v", (2048, 8192))))
TERMS = PrivacyTerms(
    mode=Mode.NONE,
    rounds=10,
    epsilon=0.0,
    delta_dp=0.0,
    sampling_rate=1.0,
    clipping_norm=1.0,
    metrics_norm=0.0,
    metrics_length=0,
    expected_batch_size=0.0,
    max_records=0,
    rounding=Rounding.PLAIN,
    noise_multiplier=None,
    map_kind=MapKind.IDENTITY,
    keep=1.0,
    signal_range=1.0,
    decay=0.9,
)


@pytest.mark.parametrize(
    ("spec", "target", "kind"),
    [
        (SPEC, 4, MapKind.ROTATION),
        (SPEC, 10, MapKind.LOW_RANK),
        (SPEC, 100, MapKind.LOW_RANK),
        (SPEC, 400, MapKind.LOW_RANK),
        (LARGE, 400, MapKind.LOW_RANK),
        (LARGE, 3000, MapKind.LOW_RANK),
    ],
)
def test_a_target_is_reached_and_not_by_far_more(spec, target, kind):
    found = resolve(replace(TERMS, target=target), spec, RULES)
    size = size_of(found, spec)
    assert found.map_kind is kind
    assert size.ratio >= target * (0.95 if kind is MapKind.ROTATION else 1)
    assert size.ratio < target * (1.5 if kind is MapKind.LOW_RANK else 2)
    assert (found.decay > 0) == kind.loses
    plan = derive_encoding(replace(TERMS, target=target), spec, RULES, bytes(32))
    lengths = {plan.linear_map.shortest_output, plan.linear_map.longest_output}
    assert sum(lengths) / len(lengths) == pytest.approx(size.integers)
    check_encoding(plan, replace(TERMS, target=target), spec, RULES)


def test_a_target_beyond_the_model_names_the_nearest():
    with pytest.raises(UsageError, match=r'ask for "\d+x" at most'):
        resolve(replace(TERMS, target=5000), SPEC, RULES)


def test_a_model_without_matrices_sends_a_seeded_share():
    spec = VectorSpec((TensorSpec("w", (5000,)),))
    found = resolve(replace(TERMS, target=40), spec, RULES)
    assert (found.map_kind, found.rank) == (MapKind.LOW_RANK, 0)
    assert found.keep == pytest.approx(0.1, rel=0.15)
    plan = derive_encoding(found, spec, RULES, bytes(32))
    assert plan.low_rank.matrices == ()


def test_noised_sums_reach_their_target_too():
    terms = replace(
        TERMS,
        mode=Mode.RECORD_DISTRIBUTED,
        epsilon=5.0,
        delta_dp=1e-5,
        sampling_rate=0.1,
        expected_batch_size=100.0,
        max_records=1000,
        rounding=Rounding.RECORD,
        noise_multiplier=1.0,
        decay=0.0,
        target=20.0,
    )
    plan = derive_encoding(terms, SPEC, RULES, bytes(32))
    lengths = [plan.linear_map.shortest_output, plan.linear_map.longest_output]
    assert 32 * SPEC.length / (plan.bits * sum(lengths) / 2) >= 20
    check_encoding(plan, terms, SPEC, RULES)


def test_terms_without_compression_stay_as_they_are():
    assert resolve(TERMS, SPEC, RULES) is TERMS
    low = replace(TERMS, map_kind=MapKind.LOW_RANK, rank=2, keep=0.1)
    assert resolve(low, SPEC, RULES).bits == bits_for(16) == 8
    assert resolve(replace(low, bits=12), SPEC, RULES).bits == 12


@pytest.mark.parametrize(("sites", "bits"), [(3, 8), (100, 8), (300, 9), (1000, 10)])
def test_bits_follow_the_number_of_sites(sites, bits):
    assert bits_for(sites) == bits


def use(**changes):
    usual = RingUse(bits=8, scale=2.0, first=False, wrap_rate=0.0)
    return replace(usual, **changes)


def test_the_range_follows_the_sum():
    rng = np.random.default_rng(0)
    for deviation in (0.5, 1.0, 30.0):
        scale = scale_for(deviation, 12)
        sum_d = np.rint(rng.standard_normal(20_000) * deviation * scale).astype(np.int64)
        again = next_scale(use(bits=12, scale=scale), sum_d)
        assert again == pytest.approx(scale, rel=0.02)
    quiet = np.zeros(100, np.int64)
    assert next_scale(use(), quiet) == pytest.approx(2.0 / 0.85)
    assert next_scale(use(first=True), quiet) == pytest.approx(2.0 * 128 / RANGE_DEVIATIONS)
    few = np.full(100, 2)
    assert next_scale(use(first=True), few) == pytest.approx(2.0 * 128 / RANGE_DEVIATIONS / 8)
    assert next_scale(use(wrap_rate=0.01), quiet) == pytest.approx(0.5)
    assert next_scale(use(), np.full(100, 127)) < 0.5
