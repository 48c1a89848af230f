"""The wrap detector: its false alarms on honest sums, and what it finds of what was shifted."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from privacy.compress import MapKind
from privacy.pipeline import Mode
from privacy.planning import CohortRules, derive_encoding
from privacy.spec import TensorSpec, VectorSpec
from privacy.wrap import (
    CERTAIN_ALARM,
    WARN_RATE,
    SumBounds,
    most_of,
    noise_tail,
    read_wrap,
)
from tests.support.encoding_plans import make_plan
from tests.support.live_aggregator import RECORD, job_toml
from tidegate.job_terms import privacy_terms
from tidegate.jobfile import JobFile

SITES = 5
RULES = CohortRules(1, 4, SITES)
SPEC = VectorSpec((TensorSpec("w", (4000,)),))


def plan_of(kind, spec=SPEC):
    """Give the plan of a job with 100 expected records, as the aggregator derives it."""
    toml = job_toml(privacy=RECORD).replace(b'"identity"', b'"%s"' % kind.encode())
    return derive_encoding(privacy_terms(JobFile.parse(toml)), spec, RULES, bytes(32))


def honest_sum(plan, rng, alignment, records=100):
    """Give an honest centred sum, before the ring: 100 records' clipped vectors and all noise.

    Args:
        plan: Encodes it.
        rng: Draws it.
        alignment: 1 where all records say the same, 0 where they have nothing in common.
        records: How many were drawn.
    """
    common = rng.laplace(size=plan.gradient_length)
    common /= np.linalg.norm(common)
    own = rng.normal(size=plan.gradient_length) * math.sqrt(records / plan.gradient_length)
    signal = plan.clip_gradient * (alignment * records * common + (1 - alignment) * own)
    mapped = plan.linear_map.apply(signal) * plan.scale
    noise = rng.poisson(SITES * plan.noise_variance / 2, mapped.size).astype(np.int64)
    noise -= rng.poisson(SITES * plan.noise_variance / 2, mapped.size)
    return np.rint(mapped).astype(np.int64) + noise


def ring(values, bits):
    return (values % (1 << bits)).astype(np.uint32)


def bounds_of(plan, records):
    return SumBounds.of(plan, SITES, float(SITES * plan.noise_variance), records)


def read(values, plan, records=100.0):
    return read_wrap(ring(values, plan.bits), plan.bits, bounds_of(plan, records))


KINDS = [MapKind.IDENTITY, MapKind.ROTATION]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("alignment", [0.0, 0.3, 1.0])
def test_no_honest_sum_of_a_job_within_its_range_gives_an_alarm(kind, alignment):
    plan = plan_of(kind)
    for seed in range(40):
        reading = read(honest_sum(plan, np.random.default_rng(seed), alignment), plan)
        assert not reading.is_certain
        assert not reading.is_high


def test_pure_noise_and_zeros_give_no_alarm_at_any_length():
    for length in (1, 2, 7, 100, 5000):
        plan = plan_of(MapKind.IDENTITY, VectorSpec((TensorSpec("w", (length,)),)))
        for seed in range(20):
            rng = np.random.default_rng(seed)
            noise = np.rint(rng.normal(size=length) * math.sqrt(SITES * plan.noise_variance))
            for values in (noise.astype(np.int64), np.zeros(length, np.int64)):
                reading = read(values, plan)
                assert not reading.is_certain
                assert not reading.is_high


@pytest.mark.parametrize("deviations", [5, 6, 8])
def test_normal_sums_of_the_planned_width_stay_below_the_stated_false_alarm_rate(deviations):
    """400 sums whose ring holds 5 deviations or more, as plans are made: not one alarm."""
    bits, length = 20, 20_000
    half = 1 << (bits - 1)
    spread = half / deviations
    for known in (0.0, 0.9):  # how much of the spread is noise, which is known
        bounds = SumBounds((known * spread) ** 2, math.inf, math.inf)
        for seed in range(200):
            rng = np.random.default_rng([deviations, seed])
            values = np.rint(rng.normal(size=length) * spread).astype(np.int64)
            reading = read_wrap(ring(values, bits), bits, bounds)
            assert not reading.is_high
            assert not reading.is_certain


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("share", [0.25, 1.0])
def test_a_site_that_shifts_many_coordinates_by_half_the_ring_is_certain(kind, share):
    plan = plan_of(kind)
    for seed in range(10):
        rng = np.random.default_rng(seed)
        values = honest_sum(plan, rng, 0.3)
        shifted = rng.random(values.size) < share
        reading = read(values + shifted * (1 << (plan.bits - 1)), plan)
        assert reading.is_high
        assert reading.rate > share / 4
        if kind is MapKind.IDENTITY or share == 1.0:
            assert reading.is_certain


@pytest.mark.parametrize("kind", KINDS)
def test_a_few_shifted_coordinates_are_warned_of(kind):
    plan = plan_of(kind)
    found = 0
    for seed in range(20):
        rng = np.random.default_rng(seed)
        values = honest_sum(plan, rng, 0.3)
        where = rng.choice(values.size, 12, replace=False)
        values[where] += 1 << (plan.bits - 1)
        found += read(values, plan).is_high
    assert found == 20


def test_without_noise_two_shifted_coordinates_are_certain():
    """Mode none: no two coordinates can be near the edge, for the norm of a sum is bounded."""
    plan = make_plan(Mode.NONE, gradient=1000, metrics=0)
    rng = np.random.default_rng(4)
    values = np.rint(rng.normal(size=1000) * 10 * plan.scale / 1000).astype(np.int64)
    bounds = bounds_of(plan, 0.0)
    assert not read_wrap(ring(values, plan.bits), plan.bits, bounds).is_certain
    most = bounds.signal_norm / (7 / 8 * 2 ** (plan.bits - 1))
    values[: 1 + math.floor(most**2)] += 1 << (plan.bits - 1)
    assert read_wrap(ring(values, plan.bits), plan.bits, bounds).is_certain


def test_counts_below_their_bound_are_no_sign_of_anything_and_above_it_are():
    """Statistics and trees: half the ring is for counts, and no spread is read from them."""
    bits, length = 24, 500
    half = 1 << (bits - 1)
    bounds = SumBounds((half / 64) ** 2, math.inf, half / 2)
    counts = np.full(length, half // 2 - 1) + np.random.default_rng(1).integers(-99, 99, length)
    reading = read_wrap(ring(counts, bits), bits, bounds)
    assert (reading.is_certain, reading.is_high, reading.at_edge) == (False, False, 0)
    counts[7] = half - 5
    reading = read_wrap(ring(counts, bits), bits, bounds)
    assert (reading.is_certain, reading.at_edge, reading.most) == (True, 1, 0)
    assert reading.rate == pytest.approx(1 / length, rel=1e-6)


def test_a_range_that_is_too_small_shows_in_the_rate():
    bits = 16
    half = 1 << (bits - 1)
    rng = np.random.default_rng(2)
    for deviations in (1.5, 2.5, 3.5, 4.0):
        values = np.rint(rng.normal(size=200_000) * half / deviations).astype(np.int64)
        wrapped = np.mean(np.abs(values) >= half)
        bounds = SumBounds((half / deviations) ** 2, math.inf, math.inf)
        reading = read_wrap(ring(values, bits), bits, bounds)
        assert reading.is_high
        assert wrapped / 3 < reading.rate < 3 * wrapped


def test_noise_alone_in_every_coordinate_of_the_ring_is_certain():
    """What is left of a sum whose masks did not come off, or that a site filled with noise."""
    plan = plan_of(MapKind.ROTATION, VectorSpec((TensorSpec("w", (60_000,)),)))
    values = np.random.default_rng(3).integers(0, 1 << plan.bits, plan.length).astype(np.uint32)
    reading = read_wrap(values, plan.bits, bounds_of(plan, 20.0))
    assert reading.at_edge == pytest.approx(plan.length / 8, rel=0.1)
    assert reading.rate > 0.05
    assert reading.is_high


@given(
    st.integers(8, 32),
    st.integers(1, 400),
    st.floats(0, 1e9),
    st.floats(0, 1e12) | st.just(math.inf),
    st.integers(0, 2**32 - 1),
)
def test_every_sum_reads(bits, length, variance, norm, seed):
    values = np.random.default_rng(seed).integers(0, 1 << bits, length).astype(np.uint32)
    reading = read_wrap(values, bits, SumBounds(variance, norm, norm))
    centred = values.astype(np.int64)
    centred[centred >= 1 << (bits - 1)] -= 1 << bits
    half = 1 << (bits - 1)
    assert reading.at_edge == np.count_nonzero(np.abs(centred) >= half - half // 8)
    assert 0 <= reading.rate <= 1
    assert 0 <= reading.most <= length


@given(st.floats(0.5, 1e8), st.floats(0, 40))
def test_the_noise_bound_is_above_the_exact_tail(variance, deviations):
    beyond = math.ceil(deviations * math.sqrt(variance))
    exact = 2 * stats.skellam.sf(beyond - 1, variance / 2, variance / 2)
    if math.isfinite(exact) and exact > 1e-250:
        assert noise_tail(beyond, variance) >= min(1.0, exact) * (1 - 1e-6)


@given(st.integers(1, 10**6), st.floats(1e-12, 1), st.sampled_from([1e-6, CERTAIN_ALARM]))
def test_the_binomial_bound_is_above_the_exact_tail(count, share, alarm):
    most = most_of(count, share, alarm)
    assert 0 <= most <= count
    assert stats.binom.sf(most, count, share) <= alarm * (1 + 1e-6)


def test_rates_that_plans_are_made_for_are_below_the_one_to_warn_of():
    assert math.erfc(5 / math.sqrt(2)) < WARN_RATE / 10
