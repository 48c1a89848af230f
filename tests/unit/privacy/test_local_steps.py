"""Local steps: the exact clipped sum plus the drawn noise, step by step, for records and users."""

import dataclasses
import json
import math

import numpy as np
import pytest

from privacy.decode import decode_sum
from privacy.delta import Delta
from privacy.encode import encode_delta
from privacy.errors import PeerError, Reason, UsageError
from privacy.local_noise import MIN_LEVEL_VARIANCE, local_noise
from privacy.local_steps import LocalStepAccumulator
from privacy.noise import skellam_table
from privacy.pipeline import EncodingPlan, Mode, RecordAccumulator
from tests.support.encoding_plans import DIGEST, SEED, make_plan
from tests.support.ring_values import reduce_to_ring

RNG = np.random.default_rng(23)
GRADS = RNG.normal(scale=0.2, size=(20, 37)).astype(np.float32)
METRICS = RNG.uniform(0, 0.4, size=(20, 3)).astype(np.float32)
PLAN = make_plan(Mode.RECORD_LOCAL)
USERS = make_plan(Mode.RECORD_LOCAL, max_rows=9)
LAST = np.zeros(20, np.bool_)
LAST[[0, 5, 6, 12, 19]] = True


def noise_of(plan, seed=SEED):
    length = plan.gradient_length + plan.metrics_length
    return local_noise(plan.local.level_variance, seed, length)


def integers(plan, step, seed=SEED):
    """Take the noise off a step again: its sum in grid units."""
    both = np.concatenate([step.gradient_D, step.metric_sums_M]) / plan.local.grid
    assert np.array_equal(both, np.rint(both))
    return both.astype(np.int64) - noise_of(plan, seed)


def clipped(row, bound):
    norm = math.sqrt(float(np.dot(row, row)))
    return row * min(1.0, bound / norm) if norm else row


def by_loop(plan, grads, metrics, last=None):
    """Clip, round and add in plain Python, one record or user after another."""
    last = np.ones(len(grads), np.bool_) if last is None else last
    total, grad, metric = 0, 0.0, 0.0
    for g, m, ends in zip(grads.astype(np.float64), metrics.astype(np.float64), last, strict=True):
        grad, metric = grad + g, metric + m
        if ends:
            unit = [
                clipped(grad, plan.local.clip_gradient),
                clipped(metric, plan.local.clip_metrics),
            ]
            vector = np.concatenate(unit)
            if np.isfinite(vector).all():
                total = total + np.rint(vector / plan.local.grid)
            grad, metric = 0.0, 0.0
    return total


def test_a_step_is_the_exact_sum_of_clipped_records_and_the_drawn_noise():
    accumulator = LocalStepAccumulator(PLAN)
    accumulator.add(GRADS[:7], METRICS[:7])
    accumulator.add(GRADS[7:], METRICS[7:])
    step = accumulator.finish(SEED)
    assert np.abs(integers(PLAN, step) - by_loop(PLAN, GRADS, METRICS)).max() <= 1
    # 20 records: sums are far above the clip of one, so nothing clips the sum.
    assert step.gradient_D.shape == (37,)
    assert step.metric_sums_M.shape == (3,)
    assert step.gradient_D.dtype == np.float64


def test_one_record_moves_a_step_by_no_more_than_d2():
    for scale in (1e-3, 1.0, 1e6):
        accumulator = LocalStepAccumulator(PLAN)
        accumulator.add(GRADS[:1] * np.float32(scale), METRICS[:1] * np.float32(scale))
        moved = integers(PLAN, accumulator.finish(SEED))
        assert 0 < math.sqrt(float(np.sum(moved**2))) <= PLAN.local.sensitivity


def test_an_accumulator_serves_one_step_after_another():
    accumulator = LocalStepAccumulator(PLAN)
    accumulator.add(GRADS, METRICS)
    first = accumulator.finish(SEED)
    second = accumulator.finish(bytes(32))
    assert not integers(PLAN, second, bytes(32)).any(), "an empty batch is noise alone"
    accumulator.add(GRADS, METRICS)
    third = accumulator.finish(SEED)
    assert np.array_equal(first.gradient_D, third.gradient_D)


def test_a_seed_used_twice_in_a_row_is_refused():
    accumulator = LocalStepAccumulator(PLAN)
    accumulator.finish(SEED)
    with pytest.raises(UsageError, match="seed"):
        accumulator.finish(SEED)
    with pytest.raises(UsageError):
        accumulator.finish(b"short")


