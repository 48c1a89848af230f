"""What a site adds to histograms: each record once, in its node and bins, within the norm."""

import asyncio
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from benchmarks.tree_consortium import InProcessConsortium
from edge_node.data import from_table
from edge_node.rounds.contract import RoundRequest
from edge_node.rounds.tree_histograms import TreeHistograms
from privacy.errors import PeerError, Reason, UsageError
from tests.support.tree_jobs import DP, LEVELS, TABLES, sites, table, trees_job
from tidegate.tree_bins import bin_values
from tidegate.tree_layout import CURVATURE_WEIGHT
from tidegate.tree_model import TreeModel

ROWS = table(400)


def site_of(job, rows=ROWS):
    return InProcessConsortium(job, sites(rows, 1)).sites[0]


def update(site, version, model):
    request = RoundRequest(version + 1, version, model.to_vector())
    return asyncio.run(site.make_update(request)).vector_D / site.job.plan.scale


def grown_model(job):
    """Make a model with one whole tree and the root of the next, whatever it says."""
    model = TreeModel.empty(job.work)
    depth = job.work.depth
    inner = (1 << depth) - 1
    model.feature_TI[0] = np.arange(inner) % 3
    model.bin_TI[:2] = 2
    model.missing_left_TI[0, ::2] = True
    model.feature_TI[1, 0] = 1
    model.value_TV[0] = np.linspace(-0.5, 0.5, model.value_TV.shape[1])
    return replace(model, base_margin=-0.25)


@pytest.mark.parametrize(("trees", "version"), [(LEVELS, 4), (TABLES, 1)])
def test_sums_are_those_of_adding_record_by_record(trees, version):
    job = trees_job(trees)
    site, model = site_of(job), grown_model(job)
    layout = site._layout
    found = update(site, version, model)
    turn = layout.turn(version)
    bins = bin_values(ROWS[:, 1:], job.work.edges)
    margin = model.margins(bins, range(1)) + np.float32(-0.25)
    expected = np.zeros(layout.spec.length)
    offsets = np.cumsum((0, *layout.ranges[:-1]))
    for record, row in enumerate(ROWS):
        p = 1 / (1 + np.exp(-float(margin[record])))
        node = 0
        if turn.level:
            at = model.nodes(bins[record : record + 1], 1, 1)[0]
            node = at - 1
        if trees == LEVELS:
            cells = [node * layout.widths_F[f] + bins[record, f] for f in turn.features]
        else:
            cells = [bins[record, turn.features[0]]]
        both = [(p - row[0], cells), (CURVATURE_WEIGHT * p * (1 - p), cells)]
        place = iter(offsets)
        for value, where in both:
            for cell in where:
                expected[next(place) + int(cell)] += value
    assert np.abs(found - expected).max() < 1e-3


def test_records_without_a_label_or_at_a_leaf_add_nothing():
    job = trees_job()
    rows = ROWS.copy()
    rows[:100, 0] = np.nan
    rows[100:150, 0] = 2.0
    labelled = rows[150:]
    assert np.allclose(
        update(site_of(job, rows), 0, TreeModel.empty(job.work)),
        update(site_of(job, labelled), 0, TreeModel.empty(job.work)),
        atol=1e-4,
    )
    model = TreeModel.empty(job.work)  # the root of the first tree was not split
    assert (update(site_of(job), 1, model) == 0).all()


def test_margins_follow_the_newest_model_and_not_what_was_kept():
    job = trees_job()
    site, model = site_of(job), grown_model(job)
    update(site, 0, TreeModel.empty(job.work))
    first = update(site, 3, model)
    assert np.allclose(first, update(site, 3, model))  # asked again
    other = replace(model, value_TV=-model.value_TV)
    changed = update(site, 3, other)
    assert not np.allclose(first, changed, atol=1e-3)
    assert np.allclose(changed, update(site_of(job), 3, other), atol=1e-5)
    assert np.allclose(first, update(site, 3, model), atol=1e-5)


@pytest.mark.parametrize("trees", [LEVELS, TABLES])
def test_one_record_moves_the_sums_by_no_more_than_the_plan_says(trees, monkeypatch):
    """Without noise and with the same rounding coins, neighbours differ by one record."""
    monkeypatch.setattr("privacy.cell_sum.add_skellam_noise", _without_noise)
    monkeypatch.setattr("edge_node.rounds.tree_histograms.secrets.token_bytes", bytes)
    job = trees_job(trees, DP)
    worst = grown_model(job)
    worst.value_TV[0] = 50.0  # as certain as a hostile model can be, and wrong
    rows = ROWS.copy()
    rows[:, 0] = 0.0
    for model, version in ((worst, 4 if trees == LEVELS else 1), (TreeModel.empty(job.work), 0)):
        whole = _integers(site_of(job, rows), version, model)
        less = _integers(site_of(job, rows[:-1]), version, model)
        plan = site_of(job, rows).job.plan
        distance = np.linalg.norm(whole - less)
        assert 0 < distance <= plan.sensitivity
    assert plan.clip_gradient == pytest.approx(np.sqrt(3) if trees == LEVELS else 1.0)


def _without_noise(sums, variance, seed):
    return SimpleNamespace(vector_D=sums.values_d)


def _integers(site, version, model):
    request = RoundRequest(version + 1, version, model.to_vector())
    return asyncio.run(site.make_update(request)).vector_D.astype(float)


def test_noise_is_added_with_the_plans_variance():
    job = trees_job("trees = 200\ndepth = 1\nbins = 16", DP)
    site = site_of(job, ROWS[:1])
    model = TreeModel.empty(job.work)
    draws = np.concatenate([_integers(site, 0, model) for _ in range(200)])
    variance = site.job.plan.noise_variance
    assert draws.var() == pytest.approx(variance, rel=0.08)


def test_sampling_takes_a_part_of_the_records_each_time():
    job = trees_job(LEVELS, DP + "\nsampling_rate = 0.25\nnoise_multiplier = 9.0")
    site = site_of(job, table(2000))
    noise = np.sqrt(site.job.plan.noise_variance) / site.job.plan.scale
    model = TreeModel.empty(job.work)
    totals = []
    for _ in range(20):
        sums = update(site, 0, model)
        curvature = sums[len(sums) // 2 :] / CURVATURE_WEIGHT
        totals.append(4 * curvature[: site._layout.cells_K[0]].sum())
    spread = 4 * noise * np.sqrt(site._layout.cells_K[0]) / CURVATURE_WEIGHT
    assert np.mean(totals) == pytest.approx(500, abs=4 * spread / np.sqrt(20) + 30)


def test_what_cannot_be_met_is_refused():
    job = trees_job()
    site = site_of(job)
    model = TreeModel.empty(job.work)
    with pytest.raises(PeerError) as caught:
        update(site, job.rounds, model)
    assert caught.value.reason is Reason.MALFORMED
    vector = model.to_vector()
    vector[-1] = np.inf
    with pytest.raises(PeerError):
        asyncio.run(site.make_update(RoundRequest(1, 0, vector)))
    poorer = replace(site.job, dataset=_without_a_feature())
    with pytest.raises(PeerError) as caught:
        TreeHistograms(poorer, job.work)
    assert caught.value.reason is Reason.POLICY
    with pytest.raises(UsageError):
        update(site_of(trees_job(privacy=DP), table(2001)), 0, model)


def _without_a_feature():
    return from_table("credit", "credit", ("y", "a", "b"), ROWS[:, :3].copy())
