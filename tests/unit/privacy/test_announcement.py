"""What versions announce: canonical, bounded, bound by the plan's bytes, harmless when hostile."""

import math
import struct
from dataclasses import replace

import numpy as np
import pytest

from privacy.announcement import Announcement, announced_bytes, encoding_for_version
from privacy.basis import Basis, first_basis
from privacy.compress import MapKind
from privacy.decode import decode_sum
from privacy.delta import Delta
from privacy.encode import encode_delta
from privacy.errors import PeerError, Reason, UsageError
from privacy.pipeline import EncodingPlan, Mode, RecordAccumulator
from privacy.planning import derive_encoding, step_event
from privacy.quantise import Rounding
from privacy.ring import reduce_in_place
from privacy.spec import TensorSpec, VectorSpec
from privacy.terms import CohortRules, PrivacyTerms

SPEC = VectorSpec((TensorSpec("a", (60, 80)), TensorSpec("b", (60,)), TensorSpec("c", (40, 90))))
RULES = CohortRules(colluders=1, min_survivors=4, members=5)
SEED = bytes(range(32))
TERMS = PrivacyTerms(
    mode=Mode.RECORD_DISTRIBUTED,
    rounds=10,
    epsilon=3.0,
    delta_dp=1e-5,
    sampling_rate=0.1,
    clipping_norm=1.0,
    metrics_norm=0.25,
    metrics_length=4,
    expected_batch_size=100.0,
    max_records=1000,
    rounding=Rounding.RECORD,
    noise_multiplier=1.5,
    map_kind=MapKind.LOW_RANK,
    keep=0.5,
    signal_range=1.0,
    rank=3,
)
SITE_TERMS = replace(
    TERMS, mode=Mode.SITE, sampling_rate=1.0, rounding=Rounding.CONDITIONAL, decay=0.9
)
NONE_TERMS = replace(
    TERMS,
    mode=Mode.NONE,
    epsilon=0.0,
    delta_dp=0.0,
    sampling_rate=1.0,
    noise_multiplier=None,
    decay=0.9,
)
LOCAL_TERMS = replace(
    TERMS, mode=Mode.RECORD_LOCAL, local_steps=2, update_norm=1.0, decay=0.9, max_records=100
)
EVERY = {"distributed": TERMS, "none": NONE_TERMS, "local": LOCAL_TERMS}


def plan_of(terms):
    return derive_encoding(terms, SPEC, RULES, SEED)


def announced(plan, version, **changes):
    said = Announcement.from_bytes(plan, version, b"")
    return replace(said, **changes).to_bytes()


@pytest.mark.parametrize("terms", EVERY.values(), ids=EVERY)
@pytest.mark.parametrize("version", [0, 1])
def test_an_announcement_is_canonical_and_fixes_the_versions_plan(terms, version):
    plan = plan_of(terms)
    raw = announced(plan, version)
    assert Announcement.from_bytes(plan, version, raw).to_bytes() == raw
    assert len(raw) == announced_bytes(plan, version)
    derived = encoding_for_version(plan, version, raw)
    assert derived.to_bytes() == encoding_for_version(plan, version).to_bytes()
    assert derived.to_bytes() != plan.to_bytes()
    assert EncodingPlan.from_bytes(plan.to_bytes()) == plan
    assert EncodingPlan.from_bytes(derived.to_bytes()) == derived  # without its bases
    other = first_basis(plan.low_rank, version, bytes(32))
    told = encoding_for_version(plan, version, announced(plan, version, basis=other))
    assert told.to_bytes() != derived.to_bytes()
    assert told.low_rank.basis_digest == other.digest


@pytest.mark.parametrize("terms", EVERY.values(), ids=EVERY)
def test_wrong_announcements_are_refused(terms):
    plan = plan_of(terms)
    good = announced(plan, 0)
    scale, entries = good[:8], good[8:]
    wrong = [good[:-1], good + b"\0", b"\0", scale, announced(plan, 1), scale + bytes(len(entries))]
    wrong += [
        struct.pack("<d", value) + entries
        for value in (math.nan, math.inf, 0.0, -plan.scale, plan.scale * 2.0**41, 5e-324)
    ]
    for raw in wrong:
        with pytest.raises(PeerError) as caught:
            encoding_for_version(plan, 0, raw)
        assert caught.value.reason in (Reason.MALFORMED, Reason.POLICY)


def test_a_scale_is_announced_only_where_no_noise_rests_on_it():
    for terms in (TERMS, SITE_TERMS):
        plan = plan_of(terms) if terms is TERMS else _site_plan()
        with pytest.raises(PeerError, match="fixes the scale"):
            encoding_for_version(plan, 0, announced(plan, 0, scale=plan.scale * 2))
    plan = plan_of(NONE_TERMS)
    finer = encoding_for_version(plan, 0, announced(plan, 0, scale=plan.scale * 3))
    assert finer.scale == plan.scale * 3
    assert finer.clip_metrics * finer.scale == pytest.approx(plan.clip_metrics * plan.scale)


