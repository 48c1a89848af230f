"""A time-boxed round's delta: fast and slow sites weigh the same, in bounds, before the clip."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from privacy.clip import clip_site_delta
from privacy.delta import Delta
from privacy.encode import encode_delta
from privacy.errors import PeerError, Reason, UsageError
from privacy.normalise import MAX_NOMINAL, normalise_delta, step_factor
from privacy.pipeline import Mode
from tests.support.encoding_plans import make_plan

counts = st.integers(1, 10_000).flatmap(lambda most: st.tuples(st.just(most), st.integers(1, most)))
steps = st.lists(st.floats(-1e3, 1e3, width=32), min_size=1, max_size=8)


def delta_of(values):
    return Delta(np.array(values, np.float32), bytes(32))


@given(counts)
def test_the_factor_lies_between_one_and_the_cap(pair):
    nominal, taken = pair
    assert 1 <= step_factor(nominal, taken) <= nominal


@given(counts, steps)
def test_sites_that_make_the_same_step_send_the_same_whatever_their_speed(pair, step):
    nominal, taken = pair
    step_D = np.array(step, np.float64)
    sent = normalise_delta(delta_of(step_D * taken), nominal, taken)
    np.testing.assert_allclose(sent.values_D, step_D * nominal, rtol=3e-7)
    assert sent.values_D.dtype == np.float32


@given(counts, steps, st.sampled_from([0.25, 0.5, 2.0, 8.0]))
def test_normalising_commutes_with_scale(pair, values, scale):
    whole = normalise_delta(delta_of(np.array(values) * scale), *pair).values_D
    apart = normalise_delta(delta_of(values), *pair).values_D * np.float32(scale)
    np.testing.assert_allclose(whole, apart, rtol=3e-7, atol=1e-38)


def test_a_site_that_takes_all_steps_sends_its_delta_untouched():
    delta = delta_of([0.1, -2.0])
    assert normalise_delta(delta, 7, 7) is delta


@pytest.mark.parametrize(
    ("nominal", "taken"), [(5, 0), (5, 6), (5, -1), (0, 1), (MAX_NOMINAL + 1, 1), (5, 2.5)]
)
def test_counts_out_of_range_are_refused(nominal, taken):
    with pytest.raises(UsageError):
        normalise_delta(delta_of([1.0]), nominal, taken)


@given(counts, st.lists(st.floats(width=32), min_size=1, max_size=8), st.floats(0.01, 10))
def test_the_clip_that_follows_bounds_what_leaves_whatever_the_factor(pair, values, bound):
    normalised = normalise_delta(delta_of(values), *pair)
    if not np.isfinite(normalised.values_D).all():
        with pytest.raises(PeerError) as caught:
            clip_site_delta(normalised, bound)
        assert caught.value.reason is Reason.NOT_FINITE
        return
    clipped = clip_site_delta(normalised, bound)
    assert np.linalg.norm(clipped.values_D) <= bound * (1 + 1e-12)


def test_a_delta_that_overflows_is_refused_and_counts_as_zero_in_mode_site():
    plain, site = make_plan(Mode.NONE, metrics=0), make_plan(Mode.SITE, metrics=0)
    huge = np.full(plain.gradient_length, 1e38, np.float32)
    sent = normalise_delta(Delta(huge, plain.spec_digest), 100, 1)
    assert np.isinf(sent.values_D).all()
    with pytest.raises(PeerError) as caught:
        encode_delta(plain, sent)
    assert caught.value.reason is Reason.NOT_FINITE
    seeds = (b"r" * 32, b"n" * 32)
    zero = Delta(np.zeros_like(huge), site.spec_digest)
    kept = encode_delta(site, Delta(sent.values_D, site.spec_digest), None, *seeds)
    np.testing.assert_array_equal(kept.vector_D, encode_delta(site, zero, None, *seeds).vector_D)
