"""Plans on the wire, and the encoders and the decoder around them."""

import dataclasses
import json
import math

import numpy as np
import pytest

from privacy.compress import MapKind
from privacy.decode import decode_sum
from privacy.delta import Delta
from privacy.encode import encode_delta
from privacy.errors import PeerError, Reason, UsageError
from privacy.noise import skellam_table
from privacy.pipeline import EncodingPlan, Mode, RecordAccumulator
from privacy.quantise import Rounding
from tests.support.encoding_plans import DIGEST, SEED, encode_records, make_plan
from tests.support.ring_values import reduce_to_ring

RNG = np.random.default_rng(11)
GRADS = RNG.normal(scale=0.05, size=(20, 37)).astype(np.float32)
METRICS = RNG.uniform(0, 0.1, size=(20, 3)).astype(np.float32)


def denoised(plan, update):
    """Take the noise off again, which only a test that knows the seed can."""
    return update.vector_D - skellam_table(plan.noise_variance).sample(SEED, plan.length)


@pytest.mark.parametrize("mode", list(Mode))
@pytest.mark.parametrize("kind", list(MapKind))
def test_plan_bytes_are_an_inverse(mode, kind):
    plan = make_plan(mode, kind=kind, kept=5 if kind.selects else 0)
    again = EncodingPlan.from_bytes(plan.to_bytes())
    assert again == plan
    assert again.to_bytes() == plan.to_bytes()
    assert type(again.mode) is Mode
    assert type(again.map_kind) is MapKind


def test_whole_numbers_given_as_floats_have_one_encoding():
    plan = dataclasses.replace(make_plan(), clip_gradient=1, sensitivity=1000)
    assert EncodingPlan.from_bytes(plan.to_bytes()) == plan


def test_every_field_is_in_the_bytes():
    plan = make_plan(kind=MapKind.RANDOM_K, kept=5)
    changes = {
        "spec_digest": b"e" * 32,
        "gradient_length": 38,
        "metrics_length": 4,
        "map_kind": MapKind.ROTATION_RANDOM_K,
        "map_seed": bytes(32),
        "kept": 4,
        "scale": 128.0,
        "bits": 25,
        "clip_gradient": 0.4,
        "clip_metrics": 0.2,
        "rounding": Rounding.SUM,
        "n_max": 999,
        "sampling_rate": 0.02,
        "noise_multiplier": 2.0,
        "sensitivity": plan.sensitivity + 99,
        "noise_variance": plan.noise_variance + 1,
    }
    roomy = dataclasses.replace(plan, sensitivity=plan.sensitivity + 50)
    others = {
        dataclasses.replace(roomy, **{key: value}).to_bytes() for key, value in changes.items()
    }
    assert len(others | {roomy.to_bytes()}) == len(changes) + 1


@pytest.mark.parametrize(
    "changes",
    [
        {"spec_digest": b"short"},
        {"gradient_length": 0},
        {"gradient_length": 10**400},
        {"metrics_length": -1},
        {"map_seed": b"short"},
        {"kept": 3},
        {"scale": 0.0},
        {"scale": math.nan},
        {"bits": 33},
        {"clip_gradient": -1.0},
        {"clip_gradient": math.inf},
        {"clip_metrics": 0.0},
        {"rounding": Rounding.CONDITIONAL},
        {"n_max": 0},
        {"n_max": 10**400},
        {"sampling_rate": 0.0},
        {"sampling_rate": 1.5},
        {"noise_multiplier": 0.0},
        {"sensitivity": math.inf},
        {"noise_variance": 0},
        {"noise_variance": 2**34 + 1},
        {"mode": Mode.NONE},
        {"map_kind": MapKind.RANDOM_K},
        {"rounding": Rounding.SUM, "scale": 3.0},
    ],
    ids=str,
)
def test_plans_out_of_range_are_malformed(changes):
    with pytest.raises(PeerError) as caught:
        dataclasses.replace(make_plan(), **changes)
    assert caught.value.reason is Reason.MALFORMED


@pytest.mark.parametrize("mode", [Mode.RECORD_DISTRIBUTED, Mode.SITE])
def test_an_understated_sensitivity_is_refused(mode):
    plan = make_plan(mode)
    with pytest.raises(PeerError) as caught:
        dataclasses.replace(plan, sensitivity=math.nextafter(plan.sensitivity, 0))
    assert caught.value.reason is Reason.POLICY
    # C*s alone leaves out the rounding: the mutant that omits sqrt(d).
    with pytest.raises(PeerError):
        dataclasses.replace(plan, sensitivity=plan.clip * plan.scale)


def test_a_sensitivity_too_large_to_check_is_refused():
    with pytest.raises(PeerError) as caught:
        dataclasses.replace(make_plan(), sensitivity=2.0**26 + 1)
    assert caught.value.reason is Reason.POLICY


