import math
from collections import Counter

import numpy as np
import pytest

from privacy.cell_sum import NO_CELL
from tests.support.tree_jobs import trees_job
from tidegate.tree_layout import CURVATURE_WEIGHT, NO_NODE, TreeLayout


def layout_of(trees):
    return TreeLayout(trees_job(trees).work)


def test_second_derivatives_ride_along_for_nothing():
    p = np.linspace(0, 1, 100_001)
    weighted = CURVATURE_WEIGHT * p * (1 - p)
    assert (p**2 + weighted**2).max() <= 1
    assert ((1 - p) ** 2 + weighted**2).max() <= 1
    assert 0.97 * math.sqrt(11.09) < CURVATURE_WEIGHT  # and no more would fit


@pytest.mark.parametrize(
    ("trees", "norm", "cells", "sums"),
    [
        ("trees = 4\ndepth = 3\nbins = 16", math.sqrt(3), (4 * 9, 4 * 7, 4 * 6), 12),
        ("trees = 4\ndepth = 2\nbins = 16\nfeatures_per_tree = 1", 1, (2 * 9,), 8),
        ('structure = "tables"\ntrees = 4\ndepth = 3\nbins = 16', 1, (9,), 4),
        ('structure = "tables"\nfeatures_per_tree = 2\ntrees = 4\ndepth = 3', 1, (63,), 4),
    ],
)
def test_ranges_have_room_for_the_widest_features(trees, norm, cells, sums):
    layout = layout_of(trees)
    assert layout.norm == pytest.approx(norm)
    assert layout.cells_K == cells
    assert sum(layout.ranges) == 2 * sum(cells)
    assert layout.spec.length == sum(layout.ranges)
    assert layout.trees.sums == trees_job(trees).rounds == sums


def test_sums_are_taken_level_by_level_or_tree_by_tree():
    levels = layout_of("trees = 2\ndepth = 3")
    assert [(t.tree, t.level) for t in map(levels.turn, range(6))] == [
        (0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (1, 2),
    ]  # fmt: skip
    tables = layout_of('structure = "tables"\ntrees = 3\ndepth = 3')
    assert [(t.tree, t.level) for t in map(tables.turn, range(3))] == [(0, 0), (1, 0), (2, 0)]


def test_features_are_dealt_out_evenly_and_the_same_everywhere():
    layout = layout_of('structure = "tables"\ntrees = 30\ndepth = 2\nseed = 5')
    drawn = [layout.turn(version).features for version in range(30)]
    assert Counter(drawn) == {(0,): 10, (1,): 10, (2,): 10}
    again = layout_of('structure = "tables"\ntrees = 30\ndepth = 2\nseed = 5')
    assert drawn == [again.turn(version).features for version in range(30)]
    other = layout_of('structure = "tables"\ntrees = 30\ndepth = 2\nseed = 6')
    assert drawn != [other.turn(version).features for version in range(30)]
    assert any(a != b for a, b in zip(drawn, drawn[3:], strict=False))  # another order each pass


@pytest.mark.parametrize("per_tree", [1, 2, 3])
@pytest.mark.parametrize("structure", ["levels", "tables"])
def test_every_node_and_bin_has_a_cell_of_its_own_in_range(structure, per_tree):
    layout = layout_of(
        f'structure = "{structure}"\nfeatures_per_tree = {per_tree}\ntrees = 9\ndepth = 3'
    )
    for version in range(layout.trees.sums):
        turn = layout.turn(version)
        widths = layout.widths_F
        grids = np.meshgrid(*[np.arange(width) for width in widths], indexing="ij")
        bins = np.stack([grid.reshape(-1) for grid in grids], axis=1).astype(np.uint16)
        for node in range(1 << turn.level):
            cells = layout.cells(turn, bins, np.full(len(bins), node))
            assert (cells >= 0).all()
            assert (cells < layout.cells_K).all()
            parts = [bins[:, feature] for feature in turn.features]
            if structure == "levels":
                for place, part in enumerate(parts):
                    assert len(set(zip(part, cells[:, place], strict=True))) == part.max() + 1
            else:
                keys = {tuple(row) for row in np.stack([*parts, cells[:, 0]], axis=1).tolist()}
                assert len(keys) == math.prod(widths[feature] for feature in turn.features)


def test_a_record_at_a_leaf_adds_nothing():
    layout = layout_of("trees = 2\ndepth = 3")
    cells = layout.cells(layout.turn(1), np.ones((2, 3), np.uint16), np.array([NO_NODE, 1]))
    assert (cells[0] == NO_CELL).all()
    assert (cells[1] >= 0).all()


def test_sums_come_apart_as_they_were_laid_out():
    layout = layout_of("trees = 2\ndepth = 1")
    sums = np.arange(layout.spec.length, dtype=float)
    gradients, curvatures = layout.split_sums(sums)
    assert [len(part) for part in gradients] == list(layout.cells_K)
    assert np.concatenate(gradients).tolist() == sums[: len(sums) // 2].tolist()
    assert np.allclose(np.concatenate(curvatures) * CURVATURE_WEIGHT, sums[len(sums) // 2 :])
