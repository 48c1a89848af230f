"""Removable noise by levels: never less than V is left, whoever survives, however it rounds."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from privacy.accounting.events import DEFAULT_SAMPLER_TV
from privacy.errors import PeerError, UsageError
from privacy.noise import add_skellam_noise, skellam_table, subtract_noise
from privacy.pipeline import EncodingPlan, Mode
from privacy.planning import check_encoding, derive_encoding, step_event
from privacy.quantise import QuantisedDelta
from privacy.ring import centre
from privacy.surplus import MAX_LEVELS, NoiseLevel, NoiseShare, choose_levels, levels_reached
from tests.support.encoding_plans import SEED, make_plan
from tests.unit.privacy.test_planning import RULES, SPEC, TERMS
from tests.unit.privacy.test_planning_modes import MANY, SITE

SURPLUS = replace(TERMS, surplus_up_to=5)


@st.composite
def cohorts(draw):
    colluders = draw(st.integers(1, 60))
    min_survivors = draw(st.integers(colluders + 2, 200))
    most = draw(st.integers(min_survivors, 260))
    return draw(st.integers(1, 2**34)), min_survivors, colluders, most


@given(cohorts())
def test_what_honest_survivors_keep_is_never_below_the_charge(cohort):
    variance, min_survivors, colluders, most = cohort
    share = NoiseShare(variance, choose_levels(*cohort))
    assert share.is_valid
    charged = variance * (min_survivors - colluders)
    parts = share.increments
    assert share.base + sum(parts) == variance
    for survivors in range(min_survivors, most + 3):
        reached = levels_reached([level.survivors for level in share.levels], survivors)
        kept = share.base + sum(parts[reached:])
        assert kept * (survivors - colluders) >= charged
    # And not much more where a level is met exactly: less than one grid step squared a site.
    for number, level in enumerate(share.levels, start=1):
        kept = share.base + sum(parts[number:])
        assert kept == level.variance
        assert (kept - 1) * (level.survivors - colluders) < charged


def test_levels_reach_the_whole_cohort_and_are_few():
    levels = choose_levels(9000, 67, 20, 100)
    assert [level.survivors for level in levels] == [75, 83, 91, 100]
    assert len(levels) == MAX_LEVELS
    assert choose_levels(9000, 4, 1, 5) == (NoiseLevel(5, 6750),)
    assert choose_levels(9000, 4, 1, 4) == ()
    assert choose_levels(1, 4, 1, 5) == ()


def test_parts_add_up_to_the_share_and_come_off_exactly():
    share = NoiseShare(900, (NoiseLevel(5, 700), NoiseLevel(6, 450)))
    values_d = np.arange(-500, 503)
    made = add_skellam_noise(QuantisedDelta(values_d, 1.0), share, SEED)
    assert len(set(made.surplus_seeds) | {SEED}) == 3
    sum_d = made.vector_D.astype(np.uint32) & np.uint32(0xFFFFF)
    for variance, seed in zip(share.increments, made.surplus_seeds, strict=True):
        for begin in range(0, 1003, 16):  # slice by slice, as the aggregator does
            subtract_noise(sum_d[begin : begin + 16], variance, seed, 20, begin)
    left_d = centre(sum_d, 20) - values_d
    assert 0.7 * 450 < left_d.var() < 1.3 * 450
    again = add_skellam_noise(QuantisedDelta(values_d, 1.0), share, SEED)
    np.testing.assert_array_equal(again.vector_D, made.vector_D)
    assert again.surplus_seeds == made.surplus_seeds


def test_a_slice_of_samples_is_what_the_whole_has_there():
    table = skellam_table(90_000)
    whole = table.sample(SEED, 5000)
    for begin, size in ((0, 1), (4, 7), (1024, 3976)):
        part = table.sample(SEED, size, offset=begin)
        np.testing.assert_array_equal(part, whole[begin : begin + size])
    with pytest.raises(UsageError):
        table.sample(SEED, 4, offset=3)


def test_ties_of_a_slice_are_the_wholes(monkeypatch):
    """Each draw forced to be a tie: the words that decide are found by the absolute position."""
    table = skellam_table(37)
    row = table.half_width
    head = table.bound(row) >> 96
    first = np.full(64, head, dtype="<u4").view(np.uint8)
    monkeypatch.setattr("privacy.keystream.Keystream.read", lambda _, n: first[:n])
    whole = table.sample(SEED, 64)
    np.testing.assert_array_equal(table.sample(SEED, 32, offset=32), whole[32:])
    assert len(set(whole.tolist())) > 1


def test_all_parts_together_stay_below_the_accounted_sampler_error():
    share = NoiseShare(90_000, choose_levels(90_000, 67, 20, 100))
    spent = sum(skellam_table(part).tv for part in (share.base, *share.increments))
    assert spent < DEFAULT_SAMPLER_TV


def test_the_ledger_is_charged_the_same_with_and_without():
    plan = derive_encoding(SURPLUS, SPEC, RULES, SEED)
    plain = derive_encoding(TERMS, SPEC, RULES, SEED)
    assert plan.surplus_levels == (5,)
    assert plain.noise_levels == ()
    assert replace(plan, noise_levels=()) == plain
    assert step_event(plan, RULES) == step_event(plain, RULES)
    many = derive_encoding(replace(SITE, surplus_up_to=MANY.members), SPEC, MANY, SEED)
    assert len(many.noise_levels) == MAX_LEVELS


def test_a_plan_with_levels_survives_the_wire_and_no_other_levels_do():
    plan = derive_encoding(SURPLUS, SPEC, RULES, SEED)
    assert EncodingPlan.from_bytes(plan.to_bytes()) == plan
    check_encoding(plan, SURPLUS, SPEC, RULES)
    level = plan.noise_levels[0]
    weaker = NoiseLevel(level.survivors, level.variance - 1)
    earlier = NoiseLevel(4, level.variance)
    for levels in ((), (weaker,), (earlier,), (level, NoiseLevel(6, 1))):
        with pytest.raises(PeerError, match="noise_levels"):
            check_encoding(replace(plan, noise_levels=levels), SURPLUS, SPEC, RULES)
    with pytest.raises(PeerError, match="noise_levels"):
        check_encoding(plan, TERMS, SPEC, RULES)


@pytest.mark.parametrize(
    "levels",
    [
        (NoiseLevel(5, 0),),
        (NoiseLevel(5, 10**9),),
        (NoiseLevel(5, 7), NoiseLevel(5, 6)),
        (NoiseLevel(6, 7), NoiseLevel(5, 6)),
        (NoiseLevel(5, 7), NoiseLevel(6, 7)),
        tuple(NoiseLevel(5 + k, 9 - k) for k in range(5)),
    ],
)
def test_levels_that_make_no_parts_are_malformed(levels):
    with pytest.raises(PeerError, match="noise_levels"):
        make_plan(z=3.0, noise_levels=levels)


@pytest.mark.parametrize("mode", [Mode.NONE, Mode.RECORD_LOCAL])
def test_modes_whose_sum_is_not_noised_have_no_levels(mode):
    with pytest.raises(PeerError, match="noise_levels"):
        make_plan(mode, noise_levels=(NoiseLevel(5, 7),))


def test_an_option_that_could_never_remove_anything_is_named():
    with pytest.raises(UsageError, match="target_sites = 4 must be above"):
        derive_encoding(replace(TERMS, surplus_up_to=4), SPEC, RULES, SEED)
