"""The controls of the leakage audit: it fails what leaks, and passes what does not.

An audit that passes everything looks like a good one. So: without noise each kind of record is
reconstructed, whatever is done to the update in noise's place (privacy.md: compression, adapters,
bf16, local steps or secure aggregation alone are no defences); with z = 1 nothing is; and an attack
that is shown nothing does as well as the guess without data.
"""

import dataclasses

import pytest
import torch
from torch import nn

from privacy.leakage.audit import audit
from privacy.leakage.effort import Effort
from privacy.leakage.features import attack_features
from privacy.leakage.first_layer import (
    IMPRINT,
    PASSIVE,
    attack_first_layer,
    find_first_layer,
    imprinted,
)
from privacy.leakage.labels import attack_labels
from privacy.leakage.pictures import attack_pictures
from privacy.leakage.release import release_of
from privacy.leakage.scene import still, with_weights
from privacy.leakage.tables import attack_tables
from privacy.leakage.tokens import attack_tokens
from privacy.leakage.verdict import Exposure, Verdict
from privacy.pipeline import Mode
from tests.support.leaky_jobs import (
    TABLE_FIELDS,
    Privacy,
    TableNet,
    noised,
    picture_job,
    picture_mlp_job,
    scene_of,
    table_job,
    table_loss,
    token_job,
)

QUICK = Effort(trials=1, iterations=250, restarts=1)
BRIEF = Effort(trials=4, iterations=60, restarts=1)


@pytest.fixture(autouse=True)
def _one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def source():
    return torch.Generator().manual_seed(5)


def releases(scene, exposure=Exposure.ALONE, trials=1, seed=2):
    sites = 1 if exposure is Exposure.ALONE else scene.sites
    drawn = torch.Generator().manual_seed(seed)
    return [
        release_of(scene, exposure, scene.draw(sites * scene.records, drawn), seed + trial)
        for trial in range(trials)
    ]


def changed(release, change):
    """Give a release after something that is done to an update in place of noise."""
    observed_D = change(release.observed_D)
    kept_D = (observed_D != 0).float()
    return dataclasses.replace(
        release, observed_D=observed_D, project=lambda vector_D: vector_D * kept_D.to(vector_D)
    )


def in_eight_bits(vector_D):
    step = vector_D.abs().max() / 127
    coins = torch.rand(vector_D.shape, generator=source(), dtype=vector_D.dtype)
    return torch.floor(vector_D / step + coins) * step


def in_bf16(vector_D):
    return vector_D.to(torch.bfloat16).double()


def largest(share):
    def keep(vector_D):
        return vector_D * (vector_D.abs() >= vector_D.abs().quantile(1 - share))

    return keep


def nothing(vector_D):
    return torch.randn(vector_D.shape, generator=source(), dtype=vector_D.dtype)


WEAK = {"int8": in_eight_bits, "bf16": in_bf16, "top 10 %": largest(0.1)}


def pictures(scene, change=None, exposure=Exposure.ALONE, effort=QUICK):
    with still(scene.model):
        seen = releases(scene, exposure)
        seen = [changed(r, change) for r in seen] if change else seen
        return attack_pictures(seen, effort, source())[0]


def test_pictures_without_a_defence_fail():
    found = pictures(picture_job(records=2))
    assert found.verdict is Verdict.FAIL
    assert found.score > 18
    assert found.details["mean SSIM"] > 0.7
    assert found.evidence.reconstructions.shape == found.evidence.originals.shape == (2, 3, 16, 16)


@pytest.mark.parametrize("change", WEAK.values(), ids=WEAK)
def test_pictures_in_fewer_bits_or_coordinates_fail(change):
    assert pictures(picture_job(), change).verdict is Verdict.FAIL


def test_pictures_of_one_coordinate_in_a_hundred_do_not_pass():
    assert pictures(picture_job(), largest(0.01)).verdict.rank >= Verdict.WARN.rank


def test_pictures_behind_local_steps_fail_because_the_steps_are_unrolled():
    scene = picture_job(Privacy(steps=4, rate=0.1, clip=5.0), records=2)
    adaptive = pictures(scene)
    assert adaptive.verdict is Verdict.FAIL
    assert adaptive.score > 16
    # An attacker who takes the delta of four steps for that of one sees far less.
    with still(scene.model):
        (seen,) = releases(scene)
        naive_scene = dataclasses.replace(scene, local_steps=1)
        naive = attack_pictures([dataclasses.replace(seen, scene=naive_scene)], QUICK, source())[0]
    assert adaptive.score > naive.score + 5


