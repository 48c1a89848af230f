"""The benchmarks' pure parts; the runs themselves are theirs."""

import numpy as np
import pytest

from benchmarks import (
    anonymity,
    credit,
    encode,
    linear,
    memory,
    robust,
    rounds,
    sparse_federation,
    trainer_overhead,
    trees,
)
from benchmarks.job_text import with_values
from benchmarks.mortal_site import STEPS, value_of
from benchmarks.round_clock import steady_pace
from benchmarks.simulated_site import CHUNK_VALUES, MaskedConstant, constant_delta
from privacy import ring
from privacy.delta import Delta
from privacy.encode import encode_delta
from privacy.secagg.masking import mask
from privacy.secagg.messages import MaskTerm
from tidegate.jobfile import JobFile


@pytest.mark.parametrize(
    "script",
    [
        anonymity,
        credit,
        encode,
        linear,
        memory,
        robust,
        rounds,
        sparse_federation,
        trainer_overhead,
        trees,
    ],
)
def test_every_option_has_a_default(script):
    assert script.parse([]).json is None


@pytest.mark.parametrize(
    ("script", "arguments"),
    [
        (rounds, ["--sites", "3"]),
        (rounds, ["--rounds", "6", "--warm-up", "5"]),
        (memory, ["--few", "16", "--many", "16"]),
        (credit, ["--seeds", "0"]),
        (linear, ["--seeds", "0"]),
        (trees, ["--seeds", "0"]),
        (trainer_overhead, ["--requests", "19"]),
        (robust, ["--length", "999"]),
        (sparse_federation, ["--sites", "209"]),
        (sparse_federation, ["--rounds", "0"]),
    ],
)
def test_sizes_that_measure_nothing_are_refused(script, arguments):
    with pytest.raises(SystemExit):
        script.parse(arguments)


def test_as_many_sites_die_in_each_round_as_were_asked_for_and_one_before_its_reveal():
    names = [f"site-{index}" for index in range(30)]
    fates = sparse_federation.fates_of(names, rounds=3, killed=8)
    deaths = [(number, step) for fate in fates.values() for number, step in fate.items()]
    for number in (1, 2, 3):
        ways = [step for at, step in deaths if at == number and step != "reveal"]
        assert sorted(ways) == sorted(2 * STEPS[1:])
    assert [at for at, step in deaths if step == "reveal"] == [3]
    assert all(len(fate) == 1 for fate in fates.values()), "nobody is back to die at once"


def test_the_number_of_a_simulated_site_follows_from_its_fingerprint():
    values = {value_of(bytes([0, 0, *divmod(i, 256)]) + bytes(28), 1 << 20) for i in range(1000)}
    assert len(values) == 1000
    assert min(values) > 1 << 19
    assert max(values) == 1 << 20


@pytest.mark.parametrize(("sites", "least"), [(4, 4), (5, 4), (10, 7), (16, 11)])
def test_survivor_floor_is_never_below_the_thresholds_of_sa1(sites, least):
    assert rounds.min_survivors(sites) == least


@pytest.mark.parametrize("app", [rounds.APP, memory.APP])
def test_job_files_are_valid_at_other_sizes(app):
    raw = with_values((app / "job.toml").read_text(), {"rounds": 7, "target_sites": 9})
    job = JobFile.parse(raw)
    assert (job.rounds, job.round.target_sites) == (7, 9)


@pytest.mark.parametrize("text", ["a = 1\n", "rounds = 1\nrounds = 2\n"])
def test_a_key_that_does_not_stand_there_once_is_refused(text):
    with pytest.raises(ValueError, match="rounds stands"):
        with_values(text, {"rounds": 3})


def test_pace_leaves_the_warm_up_out():
    pace = steady_pace({1: 0.0, 2: 10.0, 3: 10.5, 4: 10.75, 5: 11.5}, warm_up=2)
    assert (pace.rounds, pace.rounds_per_s, pace.median_ms) == (3, 2.0, 500.0)


def test_pace_needs_rounds_past_the_warm_up():
    with pytest.raises(ValueError, match="no round past"):
        steady_pace({1: 0.0, 2: 1.0}, warm_up=2)


@pytest.mark.parametrize("bits", [13, 25, 32])
def test_chunked_masked_vector_is_that_of_the_real_pipeline(bits):
    length = CHUNK_VALUES + 41
    plan = encode.site_plan(length)
    value = constant_delta(plan.clip_gradient, length)
    delta = Delta(np.full(length, value, np.float32), plan.spec_digest)
    terms = (MaskTerm(b"a" * 32, 1), MaskTerm(b"b" * 32, -1))
    real = ring.pack(mask(encode_delta(plan, delta), terms, bits).values_d, bits)
    masked = MaskedConstant(round(value * plan.scale), length, bits, terms)
    assert len(real) == masked.size
    difference = ring.unpack(b"".join(masked.chunks()), length, bits).astype(np.int64)
    difference -= ring.unpack(real, length, bits)
    # The pipeline rounds the same float32 delta; the integer may differ by its last place.
    assert np.ptp(difference) == 0


def test_spread_is_that_of_a_sample():
    run = {
        "auc_pooled": 0.86,
        "auc_federated": 0.85,
        "auc_local": [0.7, 0.8],
        "epsilon": [2.9, 3.0],
        "rounds_per_s": 10.0,
        "wall_s": 100.0,
    }
    first = credit.summary(run)
    assert first["gain_over_mean"] == pytest.approx(0.1)
    assert first["gap_to_pooled"] == pytest.approx(0.01)
    mean, sd = credit.spread([first, credit.summary({**run, "wall_s": 104.0})])
    assert (mean["wall_s"], sd["auc_pooled"]) == (102.0, 0.0)
    assert sd["wall_s"] == pytest.approx(8**0.5)


def test_synthetic_shards_are_fixed_by_their_seed_and_differ():
    shards = [rounds.synthetic_shard(seed) for seed in (0, 0, 1)]
    assert np.array_equal(shards[0]["x00"], shards[1]["x00"])
    assert not np.array_equal(shards[0]["x00"], shards[2]["x00"])
    assert all(len(column) == rounds.RECORDS for column in shards[0].values())


def test_stages_of_the_pipeline_all_run():
    stages = encode.stages(length=4096, neighbours=2)
    assert len({stage.name for stage in stages}) == 16
    for stage in stages:
        stage.work()
        stage.baseline()


def test_the_noise_of_groups_is_measured_as_theory_has_it():
    """Three groups' median: sqrt(3) times 0.67 of a normal group's deviation."""
    found = robust.measure(robust.RULES[0], 4000)
    assert found["sites"] == 15
    assert found["same"] == pytest.approx(1.16, rel=0.06)
    assert found["theory"] == pytest.approx(1.16, rel=0.01)
    assert found["own"] == pytest.approx(1.16 * (10 / 3) ** 0.5, rel=0.06)


def test_an_arc_is_cut_off_without_the_window_check_and_not_with_it():
    cell = anonymity.measure(sites=1000, colluders=200, rings=1, stride=10)
    assert cell.cut_without_check == 1
    assert cell.isolated_least is not None
    assert 30 <= cell.isolated_least <= 60  # the design's attack found 36 to 48
    assert cell.cut_with_check == 0
