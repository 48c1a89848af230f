"""Grow trees by what a decoded sum says: one level of a tree, or a whole tree from one table.

The tree stands in the arrays of a `TreeModel`, which are written to here and nowhere else.

Shapes: U = coordinates of the sum, F = features of the sum, B = bins, the last for missing values.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from aggregator.tree_splits import (
    Floats,
    GrowthRules,
    NodeSums,
    Split,
    best_split,
    leaf_value,
    reconciled,
    whole,
)
from tidegate.jobfile.work_kinds import LEVELS
from tidegate.tree_layout import CURVATURE_WEIGHT, TreeLayout, Turn
from tidegate.tree_model import NO_SPLIT, TreeModel

Histogram = tuple[Floats, Floats, Floats]
"""Gradients, second derivatives and noised cells of one feature's bins, the last one missing."""

_LEAST_SHARE = 1e-3


def grow(
    model: TreeModel, layout: TreeLayout, turn: Turn, sums_U: Floats, rules: GrowthRules
) -> int:
    """Add to a model what one decoded sum says.

    Args:
        model: The version that the sum was taken at; the tree of this turn is written to.
        layout: Of the job's sums.
        turn: Which sum it is.
        sums_U: Decoded, undivided.
        rules: What a split must reach.

    Returns:
        How many splits were made.
    """
    if layout.trees.structure == LEVELS:
        return _grow_level(model, layout, turn, sums_U, rules)
    return _grow_table(model, layout, turn, sums_U, rules)


def base_margin(layout: TreeLayout, turn: Turn, sums_U: Floats) -> float:
    """Give the log-odds of the label from the first sum, which was taken at margin 0.

    There g = 1/2 - y and h = 1/4 for every record, so the share of ones is 1/2 - G / (4 H).
    """
    if layout.trees.structure == LEVELS:
        parts = [histograms[0] for histograms in _by_node(layout, turn, sums_U)]
    else:
        gradients, curvatures = _table(layout, turn, sums_U)
        parts = [(gradients.ravel(), curvatures.ravel(), np.ones(gradients.size))]
    root = whole(reconciled(_stacked(parts)))
    share = 0.5 - 0.25 * root.gradient / max(root.curvature, _LEAST_SHARE)
    share = min(max(share, _LEAST_SHARE), 1 - _LEAST_SHARE)
    return float(np.float32(np.log(share / (1 - share))))


def moved_to(margin: float, sums_U: Floats, rules: GrowthRules) -> tuple[Floats, GrowthRules]:
    """Say what the first sum would have been at another base margin: it is linear in (G, H).

    A cell of n = 4 H records holds n/2 - G ones, so at p its gradient is p n - (n/2 - G)
    = G + (4 p - 2) H and its second derivative p (1 - p) n = 4 p (1 - p) H.

    Args:
        margin: The base margin.
        sums_U: Taken at margin 0.
        rules: For sums at margin 0.

    Returns:
        The sum at the margin, and the rules with the noise that it then has.
    """
    p = 1 / (1 + np.exp(-margin))
    slope, factor = 4 * p - 2, 4 * p * (1 - p)
    gradients, weighted = np.split(sums_U, 2)
    moved = np.concatenate([gradients + slope / CURVATURE_WEIGHT * weighted, factor * weighted])
    noise = replace(
        rules,
        gradient_sd=float(np.hypot(rules.gradient_sd, slope * rules.curvature_sd)),
        curvature_sd=float(factor * rules.curvature_sd),
    )
    return moved, noise