def _site_plan():
    rules = CohortRules(colluders=2, min_survivors=200, members=290)
    return derive_encoding(replace(SITE_TERMS, noise_multiplier=1.0, rank=1), SPEC, rules, SEED)


def test_nothing_is_announced_for_a_plan_that_says_all():
    plan = plan_of(replace(TERMS, map_kind=MapKind.ROTATION, keep=1.0, rank=0))
    assert announced_bytes(plan, 1) == 0
    with pytest.raises(PeerError, match="no use"):
        encoding_for_version(plan, 0, struct.pack("<d", plan.scale))
    coarse = plan_of(replace(NONE_TERMS, map_kind=MapKind.ROTATION, keep=1.0, rank=0, bits=8))
    assert announced_bytes(coarse, 1) == 8
    with pytest.raises(PeerError, match="none"):
        encoding_for_version(coarse, 0, struct.pack("<d", coarse.scale) + b"\1")


@pytest.mark.parametrize("parity", [0, 1])
@pytest.mark.parametrize("fill", [None, 127])
def test_one_record_moves_the_integers_by_no_more_than_the_stated_sensitivity(parity, fill):
    """Both parities are charged with the larger d, whatever basis is announced."""
    plan = plan_of(TERMS)
    columns = None
    if fill is not None:
        shapes = plan.low_rank.basis_shapes(parity)
        columns = Basis(tuple(np.full(shape, fill, np.int8) for shape in shapes))
    raw = announced(plan, parity) if columns is None else announced(plan, parity, basis=columns)
    version = encoding_for_version(plan, parity, raw)
    assert version.sensitivity == plan.sensitivity
    event = step_event(plan, RULES)
    assert event.d == plan.longest >= version.length
    rng = np.random.default_rng(parity)
    for grads in (
        rng.standard_normal((6, SPEC.length)),
        np.ones((6, SPEC.length)),
        np.eye(6, SPEC.length) * 1e6,
    ):
        for record in grads.astype(np.float32):
            accumulator = RecordAccumulator(version)
            accumulator.add(record[np.newaxis], np.ones((1, 4), np.float32))
            quantised = accumulator._open().finish()  # before its noise
            moved = sum(int(value) ** 2 for value in quantised.values_d)
            assert 0 < moved <= plan.sensitivity**2


def test_records_are_not_summed_before_a_low_rank_map_nor_carried_over():
    with pytest.raises((UsageError, PeerError), match="record"):
        plan_of(replace(TERMS, rounding=Rounding.SUM))
    with pytest.raises(PeerError, match="decay"):
        plan_of(replace(TERMS, decay=0.5))


@pytest.mark.parametrize("terms", [NONE_TERMS, LOCAL_TERMS], ids=["none", "local"])
@pytest.mark.parametrize("version", [0, 1])
def test_a_few_bits_carry_the_sum_and_its_metrics(terms, version):
    """The sites' own integers may leave the ring; what counts is that their sum fits."""
    plan = encoding_for_version(plan_of(terms), version)
    assert plan.bits == 8
    rng = np.random.default_rng(version)
    common = rng.standard_normal(SPEC.length)
    total, wanted = 0, np.zeros(SPEC.length)
    metric_total = np.zeros(4)
    for _ in range(5):
        delta = 0.3 * common / np.linalg.norm(common) + 0.001 * rng.standard_normal(SPEC.length)
        metrics = np.abs(rng.standard_normal(4))
        metrics *= 0.9 * plan.clip_metrics / np.linalg.norm(metrics)
        values = Delta(delta.astype(np.float32), SPEC.digest)
        total = (
            total + encode_delta(plan, values, metrics.astype(np.float32), rng.bytes(32)).vector_D
        )
        wanted += plan.linear_map.decode(plan.linear_map.apply(np.append(delta, np.zeros(4))))[:-4]
        metric_total += metrics
    decoded = decode_sum(plan, reduce_in_place(total.astype(np.uint32), 8), 1.0)
    error = np.linalg.norm(decoded.gradient_D - wanted) ** 2 / np.linalg.norm(wanted) ** 2
    assert error < 0.5  # the first range is a guess from the clip; later ones fit
    assert np.abs(decoded.metric_sums_M - metric_total).max() < 0.05 * 5 * plan.clip_metrics


def test_a_plan_whose_sums_are_not_decoded_exactly_is_refused():
    plan = plan_of(TERMS)
    with pytest.raises(PeerError, match="exactly"):
        replace(plan, bits=32, low_rank=replace(plan.low_rank, rank=512))
    with pytest.raises(PeerError, match="low_rank"):
        replace(plan, map_kind=MapKind.ROTATION)