def test_pictures_in_a_secure_sum_do_not_pass():
    found = pictures(picture_job(Privacy(sites=3)), exposure=Exposure.SUM)
    assert found.verdict.rank >= Verdict.WARN.rank


def test_noise_hides_pictures_step_by_step():
    scores = [pictures(picture_job(noised(z))) for z in (1e-3, 1e-2, 1.0)]
    assert scores[0].verdict is Verdict.FAIL
    assert scores[1].verdict.rank >= Verdict.WARN.rank
    assert scores[2].verdict is Verdict.PASS
    assert scores[0].score > scores[1].score > scores[2].score


def test_an_attack_on_pictures_that_is_shown_nothing_is_no_better_than_grey():
    found = pictures(picture_job(records=4), nothing)
    assert found.verdict is Verdict.PASS
    assert found.score <= found.baseline


def rows(scene, change=None, exposure=Exposure.ALONE, effort=QUICK):
    with still(scene.model):
        seen = releases(scene, exposure, effort.trials)
        seen = [changed(r, change) for r in seen] if change else seen
        return attack_tables(seen, effort, source())[0]


@pytest.mark.parametrize("change", [None, in_eight_bits, in_bf16, largest(0.1)])
def test_rows_without_noise_fail(change):
    found = rows(table_job(records=3), change)
    assert found.verdict is Verdict.FAIL
    assert found.score > 0.8
    assert found.baseline < 0.4


def test_rows_behind_local_steps_fail():
    assert rows(table_job(Privacy(steps=4), records=2)).verdict is Verdict.FAIL


def test_rows_in_a_secure_sum_do_not_pass():
    found = rows(table_job(Privacy(sites=2), records=2), exposure=Exposure.SUM)
    assert found.verdict.rank >= Verdict.WARN.rank


def test_rows_behind_noise_pass_and_a_blind_attack_scores_the_baseline():
    hidden = rows(table_job(noised(1.0), records=8), effort=BRIEF)
    assert hidden.verdict is Verdict.PASS
    blind = rows(table_job(records=8), nothing, effort=BRIEF)
    assert blind.verdict is Verdict.PASS
    assert blind.score == pytest.approx(blind.baseline, abs=0.05)


def prepared_rows(privacy, effort, records=3):
    torch.manual_seed(0)
    smooth = TableNet(nn.Tanh)  # no neuron is silent, so quotients of gradients mix all records
    scene = scene_of(smooth, table_loss, TABLE_FIELDS, privacy, records)
    with still(scene.model):
        return attack_features(releases(scene, trials=effort.trials), effort, source())[0]


def test_what_the_first_layer_sees_is_found_without_noise_and_not_behind_it():
    found = prepared_rows(Privacy(), Effort(trials=1, iterations=400, restarts=1))
    assert found.verdict is Verdict.FAIL
    assert 1 - found.score < (1 - found.baseline) / 2  # less than half of the guess's errors
    assert prepared_rows(noised(1.0), BRIEF).verdict is Verdict.PASS


def tokens(scene, change=None, exposure=Exposure.ALONE, trials=2):
    with still(scene.model):
        seen = releases(scene, exposure, trials)
        seen = [changed(r, change) for r in seen] if change else seen
        return attack_tokens(seen)


@pytest.mark.parametrize("change", [None, *WEAK.values()])
def test_tokens_without_noise_fail(change):
    span, by_rows = tokens(token_job(), change)
    assert span.verdict is Verdict.FAIL
    assert by_rows.verdict is Verdict.NOT_APPLICABLE
    if change is None:
        assert span.score == pytest.approx(7 / 8)  # the last token predicts nothing


def test_tokens_fail_in_batches_local_steps_and_secure_sums():
    for scene, exposure in (
        (token_job(records=4), Exposure.ALONE),
        (token_job(Privacy(steps=4), records=2), Exposure.ALONE),
        (token_job(Privacy(sites=6)), Exposure.SUM),
    ):
        span, _ = tokens(scene, exposure=exposure)
        assert span.verdict is Verdict.FAIL
        assert span.score > 0.7


def test_rows_of_a_trained_embedding_name_the_tokens():
    _, by_rows = tokens(token_job(train_embeddings=True), trials=1)
    assert by_rows.verdict is Verdict.FAIL
    assert by_rows.score > 0.85