def test_padding_and_records_that_are_not_finite_add_nothing():
    grads, metrics = GRADS.copy(), METRICS.copy()
    grads[3, 4], metrics[5, 0], grads[7] = np.nan, np.inf, np.float32(1e38)
    mask = np.ones(20, np.bool_)
    mask[10:] = False
    grads[10:] = np.nan
    accumulator = LocalStepAccumulator(PLAN)
    accumulator.add(grads, metrics, mask)
    expected = by_loop(PLAN, np.delete(grads[:10], [3, 5], 0), np.delete(metrics[:10], [3, 5], 0))
    assert np.abs(integers(PLAN, accumulator.finish(SEED)) - expected).max() <= 1


@pytest.mark.parametrize("cuts", [[20], [3, 20], [1, 2, 9, 13, 20]])
def test_a_users_rows_are_summed_over_micro_batches_then_clipped_once(cuts):
    accumulator = LocalStepAccumulator(USERS)
    begin = 0
    for end in cuts:
        padded = np.full((end - begin + 2, 37), np.nan, np.float32)
        metrics = np.full((end - begin + 2, 3), np.nan, np.float32)
        mask = np.arange(len(padded)) < end - begin
        last = np.ones(len(padded), np.bool_)  # what stands at padding is not looked at
        padded[: end - begin], metrics[: end - begin] = GRADS[begin:end], METRICS[begin:end]
        last[: end - begin] = LAST[begin:end]
        accumulator.add(padded, metrics, mask, last)
        begin = end
    found = integers(USERS, accumulator.finish(SEED))
    assert np.abs(found - by_loop(USERS, GRADS, METRICS, LAST)).max() <= 1
    # Rows clipped one by one would have been another, larger sum.
    assert np.abs(found - by_loop(USERS, GRADS, METRICS)).max() > 1000


def test_a_user_with_one_row_that_is_not_finite_counts_as_zero():
    grads = GRADS.copy()
    grads[8, 0] = np.inf  # of the user in rows 7 to 12
    accumulator = LocalStepAccumulator(USERS)
    accumulator.add(grads[:9], METRICS[:9], None, LAST[:9])
    accumulator.add(grads[9:], METRICS[9:], None, LAST[9:])
    keep = np.r_[0:7, 13:20]
    expected = by_loop(USERS, GRADS[keep], METRICS[keep], LAST[keep])
    assert np.abs(integers(USERS, accumulator.finish(SEED)) - expected).max() <= 1


def test_one_user_moves_a_step_by_no_more_than_d2_whatever_its_rows():
    accumulator = LocalStepAccumulator(USERS)
    rows = np.tile(GRADS[:1] * 50, (500, 1))
    last = np.zeros(500, np.bool_)
    last[-1] = True
    accumulator.add(rows, np.tile(METRICS[:1], (500, 1)), None, last)
    moved = integers(USERS, accumulator.finish(SEED))
    assert math.sqrt(float(np.sum(moved**2))) <= USERS.local.sensitivity


def test_where_users_end_must_be_said_for_users_and_only_for_them():
    with pytest.raises(UsageError, match="last_N"):
        LocalStepAccumulator(USERS).add(GRADS, METRICS)
    with pytest.raises(UsageError, match="last_N"):
        LocalStepAccumulator(PLAN).add(GRADS, METRICS, None, LAST)
    with pytest.raises(UsageError, match="last_N"):
        LocalStepAccumulator(USERS).add(GRADS, METRICS, None, LAST[:5])
    unfinished = LocalStepAccumulator(USERS)
    unfinished.add(GRADS, METRICS, None, np.zeros(20, np.bool_))
    with pytest.raises(UsageError, match="last user"):
        unfinished.finish(SEED)


def test_more_users_than_the_cap_are_refused_and_rows_are_not_counted():
    few = make_plan(Mode.RECORD_LOCAL, max_rows=9, n_max=5)
    accumulator = LocalStepAccumulator(few)
    accumulator.add(GRADS, METRICS, None, LAST)
    with pytest.raises(UsageError, match="n_max"):
        accumulator.add(GRADS[:1], METRICS[:1], None, np.ones(1, np.bool_))


def test_users_are_summed_in_record_distributed_too():
    plan = make_plan(max_rows=9, clips=(2.0, 0.25))
    accumulator = RecordAccumulator(plan)
    accumulator.add(GRADS[:8], METRICS[:8], None, LAST[:8])
    accumulator.add(GRADS[8:], METRICS[8:], None, LAST[8:])
    found = accumulator.finish(SEED).vector_D
    found = found - skellam_table(plan.noise_variance).sample(SEED, plan.length)
    expected, begin = 0.0, 0
    for end in np.flatnonzero(LAST) + 1:
        user = [
            clipped(GRADS[begin:end].sum(axis=0, dtype=np.float64), 2.0),
            clipped(METRICS[begin:end].sum(axis=0, dtype=np.float64), 0.25),
        ]
        expected = expected + np.rint(np.concatenate(user) * plan.scale)
        begin = end
    assert np.abs(found - expected).max() <= 1


