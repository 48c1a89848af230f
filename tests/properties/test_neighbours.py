"""One record or user more or less moves the integers of a sum by at most D2, whatever it holds."""

import math

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from privacy.local_noise import local_noise
from privacy.local_steps import LocalStepAccumulator
from privacy.noise import skellam_table
from privacy.pipeline import Mode, RecordAccumulator
from privacy.quantise import Rounding
from tests.support.encoding_plans import SEED, make_plan

GRADIENT, METRICS = 6, 2
WIDTH = GRADIENT + METRICS
SHAPE = {"gradient": GRADIENT, "metrics": METRICS}

ANY = st.floats(width=32)  # NaN and infinities among them
ORDINARY = st.floats(-2, 2, width=32)


@st.composite
def units(draw):
    """Draw some users' rows; the first user is the one that differs."""
    counts = draw(st.lists(st.integers(1, 4), min_size=1, max_size=5))
    return [
        draw(arrays(np.float32, (count, WIDTH), elements=draw(st.sampled_from([ANY, ORDINARY]))))
        for count in counts
    ]


def summed(plan, users, cut):
    """Sum in two micro-batches that are cut anywhere, and take the noise off again."""
    kind = LocalStepAccumulator if plan.local else RecordAccumulator
    accumulator = kind(plan)
    rows = np.concatenate([np.zeros((0, WIDTH), np.float32), *users])
    last = np.concatenate(
        [np.zeros(0, np.bool_), *(np.arange(len(u)) == len(u) - 1 for u in users)]
    )
    for part in (slice(0, cut), slice(cut, None)):
        ends = last[part] if plan.unit == "user" else None
        accumulator.add(rows[part, :GRADIENT], rows[part, GRADIENT:], None, ends)
    made = accumulator.finish(SEED)
    if plan.local is None:
        return made.vector_D - skellam_table(plan.noise_variance).sample(SEED, WIDTH)
    both = np.concatenate([made.gradient_D, made.metric_sums_M]) / plan.local.grid
    return both.astype(np.int64) - local_noise(plan.local.level_variance, SEED, WIDTH)


def check(plan, users, cuts):
    everyone, others = summed(plan, users, cuts[0]), summed(plan, users[1:], cuts[1])
    sensitivity = plan.local.sensitivity if plan.local else plan.sensitivity
    moved = everyone - others
    assert int(np.sum(moved * moved)) <= math.floor(sensitivity**2)


CUTS = st.tuples(st.integers(0, 20), st.integers(0, 20))


@settings(max_examples=80, deadline=None, derandomize=True)
@given(users=units(), cuts=CUTS, rounding=st.sampled_from([Rounding.RECORD, Rounding.SUM]))
def test_a_user_moves_a_noised_sum_by_no_more_than_d2(users, cuts, rounding):
    check(make_plan(**SHAPE, max_rows=9, rounding=rounding), users, cuts)


@settings(max_examples=80, deadline=None, derandomize=True)
@given(users=units(), cuts=CUTS)
def test_a_user_moves_a_local_step_by_no_more_than_d2(users, cuts):
    check(make_plan(Mode.RECORD_LOCAL, **SHAPE, max_rows=9), users, cuts)


@settings(max_examples=80, deadline=None, derandomize=True)
@given(users=units(), cuts=CUTS)
def test_a_record_moves_a_local_step_by_no_more_than_d2(users, cuts):
    records = [row[np.newaxis] for user in users for row in user]
    check(make_plan(Mode.RECORD_LOCAL, **SHAPE), records, cuts)