def test_tokens_behind_noise_pass():
    for scene in (token_job(noised(1.0)), token_job(noised(1.0), train_embeddings=True)):
        applied = [f for f in tokens(scene) if f.verdict is not Verdict.NOT_APPLICABLE]
        assert applied
        assert all(found.verdict is Verdict.PASS for found in applied)


def test_a_blind_attack_on_tokens_scores_chance():
    span, by_rows = tokens(token_job(train_embeddings=True, records=4), nothing, trials=8)
    for found in (span, by_rows):
        assert found.score == pytest.approx(found.baseline, abs=0.03)
    assert span.verdict is Verdict.PASS


def test_an_adapter_leaks_once_its_second_factor_is_no_longer_zero():
    report = audit(token_job(rank=8), 1, QUICK)
    assert report.verdict is Verdict.FAIL
    assert "A4 on the update alone" in report.reason


def first_layer(scene, title, exposure=Exposure.SUM):
    layer = find_first_layer(scene)
    with still(scene.model):
        weights = scene.parameters if title is PASSIVE else imprinted(scene, layer, source())
        with with_weights(scene, weights) as sent:
            return attack_first_layer(releases(sent, exposure), layer, title, source())


def test_single_records_are_read_off_a_first_layer():
    found = first_layer(picture_mlp_job(records=1), PASSIVE, Exposure.ALONE)
    assert found.score == 1.0
    assert found.verdict is Verdict.FAIL
    assert found.evidence.kind == "images"


def test_an_imprint_reads_most_records_off_a_secure_sum():
    found = first_layer(picture_mlp_job(Privacy(sites=10), records=4, hidden=1024), IMPRINT)
    assert found.score > 0.8
    assert found.verdict is Verdict.FAIL


def test_noise_stops_the_imprint():
    for z in (1e-2, 1.0):
        found = first_layer(picture_mlp_job(noised(z), records=4), IMPRINT)
        assert found.score == 0
    assert found.verdict is Verdict.PASS


def labels(scene, change=None, trials=16):
    with still(scene.model):
        seen = releases(scene, trials=trials)
        seen = [changed(r, change) for r in seen] if change else seen
        return attack_labels(seen, QUICK, source())[0]


def test_labels_are_counted_without_noise_and_not_behind_it():
    found = labels(picture_job(records=8))
    assert found.verdict is Verdict.WARN
    assert found.score > 0.9
    assert found.baseline < 0.7
    hidden = labels(picture_job(noised(3.0), records=8))
    assert hidden.verdict is Verdict.PASS
    assert hidden.score == pytest.approx(hidden.baseline, abs=0.05)


@pytest.mark.parametrize("make", [picture_job, table_job, token_job])
def test_a_whole_audit_fails_without_a_defence_and_passes_behind_noise(make):
    open_job, hidden_job = make(Privacy(sites=2)), make(noised(1.0))
    assert audit(open_job, 7, QUICK).verdict is Verdict.FAIL
    report = audit(hidden_job, 7, BRIEF)
    assert report.verdict is Verdict.PASS, report


@pytest.mark.parametrize("mode", [Mode.SITE, Mode.RECORD_LOCAL])
def test_the_other_modes_pass_behind_their_noise(mode):
    privacy = Privacy(mode, z=1.0, sites=2, steps=2)
    report = audit(table_job(privacy), 7, BRIEF)
    assert report.verdict is Verdict.PASS, report


def test_an_audit_is_the_same_each_time_and_leaves_the_model_alone():
    scene = table_job(records=2)
    before = [p.detach().clone() for p in scene.model.parameters()]
    short = Effort(trials=1, iterations=20, restarts=1)
    first, again = audit(scene, 7, short), audit(scene, 7, short)
    assert [f.score for f in first.findings][:2] == [f.score for f in again.findings][:2]
    assert first.verdict is again.verdict
    pairs = zip(before, scene.model.parameters(), strict=True)
    assert all(torch.equal(a, b) for a, b in pairs)


def test_given_records_are_attacked_in_place_of_made_up_ones():
    scene = table_job(Privacy(sites=2), records=2)
    own = scene.draw(4, torch.Generator().manual_seed(77))
    report = audit(scene, 7, Effort(trials=1, iterations=20, restarts=1), own)
    shown = next(f for f in report.findings if f.attack == "A5").evidence
    column = shown.columns.index("c3")
    assert {float(v) for v in shown.originals[:, column]} <= {float(v) for v in own["c3"]}
