"""Rounding to the grid: the sensitivities, and that nothing exceeds them."""

import dataclasses
import math

import numpy as np
import pytest

from privacy.accounting.sensitivity import (
    conditional_rounding_sensitivity,
    sum_rounding_sensitivity,
)
from privacy.compress import CompressedDelta, MapKind
from privacy.errors import PeerError, Reason, UsageError
from privacy.quantise import (
    MAX_SENSITIVITY,
    RecordSum,
    Rounding,
    check_sensitivity,
    round_conditionally,
    round_plainly,
)
from tests.support.encoding_plans import SEED, make_rule


def summed(rule, grads, metrics=None, mask=None):
    grads = np.asarray(grads, dtype=np.float32)
    metrics = np.zeros((len(grads), rule.metrics)) if metrics is None else metrics
    total = RecordSum(rule)
    total.add(grads, np.asarray(metrics, dtype=np.float32), mask)
    return total.finish()


def test_record_sensitivity_counts_rounding():
    rule = make_rule(gradient=61, metrics=3, clips=(3.0, 4.0), scale=10.0)
    assert rule.sensitivity == pytest.approx(5 * 10 + math.sqrt(64) / 2)


def test_sum_sensitivity_is_the_accountants():
    rule = make_rule(kind=MapKind.ROTATION, gradient=5700, rounding=Rounding.SUM)
    expected = sum_rounding_sensitivity(rule.clip, rule.scale, 6144, rule.n_max, (32, 32)).D2
    assert rule.sensitivity == expected
    assert rule.sensitivity > rule.clip * rule.scale + math.sqrt(6144)


def test_sum_sensitivity_with_a_subset_counts_all_coordinates_of_the_norm():
    rule = make_rule(kind=MapKind.RANDOM_K, gradient=10_000, kept=10, rounding=Rounding.SUM)
    by_kept = sum_rounding_sensitivity(rule.clip, rule.scale, 13, rule.n_max).D2
    assert rule.sensitivity > by_kept


def test_site_sensitivity_is_the_smaller_of_both_bounds():
    # C s = 100, d = 400: the first bound is 120, the second sqrt(10000 + 100 + 110) = 101.04...
    assert pytest.approx(math.sqrt(10_210)) == conditional_rounding_sensitivity(1.0, 100.0, 400).D2
    assert pytest.approx(math.sqrt(0.7601)) == conditional_rounding_sensitivity(1.0, 0.01, 1).D2


def test_sensitivity_bound_is_an_exact_integer():
    assert check_sensitivity(math.nextafter(3.0, 0)) == 8
    assert check_sensitivity(3.0) == 9
    assert check_sensitivity(MAX_SENSITIVITY) == 2**52
    for bad in (0.0, -1.0, math.nan, math.inf, MAX_SENSITIVITY * 2):
        with pytest.raises(PeerError) as caught:
            check_sensitivity(bad)
        assert caught.value.reason is Reason.POLICY


def test_records_are_clipped_rounded_and_summed_as_integers():
    rule = make_rule(gradient=2, metrics=2, clips=(1.0, 2.0), scale=100.0)
    result = summed(rule, [[3, 4], [0.001, 0.126]], [[0, 10], [0.5, -0.25]])
    assert result.values_d.dtype == np.int64
    assert result.values_d.tolist() == [60, 80 + 13, 50, 200 - 25]
    assert result.sensitivity == rule.sensitivity


@pytest.mark.parametrize("rounding", [Rounding.RECORD, Rounding.SUM])
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("place", ["gradient", "metrics"])
def test_a_record_that_is_not_finite_counts_as_zero(rounding, bad, place):
    rule = make_rule(gradient=2, metrics=1, rounding=rounding)
    grads, metrics = np.full((3, 2), 0.1), np.full((3, 1), 0.1)
    (grads if place == "gradient" else metrics)[1, 0] = bad
    with np.errstate(all="raise"):
        result = summed(rule, grads, metrics)
    expected = summed(rule, grads[[0, 2]], metrics[[0, 2]])
    assert result.values_d.tolist() == expected.values_d.tolist()


def test_a_record_that_fails_the_integer_check_counts_as_zero():
    # The check must hold even if the clip were wrong: a rule whose D2 is less than C*s.
    class Understated(type(make_rule())):
        sensitivity = 50.0

    rule = make_rule(gradient=4, metrics=0, clips=(1.0, 0.0), scale=100.0)
    rule = Understated(**{f.name: getattr(rule, f.name) for f in dataclasses.fields(rule)})
    result = summed(rule, [[0.9, 0, 0, 0], [0.3, 0.4, 0, 0], [0.3, 0.41, 0, 0]])
    assert result.values_d.tolist() == [30, 40, 0, 0]


