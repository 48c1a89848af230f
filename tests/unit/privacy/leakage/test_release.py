"""What is attacked is what the real pipeline lets out, and the unrolled update predicts it."""

import dataclasses

import pytest
import torch
from torch import nn

from privacy.compress import MapKind
from privacy.errors import UsageError
from privacy.leakage.matching import sum_of_sites
from privacy.leakage.release import error_std, projection_of, release_of
from privacy.leakage.scene import Scene, still, with_weights
from privacy.leakage.unrolled import SiteUpdate, clip_shares, flatten, record_gradients
from privacy.leakage.verdict import Exposure
from privacy.pipeline import Mode
from tests.support.leaky_jobs import (
    TABLE_FIELDS,
    Privacy,
    TableNet,
    noised,
    picture_job,
    plan_of,
    spec_of,
    table_job,
    table_loss,
)


def released(scene, exposure=Exposure.ALONE, seed=3):
    sites = 1 if exposure is Exposure.ALONE else scene.sites
    batch = scene.draw(sites * scene.records, torch.Generator().manual_seed(seed))
    return release_of(scene, exposure, batch, seed)


def predicted(release):
    updates = [SiteUpdate(release.scene) for _ in range(release.sites)]
    told_D = sum_of_sites(release, updates, release.batch).detach()
    return release.project(told_D).double()


def likeness(release):
    return float(torch.cosine_similarity(predicted(release), release.observed_D, dim=0))


OPTIMISERS = {
    "momentum": lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9, weight_decay=0.01),
    "adam": lambda p: torch.optim.Adam(p, lr=0.01),
    "adamw": lambda p: torch.optim.AdamW(p, lr=0.01),
}
PLAIN = {
    "one step": Privacy(),
    "four steps": Privacy(steps=4),
    "clipped": Privacy(steps=4, rate=1.0, clip=0.1),
    "rotated": Privacy(map_kind=MapKind.ROTATION),
    "subset": Privacy(map_kind=MapKind.RANDOM_K, keep=0.3),
    "rotated subset": Privacy(map_kind=MapKind.ROTATION_RANDOM_K, keep=0.3),
}


@pytest.mark.parametrize("exposure", list(Exposure))
@pytest.mark.parametrize("privacy", PLAIN.values(), ids=PLAIN)
def test_without_noise_the_prediction_is_what_is_observed(privacy, exposure):
    release = released(table_job(privacy, records=3), exposure)
    torch.testing.assert_close(predicted(release), release.observed_D, atol=2e-6, rtol=1e-3)


@pytest.mark.parametrize("taken", [1, 3])
@pytest.mark.parametrize("clip", [0.1, 10.0])
def test_a_time_boxed_update_is_unrolled_with_its_factor_before_its_clip(taken, clip):
    whole = table_job(Privacy(steps=4, clip=clip), records=3)
    scene = dataclasses.replace(whole, local_steps=taken, nominal_steps=4)
    release = released(scene)
    torch.testing.assert_close(predicted(release), release.observed_D, atol=2e-6, rtol=1e-3)
    alone = SiteUpdate(dataclasses.replace(whole, local_steps=taken), clip_update=False)
    moved_D = alone(release.batch).detach() * 4 / taken
    moved_D *= min(1.0, clip / float(moved_D.norm()))
    torch.testing.assert_close(release.observed_D.float(), moved_D, atol=2e-6, rtol=1e-3)
    with pytest.raises(UsageError, match="at most 4 steps"):
        dataclasses.replace(whole, local_steps=5, nominal_steps=4)


@pytest.mark.parametrize("make", OPTIMISERS.values(), ids=OPTIMISERS)
def test_steps_of_the_tasks_own_optimiser_are_unrolled(make):
    scene = table_job(Privacy(steps=3, clip=10.0), records=3, optimiser=make)
    release = released(scene)
    model = TableNet()
    model.load_state_dict(scene.model.state_dict())
    optimiser = make(list(model.parameters()))
    for _ in range(3):
        optimiser.zero_grad()
        table_loss(model, release.batch).mean().backward()
        optimiser.step()
    moved_D = (flatten(list(model.parameters())) - flatten(scene.parameters)).detach()
    torch.testing.assert_close(predicted(release).float(), moved_D, atol=1e-5, rtol=1e-3)
    torch.testing.assert_close(release.observed_D.float(), moved_D, atol=1e-5, rtol=1e-3)


def test_an_unrolled_update_can_be_differentiated_by_its_records():
    for make in (None, OPTIMISERS["adam"]):
        scene = table_job(Privacy(steps=3), records=2, optimiser=make)
        batch = scene.draw(2, torch.Generator().manual_seed(0))
        batch["n0"].requires_grad_()
        (gradient,) = torch.autograd.grad(SiteUpdate(scene)(batch).square().sum(), batch["n0"])
        assert gradient.isfinite().all()
        assert gradient.abs().sum() > 0