def mutated(**changes):
    values = json.loads(make_plan().to_bytes()) | changes
    return json.dumps(
        {key: value for key, value in values.items() if value is not None},
        sort_keys=True,
        separators=(",", ":"),
    ).encode()


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"[]",
        b"null",
        b"\xff",
        b"{" * 5000,
        make_plan().to_bytes() + b" ",
        mutated(extra=1),
        mutated(scale=None),
        mutated(scale=256),
        mutated(scale="256.0"),
        mutated(bits=24.0),
        mutated(bits=True),
        mutated(mode="record"),
        mutated(map_seed=SEED.hex().upper()),
        mutated(map_seed="zz"),
        mutated(map_seed=5),
        mutated(sensitivity=float("nan")),
    ],
    ids=lambda raw: repr(raw[:20]),
)
def test_other_bytes_are_no_plan(raw):
    with pytest.raises(PeerError) as caught:
        EncodingPlan.from_bytes(raw)
    assert caught.value.reason is Reason.MALFORMED


def test_another_map_seed_changes_only_the_map():
    plan = make_plan(kind=MapKind.ROTATION)
    other = plan.with_map_seed(bytes(32))
    assert other.linear_map.seed == bytes(32)
    assert other.with_map_seed(SEED) == plan


@pytest.mark.parametrize("kind", [MapKind.IDENTITY, MapKind.ROTATION])
@pytest.mark.parametrize("rounding", [Rounding.RECORD, Rounding.SUM])
def test_sites_sum_decodes_to_the_clipped_mean(kind, rounding):
    plan = make_plan(kind=kind, rounding=rounding)
    total = np.zeros(plan.length, dtype=np.int64)
    for rows in (slice(0, 5), slice(5, 20)):
        total += denoised(plan, encode_records(plan, GRADS[rows], METRICS[rows], SEED))
    mean = decode_sum(plan, reduce_to_ring(total, plan.bits), 40.0)
    # Each record errs by at most half a step a coordinate in the mapped basis.
    bound = 20 * 0.5 * math.sqrt(plan.length) / plan.scale
    assert np.linalg.norm(mean.gradient_D - GRADS.sum(axis=0) / 40) <= bound / 40
    assert np.linalg.norm(mean.metric_sums_M - METRICS.sum(axis=0)) <= bound
    assert mean.gradient_D.shape == (37,)
    assert mean.metric_sums_M.shape == (3,)


@pytest.mark.parametrize("kind", [MapKind.RANDOM_K, MapKind.ROTATION_RANDOM_K])
def test_metrics_survive_a_subset(kind):
    plan = make_plan(kind=kind, kept=5)
    total = denoised(plan, encode_records(plan, GRADS, METRICS, SEED))
    mean = decode_sum(plan, reduce_to_ring(total, plan.bits), 20.0)
    assert np.allclose(mean.metric_sums_M, METRICS.sum(axis=0), atol=20 * 0.5 / plan.scale)
    assert np.linalg.norm(mean.gradient_D) < np.linalg.norm(GRADS.mean(axis=0))


def test_micro_batches_and_padding_give_the_same_update():
    plan = make_plan(kind=MapKind.ROTATION)
    accumulator = RecordAccumulator(plan)
    for begin in range(0, 20, 8):
        grads = np.full((8, 37), np.nan, dtype=np.float32)
        metrics = np.full((8, 3), np.inf, dtype=np.float32)
        count = min(8, 20 - begin)
        grads[:count], metrics[:count] = GRADS[begin : begin + 8], METRICS[begin : begin + 8]
        accumulator.add(grads, metrics, np.arange(8) < count)
    whole = encode_records(plan, GRADS, METRICS, SEED)
    assert np.array_equal(accumulator.finish(SEED).vector_D, whole.vector_D)


@pytest.mark.parametrize("rounding", [Rounding.RECORD, Rounding.SUM])
def test_an_empty_batch_is_sent_as_noise_alone(rounding):
    plan = make_plan(rounding=rounding)
    update = RecordAccumulator(plan).finish(SEED)
    assert update.vector_D.shape == (plan.length,)
    assert not denoised(plan, update).any()
    assert update.vector_D.any(), "nobody can tell that nothing was drawn"


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, 3e38])
@pytest.mark.parametrize("place", ["gradient", "metrics"])
@pytest.mark.parametrize("rounding", [Rounding.RECORD, Rounding.SUM])
def test_a_record_that_is_not_finite_counts_as_zero_and_stops_nothing(bad, place, rounding):
    plan = make_plan(rounding=rounding)
    grads, metrics = GRADS.copy(), METRICS.copy()
    (grads if place == "gradient" else metrics)[7, 2] = bad
    spoilt = encode_records(plan, grads, metrics, SEED)
    if np.isfinite(bad):  # finite, and its square is not in float32: it is clipped like any other
        whole = encode_records(plan, GRADS, METRICS, SEED)
        moved_D = (spoilt.vector_D - whole.vector_D).astype(np.float64)
        assert np.linalg.norm(moved_D) <= 2 * plan.sensitivity
        return
    others = np.arange(len(GRADS)) != 7
    without = encode_records(plan, GRADS[others], METRICS[others], SEED)
    np.testing.assert_array_equal(spoilt.vector_D, without.vector_D)