def test_padding_rows_are_ignored_whatever_they_hold():
    rule = make_rule(gradient=2, metrics=0)
    grads = np.array([[0.1, 0.2], [np.nan, 9], [7, 7], [0.2, 0.1]], dtype=np.float32)
    mask = np.array([True, False, False, True])
    result = summed(rule, grads, mask=mask)
    assert result.values_d.tolist() == summed(rule, grads[mask]).values_d.tolist()


def test_an_empty_batch_gives_zeros():
    rule = make_rule(kind=MapKind.ROTATION)
    assert not RecordSum(rule).finish().values_d.any()
    assert not summed(rule, np.zeros((0, 37))).values_d.any()


def test_more_records_than_the_cap_are_refused_but_padding_is_not_counted():
    rule = make_rule(gradient=2, metrics=0, n_max=3)
    total = RecordSum(rule)
    mask = np.array([True, True, False, False])
    total.add(np.zeros((4, 2), np.float32), np.zeros((4, 0), np.float32), mask)
    total.add(np.zeros((1, 2), np.float32), np.zeros((1, 0), np.float32))
    with pytest.raises(UsageError, match="n_max"):
        total.add(np.zeros((1, 2), np.float32), np.zeros((1, 0), np.float32))


@pytest.mark.parametrize(
    ("grads", "metrics", "mask"),
    [
        (np.zeros((2, 36), np.float32), np.zeros((2, 3), np.float32), None),
        (np.zeros((2, 37)), np.zeros((2, 3), np.float32), None),
        (np.zeros((2, 37), np.float32), np.zeros((2, 3)), None),
        (np.zeros((2, 37), np.float32), np.zeros((1, 3), np.float32), None),
        (np.zeros((2, 37), np.float32), np.zeros((2, 3), np.float32), np.ones(3, bool)),
        (np.zeros((2, 37), np.float32), np.zeros((2, 3), np.float32), np.ones(2)),
    ],
)
def test_arrays_of_other_shapes_or_types_are_refused(grads, metrics, mask):
    with pytest.raises(PeerError) as caught:
        RecordSum(make_rule()).add(grads, metrics, mask)
    assert caught.value.reason is Reason.WRONG_SHAPE


def test_sums_that_float64_cannot_hold_exactly_are_refused():
    with pytest.raises(PeerError) as caught:
        RecordSum(make_rule(scale=2.0**24, n_max=2**40))
    assert caught.value.reason is Reason.POLICY


def test_rules_for_records_take_only_record_roundings():
    with pytest.raises(UsageError):
        _ = make_rule(rounding=Rounding.PLAIN).sensitivity


def test_conditional_rounding_stays_below_d2_and_is_unbiased():
    length, scale, clip = 400, 3.0, 1.0
    vector = np.full(length, clip / math.sqrt(length))
    runs = []
    for i in range(300):
        seed = i.to_bytes(32, "big")
        result = round_conditionally(CompressedDelta(vector, clip), scale, seed)
        assert int(np.sum(result.values_d**2)) <= result.sensitivity**2
        runs.append(result.values_d)
    # Mean of 120,000 Bernoulli(0.15): sd 0.00103; five of them is a false alarm in 2e6 runs.
    assert np.mean(runs) == pytest.approx(0.15, abs=0.0052)


def test_conditional_rounding_gives_zeros_when_nothing_can_pass():
    # Norm 10 stated as 0.1: every try fails, and zeros go out rather than a vector beyond D2.
    result = round_conditionally(CompressedDelta(np.full(100, 1.0), 0.1), 1.0, SEED)
    assert not result.values_d.any()


def test_conditional_rounding_keeps_integers():
    vector = np.array([3.0, -4.0, 0.0])
    result = round_conditionally(CompressedDelta(vector, 5.0), 1.0, SEED)
    assert result.values_d.tolist() == [3, -4, 0]


def test_plain_rounding_claims_no_sensitivity():
    result = round_plainly(CompressedDelta(np.array([0.26, -0.26]), 1.0), 10.0)
    assert result.values_d.tolist() == [3, -3]
    assert math.isinf(result.sensitivity)
    with pytest.raises(PeerError):
        round_plainly(CompressedDelta(np.zeros(1), 1.0), 2.0**53)


def test_results_do_not_show_their_values():
    assert "values" not in repr(round_plainly(CompressedDelta(np.ones(1), 1.0), 1.0))