def test_records_are_clipped_one_by_one_and_summed():
    scene = table_job(noised(1e-6, clip=0.05), records=4)
    release = released(scene)
    gradients_BD = record_gradients(scene, scene.parameters, release.batch)
    shares_B = clip_shares(gradients_BD.norm(dim=1), 0.05)
    assert float(shares_B.max()) < 1
    sum_D = -(gradients_BD * shares_B[:, None]).sum(dim=0).double()
    assert float((sum_D - release.observed_D).norm()) < 0.05 * float(sum_D.norm())
    torch.testing.assert_close(predicted(release), sum_D)


@pytest.mark.parametrize("exposure", list(Exposure))
def test_noise_is_as_large_as_the_attacker_is_told(exposure):
    for privacy in (noised(1.0, sites=3), noised(0.1, rows=4)):
        scene = table_job(privacy, records=2)
        release = released(scene, exposure)
        noise_D = release.observed_D - predicted(release)
        assert float(noise_D.std()) == pytest.approx(release.error_std, rel=0.05)


def test_noise_of_site_mode_is_as_large_as_the_attacker_is_told():
    scene = table_job(Privacy(Mode.SITE, z=0.05, sites=3, clip=0.5), records=2)
    release = released(scene, Exposure.SUM)
    noise_D = release.observed_D - predicted(release)
    assert float(noise_D.std()) == pytest.approx(release.error_std, rel=0.05)


def test_noise_of_local_steps_is_as_large_as_the_attacker_is_told():
    scene = table_job(Privacy(Mode.RECORD_LOCAL, z=0.5, steps=3, rate=0.01), records=2)
    release = released(scene)
    noise_D = release.observed_D - predicted(release)
    assert float(noise_D.std()) == pytest.approx(release.error_std, rel=0.05)
    quiet = dataclasses.replace(
        scene, plan=plan_of(scene.spec, Privacy(Mode.RECORD_LOCAL, z=0.05, steps=3), 2.0)
    )
    assert likeness(released(quiet)) > 0.2 > likeness(release)


def test_a_map_and_its_adjoint_are_symmetric():
    spec = spec_of(TableNet())
    source = torch.Generator().manual_seed(0)
    left, right = torch.randn(2, spec.length, generator=source).double()
    for kind in (MapKind.RANDOM_K, MapKind.ROTATION_RANDOM_K):
        project = projection_of(plan_of(spec, Privacy(map_kind=kind, keep=0.2)))
        torch.testing.assert_close(project(left) @ right, left @ project(right))
        asked = left.clone().requires_grad_()
        (gradient,) = torch.autograd.grad(project(asked) @ right, asked)
        torch.testing.assert_close(gradient, project(right))


def test_the_same_seed_gives_the_same_release_and_another_one_other_noise():
    scene = table_job(noised(1.0))
    batch = scene.draw(scene.records, torch.Generator().manual_seed(0))
    first, again, other = (
        release_of(scene, Exposure.ALONE, batch, seed).observed_D for seed in (1, 1, 2)
    )
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


def test_a_sum_is_noisier_than_an_update_alone():
    scene = table_job(noised(1.0, sites=9))
    assert error_std(scene, 9) == pytest.approx(3 * error_std(scene, 1))


def test_targets_are_found_by_what_only_the_loss_sees():
    assert picture_job().targets == {"label"}
    assert table_job().targets == {"label"}


def test_a_model_is_left_as_it_was():
    scene = table_job()
    before = [p.detach().clone() for p in scene.model.parameters()]
    scene.model.layers[0].weight.requires_grad_(False)
    scene.model.train()
    with still(scene.model), with_weights(scene, [p + 1 for p in before]) as other:
        assert torch.equal(other.parameters[0], before[0] + 1)
        assert not scene.model.training
    assert scene.model.training
    assert [p.requires_grad for p in scene.model.parameters()] == [False, *[True] * 5]
    assert all(torch.equal(a, b) for a, b in zip(before, scene.model.parameters(), strict=True))


def test_dropout_is_off_while_a_model_is_held_still():
    model = nn.Sequential(nn.Dropout(0.5))
    with still(model):
        assert torch.equal(model(torch.ones(64)), torch.ones(64))


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"fields": ()}, "columns"),
        ({"sites": 0}, "at least one site"),
        ({"learning_rate": None}, "learning rate or an optimiser"),
        ({"optimiser": OPTIMISERS["adam"]}, "learning rate or an optimiser"),
        ({"model": nn.Linear(1, 1)}, "no parameter"),
        ({"spec": spec_of(nn.Linear(1, 1))}, "another model"),
    ],
)
def test_a_scene_whose_parts_do_not_fit_is_refused(change, says):
    scene = table_job()
    parts = {f.name: getattr(scene, f.name) for f in dataclasses.fields(Scene)}
    with pytest.raises(UsageError, match=says):
        Scene(**{**parts, **change})
    assert scene.fields == TABLE_FIELDS
