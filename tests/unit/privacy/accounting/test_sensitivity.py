"""Integer sensitivities, scale, variance shares and bit widths (privacy.md, steps 5 to 7)."""

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from privacy.accounting.sensitivity import (
    bit_width,
    choose_scale,
    float64_sum_error,
    honest_sites,
    record_rounding_sensitivity,
    required_variance,
    site_variance,
    sum_rounding_sensitivity,
)
from privacy.errors import UsageError

SEEDS = st.integers(0, 2**32 - 1)


def test_the_documented_case():
    sensitivity = record_rounding_sensitivity(1.0, 65536.0, 2**20)
    assert sensitivity.D2 == 65536 + 512
    assert sensitivity.D1 == 1024 * 66048


def test_l1_uses_the_square_where_it_is_smaller():
    # Norm 3 and a million coordinates: at most 9 of them can differ.
    sensitivity = record_rounding_sensitivity(1.0, 3.0 - 0.5, 1)
    assert sensitivity.D1 == sensitivity.D2 == 3.0
    wide = sum_rounding_sensitivity(0.5, 1.0, 4, 1)
    assert pytest.approx(2 * wide.D2) == wide.D1


@given(seed=SEEDS, d=st.integers(1, 200), scale=st.floats(0.01, 1e4))
@settings(max_examples=60, deadline=None)
def test_a_rounded_record_stays_within_D2_and_D1(seed, d, scale):
    rng = np.random.default_rng(seed)
    record_D = rng.standard_normal(d)
    record_D *= 0.7 / np.linalg.norm(record_D)
    rounded_D = np.rint(record_D * scale).astype(np.int64)
    bound = record_rounding_sensitivity(0.7, scale, d)
    assert math.sqrt(int((rounded_D * rounded_D).sum())) <= bound.D2 * (1 + 1e-12)
    assert int(np.abs(rounded_D).sum()) <= bound.D1 * (1 + 1e-12)


@given(seed=SEEDS, d=st.integers(1, 60), n=st.integers(2, 40), exponent=st.integers(-2, 14))
@settings(max_examples=60, deadline=None)
def test_one_record_moves_a_rounded_sum_by_at_most_D2(seed, d, n, exponent):
    rng = np.random.default_rng(seed)
    records_ND = rng.standard_normal((n, d)) * rng.lognormal(0, 2, (n, 1))
    records_ND *= np.minimum(1, 1.5 / np.linalg.norm(records_ND, axis=1))[:, None]
    scale = 2.0**exponent
    with_it_D = np.rint(records_ND.sum(axis=0) * scale)
    without_D = np.rint(records_ND[1:].sum(axis=0) * scale)
    bound = sum_rounding_sensitivity(1.5, scale, d, n)
    assert np.linalg.norm(with_it_D - without_D) <= bound.D2


@given(seed=SEEDS, n=st.integers(1, 60), inner=st.integers(1, 30))
@settings(max_examples=40, deadline=None)
def test_the_float64_bound_holds_against_exact_arithmetic(seed, n, inner):
    rng = np.random.default_rng(seed)
    map_KK, _ = np.linalg.qr(rng.standard_normal((inner, inner)))
    map_KK *= 1 - 1e-12  # operator norm at most 1 in exact arithmetic too
    records_NK = rng.standard_normal((n, inner))
    records_NK *= (1 - 1e-12) / np.linalg.norm(records_NK, axis=1)[:, None]
    computed_K = map_KK @ records_NK.sum(axis=0)
    exact_K = [
        sum(
            Fraction(map_KK[row, col]) * sum(map(Fraction, records_NK[:, col]))
            for col in range(inner)
        )
        for row in range(inner)
    ]
    off = math.sqrt(
        sum((Fraction(float(a)) - b) ** 2 for a, b in zip(computed_K, exact_K, strict=True))
    )
    assert off <= float64_sum_error(1.0, inner, n, (inner,))