@pytest.mark.parametrize("mode", [Mode.RECORD_DISTRIBUTED, Mode.SITE, Mode.NONE])
def test_other_modes_have_no_local_steps(mode):
    with pytest.raises(UsageError, match="record-local"):
        LocalStepAccumulator(make_plan(mode))


def test_records_of_local_steps_do_not_go_into_a_noised_sum():
    with pytest.raises(UsageError):
        RecordAccumulator(PLAN)


def forged(**changes):
    return dataclasses.replace(PLAN, local=dataclasses.replace(PLAN.local, **changes))


def test_a_plan_with_less_local_noise_than_it_states_is_refused():
    half_the_deviation = max(PLAN.local.level_variance // 4, MIN_LEVEL_VARIANCE)
    for level_variance in (half_the_deviation, PLAN.local.level_variance - 1):
        with pytest.raises(PeerError, match="variance") as caught:
            forged(level_variance=level_variance)
        assert caught.value.reason is Reason.POLICY
    # The mutant without the rounding term states less than the rule gives.
    with pytest.raises(PeerError, match="sensitivity"):
        forged(sensitivity=PLAN.local.clip / PLAN.local.grid)
    with pytest.raises(PeerError, match="sensitivity"):
        forged(clip_gradient=2 * PLAN.local.clip_gradient)
    with pytest.raises(PeerError):
        dataclasses.replace(PLAN, noise_multiplier=PLAN.noise_multiplier * 1.01)


@pytest.mark.parametrize(
    "changes",
    [
        {"local": None},
        {"unit": "site"},
        {"unit": "user"},
        {"max_rows": 3},
        {"sensitivity": 5.0},
        {"noise_variance": 5},
        {"n_max": 0},
    ],
    ids=str,
)
def test_a_local_plan_that_contradicts_itself_is_malformed(changes):
    with pytest.raises(PeerError) as caught:
        dataclasses.replace(PLAN, **changes)
    assert caught.value.reason is Reason.MALFORMED


def test_only_local_plans_have_local_noise():
    for mode in (Mode.RECORD_DISTRIBUTED, Mode.SITE, Mode.NONE):
        with pytest.raises(PeerError):
            dataclasses.replace(make_plan(mode), local=PLAN.local)


def test_local_noise_is_in_the_canonical_bytes():
    again = EncodingPlan.from_bytes(PLAN.to_bytes())
    assert again == PLAN
    raw = PLAN.to_bytes()
    for mangled in (
        raw.replace(b'"steps":3', b'"steps":3.0'),
        raw.replace(b'"steps":3', b'"steps":true'),
        raw.replace(b'"steps":3', b'"step":3'),
        raw.replace(b'"local":{', b'"local":[{').replace(b"},", b"}],", 1),
    ):
        assert mangled != raw
        with pytest.raises(PeerError) as caught:
            EncodingPlan.from_bytes(mangled)
        assert caught.value.reason is Reason.MALFORMED


def test_the_private_difference_goes_into_the_ring_as_it_is():
    plan = make_plan(Mode.RECORD_LOCAL, scale=2.0**20, bits=32, clips=(1.0, 1.0))
    sites = [
        encode_delta(plan, Delta(GRADS[i] * np.float32(0.1), DIGEST), METRICS[i]) for i in range(3)
    ]
    total = reduce_to_ring(sum(site.vector_D for site in sites), 32)
    mean = decode_sum(plan, total, 3.0)
    assert np.allclose(mean.gradient_D, GRADS[:3].mean(axis=0) * 0.1, atol=1e-6)
    assert np.allclose(mean.metric_sums_M, METRICS[:3].sum(axis=0), atol=1e-5)
    with pytest.raises(UsageError, match="seed"):
        encode_delta(plan, Delta(GRADS[0], DIGEST), METRICS[0], b"r" * 32, SEED)


@pytest.mark.parametrize(
    "bad",
    [
        {"local": []},
        {"local": 3},
        {"local": True},
        {"local": {}},
        {"scale": {}},
        {"mode": {"a": 1}},
        {"unit": {}},
        {"unit": 5},
        {"local": {"steps": {}}},
        {"local": {"steps": 10**400}},
        {"local": {"clip_gradient": 1e308, "clip_metrics": 1.7e308}},
        {"local": {"grid_exponent": -60}},
    ],
    ids=str,
)
def test_hostile_bytes_are_no_local_plan(bad):
    values = json.loads(PLAN.to_bytes())
    if isinstance(bad.get("local"), dict) and bad["local"]:
        bad = {"local": {**values["local"], **bad["local"]}}
    raw = json.dumps({**values, **bad}, sort_keys=True, separators=(",", ":")).encode()
    with pytest.raises(PeerError) as caught:
        EncodingPlan.from_bytes(raw)
    assert caught.value.reason is Reason.MALFORMED