def _grow_level(
    model: TreeModel, layout: TreeLayout, turn: Turn, sums_U: Floats, rules: GrowthRules
) -> int:
    histograms = _by_node(layout, turn, sums_U)
    splits = 0
    for place in range(1 << turn.level):
        node = (1 << turn.level) - 1 + place
        if node and model.feature_TI[turn.tree, (node - 1) // 2] == NO_SPLIT:
            continue
        sums = _stacked([nodes[place] for nodes in histograms])
        splits += _grow_node(model, turn, node, sums, rules) is not None
    return splits


def _grow_table(
    model: TreeModel, layout: TreeLayout, turn: Turn, sums_U: Floats, rules: GrowthRules
) -> int:
    table = _table(layout, turn, sums_U)
    boxes = {0: tuple(np.arange(width) for width in table[0].shape)}
    splits = 0
    for node in range((1 << layout.trees.depth) - 1):
        box = boxes.pop(node, None)
        if box is None:
            continue
        sums = _stacked([_marginal(table, box, axis) for axis in range(len(box))])
        split = _grow_node(model, turn, node, sums, rules)
        if split is None:
            continue
        splits += 1
        bins = box[split.row]
        missing = bins == table[0].shape[split.row] - 1
        goes_left = np.where(missing, split.missing_left, bins <= split.last_left_bin)
        for child, inside in ((2 * node + 1, goes_left), (2 * node + 2, ~goes_left)):
            boxes[child] = (*box[: split.row], bins[inside], *box[split.row + 1 :])
    return splits


def _grow_node(
    model: TreeModel, turn: Turn, node: int, sums: NodeSums, rules: GrowthRules
) -> Split | None:
    """Give a node its value and, where there is a good one, its split and children's values."""
    sums = reconciled(sums)
    tree = turn.tree
    model.value_TV[tree, node] = leaf_value(whole(sums), rules)
    split = best_split(sums, rules)
    if split is None:
        return None
    model.feature_TI[tree, node] = turn.features[split.row]
    model.bin_TI[tree, node] = split.last_left_bin
    model.missing_left_TI[tree, node] = split.missing_left
    model.value_TV[tree, 2 * node + 1] = leaf_value(split.left, rules)
    model.value_TV[tree, 2 * node + 2] = leaf_value(split.right, rules)
    return split


def _by_node(layout: TreeLayout, turn: Turn, sums_U: Floats) -> list[list[Histogram]]:
    """Give each feature's histograms, one a node of the level."""
    histograms = []
    parts = zip(turn.features, *layout.split_sums(sums_U), strict=True)
    for feature, gradients, curvatures in parts:
        width = layout.widths_F[feature]
        ends = [(place * width, (place + 1) * width) for place in range(1 << turn.level)]
        histograms.append([(gradients[a:b], curvatures[a:b], np.ones(width)) for a, b in ends])
    return histograms


def _table(layout: TreeLayout, turn: Turn, sums_U: Floats) -> tuple[Floats, Floats]:
    """Give the table of gradients and of second derivatives, one axis a feature."""
    widths = tuple(layout.widths_F[feature] for feature in turn.features)
    size = int(np.prod(widths))
    (gradients,), (curvatures,) = layout.split_sums(sums_U)
    return gradients[:size].reshape(widths), curvatures[:size].reshape(widths)


def _marginal(
    table: tuple[Floats, Floats], box: Sequence[NDArray[np.int64]], axis: int
) -> Histogram:
    """Add a box of the table up along all axes but one; bins outside the box have no cells."""
    others = tuple(other for other in range(len(box)) if other != axis)
    width = table[0].shape[axis]
    rows = []
    for cells in table:
        row = np.zeros(width)
        row[box[axis]] = cells[np.ix_(*box)].sum(axis=others)
        rows.append(row)
    counts = np.zeros(width)
    counts[box[axis]] = np.prod([len(box[other]) for other in others], dtype=np.float64)
    return rows[0], rows[1], counts


def _stacked(histograms: Sequence[Histogram]) -> NodeSums:
    """Bring histograms to one width, the bin of missing values last."""
    width = max(len(gradients) for gradients, _, _ in histograms)
    stacked = np.zeros((3, len(histograms), width))
    for row, histogram in enumerate(histograms):
        for kind, values in enumerate(histogram):
            stacked[kind, row, : len(values) - 1] = values[:-1]
            stacked[kind, row, -1] = values[-1]
    return NodeSums(*stacked)
