"""Deltas and clipping: what gets through, what is refused, what counts as zero."""

import numpy as np
import pytest

from privacy.clip import append_metrics, clip_factors, clip_site_delta, record_norms
from privacy.delta import Delta, take_delta
from privacy.errors import PeerError, Reason, UsageError
from privacy.spec import VectorSpec

HUGE = np.float32(3e38)
TINY = np.float32(1e-45)


def delta_of(*values):
    return Delta(np.array(values, dtype=np.float32), b"d" * 32)


def test_delta_is_local_minus_global_in_the_order_of_the_spec():
    spec = VectorSpec.of({"a": np.zeros(2, np.float32), "b": np.zeros((1, 2), np.float32)})
    local = np.array([10, 20, 30, 40], np.float32)
    published = np.array([1, 2, 3, 4], np.float32)
    delta = take_delta(spec, local, published)
    assert delta.values_D.tolist() == [9, 18, 27, 36]
    assert delta.spec_digest == spec.digest
    assert published.tolist() == [1, 2, 3, 4]
    assert local.tolist() == [10, 20, 30, 40]


def test_delta_refuses_another_global_model():
    spec = VectorSpec.of({"a": np.zeros(2, np.float32)})
    two, three = np.zeros(2, np.float32), np.zeros(3, np.float32)
    for sides in ((two, three), (three, two), (two, two.astype(np.float64))):
        with pytest.raises(PeerError):
            take_delta(spec, *sides)


def test_site_delta_above_the_norm_is_scaled_and_below_is_kept():
    assert clip_site_delta(delta_of(3, 4), 1.0).values_D.tolist() == pytest.approx([0.6, 0.8])
    assert clip_site_delta(delta_of(3, 4), 5.0).values_D.tolist() == [3, 4]
    assert clip_site_delta(delta_of(0, 0), 1.0).values_D.tolist() == [0, 0]


def test_site_delta_whose_square_overflows_float32_is_clipped():
    clipped = clip_site_delta(delta_of(HUGE, -HUGE), 1.0)
    assert np.linalg.norm(clipped.values_D) == pytest.approx(1.0)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_site_delta_that_is_not_finite_is_refused(bad):
    with pytest.raises(PeerError) as caught:
        clip_site_delta(delta_of(1, bad), 1.0)
    assert caught.value.reason is Reason.NOT_FINITE


@pytest.mark.parametrize("norm", [0.0, -1.0, np.nan, np.inf])
def test_clipping_norms_that_bound_nothing_are_refused(norm):
    with pytest.raises(UsageError):
        clip_site_delta(delta_of(1), norm)


@pytest.mark.parametrize("norm", [-1.0, np.nan, np.inf])
def test_record_clipping_norms_that_bound_nothing_are_refused(norm):
    with pytest.raises(UsageError):
        clip_factors(np.ones(2), norm, 1.0)


def test_record_factors():
    records = np.array(
        [[3, 4], [0.3, 0.4], [0, 0], [HUGE, HUGE], [TINY, 0], [np.nan, 0], [np.inf, 0]],
        dtype=np.float32,
    )
    factors = clip_factors(record_norms(records), 1.0, 1.0)[:, 0]
    assert factors[:3].tolist() == pytest.approx([0.2, 1, 1])
    norm = np.linalg.norm(records[3].astype(np.float64) * factors[3])
    assert norm == pytest.approx(1.0)
    assert factors[4:].tolist() == [1, 0, 0]


def test_record_norms_do_not_depend_on_the_block():
    records = np.random.default_rng(1).normal(size=(300, 1000)).astype(np.float32)
    assert record_norms(records).tolist() == [float(record_norms(r[None])[0]) for r in records]


def test_metrics_are_clipped_to_a_norm_of_their_own():
    clipped = clip_site_delta(delta_of(3, 4), 10.0)
    both = append_metrics(clipped, np.array([0, 8], np.float32), 2.0)
    assert both.values_D.tolist() == [3, 4, 0, 2]
    assert both.clipping_norm == pytest.approx(np.hypot(10, 2))
    with pytest.raises(PeerError):
        append_metrics(clipped, np.array([np.nan], np.float32), 2.0)