def test_an_accumulator_makes_one_update():
    accumulator = RecordAccumulator(make_plan())
    accumulator.finish(SEED)
    with pytest.raises(UsageError):
        accumulator.finish(SEED)
    with pytest.raises(UsageError):
        accumulator.add(GRADS, METRICS)


def test_records_are_not_encoded_in_other_modes():
    for mode in (Mode.SITE, Mode.NONE):
        with pytest.raises(UsageError):
            RecordAccumulator(make_plan(mode))


def test_inputs_are_left_alone():
    grads, metrics = GRADS * 100, METRICS * 100
    before = grads.copy(), metrics.copy()
    encode_records(make_plan(), grads, metrics, SEED)
    assert np.array_equal(grads, before[0])
    assert np.array_equal(metrics, before[1])


def delta_of(values):
    return Delta(np.asarray(values, dtype=np.float32), DIGEST)


def test_mode_none_decodes_to_the_clipped_delta():
    plan = make_plan(Mode.NONE, kind=MapKind.ROTATION, scale=2.0**15, clips=(1.0, 1.0), bits=20)
    update = encode_delta(plan, delta_of(GRADS[0]), METRICS[0])
    mean = decode_sum(plan, reduce_to_ring(update.vector_D, 20), 1.0)
    assert np.allclose(mean.gradient_D, GRADS[0], atol=1e-3)
    assert np.allclose(mean.metric_sums_M, METRICS[0], atol=1e-3)


def test_mode_site_noises_a_vector_of_bounded_norm():
    plan = make_plan(Mode.SITE, kind=MapKind.ROTATION)
    update = encode_delta(plan, delta_of(GRADS[0] * 1000), METRICS[0], b"r" * 32, SEED)
    values = denoised(plan, update)
    assert 0 < int(np.sum(values**2)) <= plan.sensitivity**2


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("place", ["delta", "metric"])
def test_in_mode_site_what_is_not_finite_leaves_as_noise_alone(bad, place):
    """An abort would tell, uncharged, what the site's data did; other modes promise nothing."""
    delta, metrics = GRADS[0].copy(), METRICS[0].copy()
    (delta if place == "delta" else metrics)[1] = bad
    plan = make_plan(Mode.SITE)
    update = encode_delta(plan, delta_of(delta), metrics, b"r" * 32, SEED)
    assert not denoised(plan, update).any()
    with pytest.raises(PeerError) as caught:
        encode_delta(make_plan(Mode.NONE, bits=32), delta_of(delta), metrics)
    assert caught.value.reason is Reason.NOT_FINITE


@pytest.mark.parametrize(
    ("mode", "seeds"),
    [
        (Mode.SITE, (None, None)),
        (Mode.SITE, (b"r" * 32, None)),
        (Mode.SITE, (None, SEED)),
        (Mode.NONE, (None, SEED)),
        (Mode.NONE, (b"r" * 32, SEED)),
        (Mode.RECORD_DISTRIBUTED, (b"r" * 32, SEED)),
        (Mode.RECORD_DISTRIBUTED, (None, None)),
    ],
)
def test_seeds_must_fit_the_mode(mode, seeds):
    with pytest.raises(UsageError, match="seed"):
        encode_delta(make_plan(mode), delta_of(GRADS[0]), METRICS[0], *seeds)


@pytest.mark.parametrize(
    ("delta", "metrics"),
    [
        (Delta(GRADS[0], b"x" * 32), METRICS[0]),
        (delta_of(GRADS[0, :36]), METRICS[0]),
        (delta_of(GRADS[0]), METRICS[0, :2]),
        (delta_of(GRADS[0]), None),
    ],
)
def test_deltas_of_another_model_are_refused(delta, metrics):
    with pytest.raises(PeerError) as caught:
        encode_delta(make_plan(Mode.NONE), delta, metrics)
    assert caught.value.reason is Reason.WRONG_SHAPE


def test_decode_refuses_what_is_no_sum_of_the_plan():
    plan = make_plan()
    with pytest.raises(PeerError):
        decode_sum(plan, np.zeros(plan.length - 1, np.uint32), 1.0)
    with pytest.raises(PeerError):
        decode_sum(plan, np.zeros(plan.length, np.int64), 1.0)
    for divisor in (0.0, -1.0, math.nan, math.inf):
        with pytest.raises(UsageError):
            decode_sum(plan, np.zeros(plan.length, np.uint32), divisor)


def test_decode_gives_arrays_of_its_own():
    plan = make_plan()
    mean = decode_sum(plan, np.ones(plan.length, np.uint32), 1.0)
    assert not np.shares_memory(mean.gradient_D, mean.metric_sums_M)