def test_the_float64_bound_is_small_for_a_real_batch_and_grows_with_everything():
    base = float64_sum_error(1.0, 10**6, 4096)
    assert 2 * choose_scale(1.0, 10**6) * base < 1e-3
    assert float64_sum_error(1.0, 10**6, 8192) > base
    assert float64_sum_error(2.0, 10**6, 4096) > base
    assert float64_sum_error(1.0, 10**6, 4096, (1024,)) > base
    assert float64_sum_error(1.0, 10**6, 4096, (1024, 8)) > float64_sum_error(
        1.0, 10**6, 4096, (1024,)
    )


def test_sum_rounding_costs_more_than_record_rounding():
    record = record_rounding_sensitivity(1.0, 1024.0, 400)
    total = sum_rounding_sensitivity(1.0, 1024.0, 400, 100)
    assert total.D2 > record.D2 + 10 - 1e-9


def test_sum_rounding_needs_a_power_of_two_and_useful_bounds():
    with pytest.raises(UsageError, match="power of two"):
        sum_rounding_sensitivity(1.0, 1000.0, 10, 10)
    with pytest.raises(UsageError, match="n_max"):
        sum_rounding_sensitivity(1.0, 1024.0, 10, 0)


@given(clipping_norm=st.floats(1e-3, 1e3), d=st.integers(1, 2**30))
def test_the_scale_is_the_least_power_of_two_within_two_percent(clipping_norm, d):
    scale = choose_scale(clipping_norm, d)
    assert math.frexp(scale)[0] == 0.5
    share = 0.02 * clipping_norm
    assert math.sqrt(d) <= share * scale * (1 + 1e-12)
    assert math.sqrt(d) > share * scale / 2 * (1 - 1e-12)


def test_the_scale_of_an_exact_power_of_two_is_not_doubled():
    assert choose_scale(50.0, 4**5) == 32.0
    assert choose_scale(1.0, 2**20) == 65536.0


def test_a_scale_out_of_range_is_refused():
    with pytest.raises(UsageError, match="another C"):
        choose_scale(1e-12, 2**30)


def test_variance_takes_D2_never_the_unrounded_norm():
    D2 = record_rounding_sensitivity(1.0, 65536.0, 2**20).D2
    assert required_variance(2.0, D2) == (2.0 * 66048.0) ** 2 > (2.0 * 65536.0) ** 2


@given(variance=st.floats(1e-6, 1e30), n_min=st.integers(2, 200), data=st.data())
def test_the_shares_of_the_fewest_honest_sites_carry_the_noise(variance, n_min, data):
    colluding = data.draw(st.integers(1, n_min - 1))
    share = site_variance(variance, n_min, colluding)
    count = n_min - colluding
    assert share * count >= variance
    assert share * count <= variance * (1 + 1e-14)


def test_honest_sites_of_the_default_case():
    assert honest_sites(4, 1) == 3


@pytest.mark.parametrize("colluding", [0, 4, 5, -1, True, 1.0])
def test_c_must_lie_between_one_and_n_min(colluding):
    with pytest.raises(UsageError):
        honest_sites(4, colluding)


@given(share=st.floats(1e-2, 1e14), n_sites=st.integers(1, 100), signal_sd=st.floats(0.0, 1e7))
def test_five_deviations_fit_the_ring_and_one_bit_less_would_not_do(share, n_sites, signal_sd):
    bits = bit_width(share, n_sites, signal_sd)
    half_range = 5 * math.sqrt(n_sites * share + signal_sd**2)
    assert 8 <= bits <= 32
    assert half_range <= 2 ** (bits - 1) - 1
    if bits > 8:
        assert half_range > 2 ** (bits - 2) - 2


@pytest.mark.parametrize(("d", "low", "high"), [(10**4, 18, 22), (10**7, 20, 24)])
def test_bit_widths_are_those_of_the_design(d, low, high):
    scale = choose_scale(1.0, d)
    D2 = record_rounding_sensitivity(1.0, scale, d).D2
    share = site_variance(required_variance(1.0, D2), 4, 1)
    signal_sd = 500 * scale / math.sqrt(d)
    assert low <= bit_width(share, 5, signal_sd) <= high


def test_more_than_32_bits_are_refused():
    with pytest.raises(UsageError, match="32"):
        bit_width(1e18, 5, 0.0)
