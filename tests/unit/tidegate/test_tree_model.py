import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from privacy.errors import PeerError, Reason, UsageError
from tests.support.tree_jobs import table, trees_job
from tidegate.tree_bins import bin_values
from tidegate.tree_model import NO_EDGE, NO_SPLIT, TreeModel, model_spec
from tidegate.tree_xgboost import to_xgboost_json

JOB = trees_job("trees = 3\ndepth = 3\nbins = 16").work


def random_model(seed, work=JOB):
    """Make trees with splits anywhere below a split, some on missing values alone."""
    random = np.random.default_rng(seed)
    model = TreeModel.empty(work)
    inner = model.feature_TI.shape[1]
    for tree in range(len(model.feature_TI)):
        for node in range(inner):
            parent = model.feature_TI[tree, (node - 1) // 2] if node else 0
            if parent != NO_SPLIT and random.random() < 0.8:
                feature = random.integers(len(model.edges))
                model.feature_TI[tree, node] = feature
                model.bin_TI[tree, node] = random.integers(len(model.edges[feature]) + 1)
                model.missing_left_TI[tree, node] = random.random() < 0.5
    model.value_TV[:] = random.normal(0, 1, model.value_TV.shape)
    return TreeModel(float(np.float32(random.normal())), *list(vars(model).values())[1:])


def slow_margin(model, row):
    """Follow one record through every tree."""
    margin = model.base_margin
    depth = model.feature_TI.shape[1].bit_length()
    for tree in range(len(model.feature_TI)):
        node = 0
        for _ in range(depth):
            feature = model.feature_TI[tree, node] if node < model.feature_TI.shape[1] else NO_SPLIT
            if feature == NO_SPLIT:
                break
            value, last = row[feature], model.bin_TI[tree, node]
            cuts = model.edges[feature]
            if np.isnan(value):
                left = model.missing_left_TI[tree, node]
            else:
                left = last >= len(cuts) or value < np.float32(cuts[last])
            node = 2 * node + (1 if left else 2)
        margin += model.value_TV[tree, node]
    return margin


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10_000))
def test_predictions_are_those_of_following_each_record(seed):
    model = random_model(seed)
    rows = table(40, seed)[:, 1:]
    expected = [slow_margin(model, row) for row in rows]
    assert np.allclose(model.predict_margin(rows), expected, atol=1e-5)


def test_a_vector_and_named_tensors_hold_the_whole_model():
    model = random_model(1)
    vector = model.to_vector()
    spec = model_spec(JOB)
    assert vector.shape == (spec.length,)
    again = TreeModel.from_vector(JOB, vector)
    assert again.agrees(model, 3)
    assert (again.edges, again.base_margin) == (model.edges, model.base_margin)
    assert np.array_equal(again.to_vector(), vector)
    assert set(spec.unflatten(vector)) == set(model.to_tensors())


def test_an_empty_model_says_nothing():
    model = TreeModel.empty(JOB)
    assert (model.predict_margin(table(10)[:, 1:]) == 0).all()
    assert np.isfinite(model.to_vector()).all()


def test_the_walk_may_stop_at_any_level():
    model = random_model(3)
    bins = bin_values(table(200)[:, 1:], JOB.edges)
    for levels in range(4):
        node = model.nodes(bins, 0, levels)
        assert node.max() < (2 << levels) - 1
        deeper = model.nodes(bins, 0, levels + 1)
        assert ((deeper == node) | ((deeper - 1) // 2 == node)).all()


@pytest.mark.parametrize(
    ("tensor", "value"),
    [
        ("split_feature", 3.0),
        ("split_feature", -2.0),
        ("split_feature", 0.5),
        ("split_bin", -1.0),
        ("split_bin", 1e6),
        ("missing_left", 2.0),
        ("split_feature", np.nan),
        ("value", np.inf),
        ("base_margin", np.nan),
        ("edges", 77.0),
    ],
)
def test_a_vector_from_the_wire_that_is_no_model_is_refused(tensor, value):
    vector = TreeModel.empty(JOB).to_vector()
    model_spec(JOB).unflatten(vector)[tensor].flat[0] = value
    with pytest.raises(PeerError) as caught:
        TreeModel.from_vector(JOB, vector)
    assert caught.value.reason is Reason.MALFORMED


def test_a_vector_of_another_length_is_refused():
    with pytest.raises(PeerError) as caught:
        TreeModel.from_vector(JOB, np.zeros(7, np.float32))
    assert caught.value.reason is Reason.WRONG_SHAPE


def test_tensors_of_another_kind_of_model_are_refused():
    with pytest.raises(PeerError):
        TreeModel.from_tensors({"layers.0.weight": np.zeros((2, 2), np.float32)})


@pytest.mark.parametrize("seed", range(5))
def test_xgboost_predicts_the_same_from_the_written_file(tmp_path, seed):
    xgboost = pytest.importorskip("xgboost")
    model = random_model(seed)
    file = tmp_path / "model.json"
    file.write_bytes(to_xgboost_json(model, JOB.features))
    booster = xgboost.Booster(model_file=str(file))
    rows = table(500, seed)[:, 1:]
    rows[0, 0] = NO_EDGE / 2
    found = booster.predict(
        xgboost.DMatrix(rows, feature_names=list(JOB.features)), output_margin=True
    )
    assert np.allclose(found, model.predict_margin(rows), atol=1e-5)


def test_trees_that_are_not_grown_are_not_written():
    written = json.loads(to_xgboost_json(TreeModel.empty(JOB), JOB.features))
    assert written["learner"]["gradient_booster"]["model"]["trees"] == []
    with pytest.raises(UsageError):
        to_xgboost_json(TreeModel.empty(JOB), ["a"])
