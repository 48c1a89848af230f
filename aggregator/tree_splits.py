"""Find the best split of a node from sums that may be noised, and give its sides their values.

Without noise this is XGBoost's rule (Chen, Guestrin 2016, arXiv 1603.02754, eq. 6 and 7, and its
algorithm 3 for missing values): the gain of a side is G^2 / (H + lambda), its value -G / (H +
lambda).

With noise of known deviation in every cell, all of it post-processing:

- a side of n cells has E[G^2] = true G^2 + n sigma^2, so n sigma^2 is taken off before gains are
  compared: else the side with more cells would look better for its noise alone;
- a side's value is shrunk as by a ridge of lambda (1 + n sigma^2 / H). lambda is the inverse
  variance of the prior on a value v, and G = -v H + noise of variance n sigma^2 + H (the noise, and
  chance in the records): this is the posterior mean;
- a split counts only if the two sides' values differ by more than the noise makes the best of as
  many candidates differ: sqrt(2 ln candidates) deviations;
- a side's second derivatives must exceed `min_weight` by two deviations of their noise.

Shapes: F = histograms of the node, one a feature, B = bins; the last one holds missing values, and
bins that a feature has not hold nothing and have no cells.
"""

import math
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

_LEAST_CURVATURE = 1e-6


@dataclass(frozen=True)
class GrowthRules:
    """What a split must reach.

    Attributes:
        learning_rate: Shrinkage of every value.
        l2: lambda, ridge on a value.
        min_weight: Least sum of second derivatives of a side.
        min_gain: Least gain, as XGBoost counts it (gamma).
        gradient_sd: Deviation of the noise in each cell of the gradients' sums; 0 without DP.
        curvature_sd: The same for second derivatives.
    """

    learning_rate: float
    l2: float
    min_weight: float
    min_gain: float
    gradient_sd: float
    curvature_sd: float


@dataclass(frozen=True)
class NodeSums:
    """The histograms of one node.

    Attributes:
        gradient_FB: Sums of gradients.
        curvature_FB: Sums of second derivatives.
        cells_FB: How many noised cells each bin was added up from.
    """

    gradient_FB: Floats = field(repr=False)
    curvature_FB: Floats = field(repr=False)
    cells_FB: Floats = field(repr=False)


@dataclass(frozen=True)
class Side:
    """The sums of one side of a split, or of a whole node."""

    gradient: float
    curvature: float
    cells: float


@dataclass(frozen=True)
class Split:
    """A split of a node.

    Attributes:
        row: Which of the node's histograms it is on.
        last_left_bin: The last bin that goes left.
        missing_left: Whether missing values do.
        left: What goes left.
        right: The rest.
    """

    row: int
    last_left_bin: int
    missing_left: bool
    left: Side
    right: Side


@dataclass(frozen=True)
class _Sides:
    """One side of every candidate."""

    gradient: Floats
    curvature: Floats
    cells: Floats


def reconciled(sums: NodeSums) -> NodeSums:
    """Bring all of a node's histograms to the same total: each counts the same records.

    The total that all of them give together is less noised than any one's. Each histogram's bins
    take up what it differs in proportion to their cells, which is the least-squares solution.
    """
    if len(sums.gradient_FB) == 1:
        return sums
    cells_F = sums.cells_FB.sum(axis=1)
    share_FB = sums.cells_FB / cells_F[:, np.newaxis]
    weight_F = (1 / cells_F) / (1 / cells_F).sum()

    def adjusted(values_FB: Floats) -> Floats:
        total_F = values_FB.sum(axis=1)
        moved: Floats = values_FB + share_FB * (weight_F @ total_F - total_F)[:, np.newaxis]
        return moved

    return NodeSums(adjusted(sums.gradient_FB), adjusted(sums.curvature_FB), sums.cells_FB)


def whole(sums: NodeSums) -> Side:
    """Give a reconciled node's own sums, with the noise that they carry."""
    cells_F = sums.cells_FB.sum(axis=1)
    return Side(
        gradient=float(sums.gradient_FB[0].sum()),
        curvature=float(sums.curvature_FB[0].sum()),
        cells=1 / float((1 / cells_F).sum()),
    )


def best_split(sums: NodeSums, rules: GrowthRules) -> Split | None:
    """Find the split with the largest gain; None where none is good enough.

    Args:
        sums: Reconciled histograms of the node.
        rules: What a split must reach.
    """
    left = _left_sides(sums)
    right = _Sides(
        sums.gradient_FB.sum(axis=1)[:, np.newaxis] - left.gradient,
        sums.curvature_FB.sum(axis=1)[:, np.newaxis] - left.curvature,
        sums.cells_FB.sum(axis=1)[:, np.newaxis] - left.cells,
    )
    node = whole(sums)
    parent = _Sides(*(np.array(value) for value in (node.gradient, node.curvature, node.cells)))
    gains = _score(left, rules) + _score(right, rules) - _score(parent, rules)
    allowed = _is_heavy(left, rules) & _is_heavy(right, rules) & _differ(left, right, rules)
    gains = np.where(allowed, gains, -np.inf)
    place = np.unravel_index(int(np.argmax(gains)), gains.shape)
    if not gains[place] > rules.min_gain:
        return None
    missing_left, row, last = (int(index) for index in place)
    return Split(row, last, bool(missing_left), _one(left, place), _one(right, place))


def leaf_value(side: Side, rules: GrowthRules) -> float:
    """Give what a leaf of these sums adds to the margin."""
    sides = _Sides(*(np.array(value) for value in (side.gradient, side.curvature, side.cells)))
    curvature = _floored(sides, rules)
    ridge = _ridge(curvature, sides.cells, rules)
    return rules.learning_rate * float(-sides.gradient / (curvature + ridge))


def _left_sides(sums: NodeSums) -> _Sides:
    """Give the left side of each candidate, shape (2, F, B - 1): missing right, missing left."""

    def sides(values_FB: Floats) -> Floats:
        ordinary = np.cumsum(values_FB[:, :-1], axis=1)
        return np.stack([ordinary, ordinary + values_FB[:, -1:]])

    return _Sides(sides(sums.gradient_FB), sides(sums.curvature_FB), sides(sums.cells_FB))


def _score(sides: _Sides, rules: GrowthRules) -> Floats:
    curvature = _floored(sides, rules)
    square = sides.gradient**2 - sides.cells * rules.gradient_sd**2
    scores: Floats = np.maximum(square, 0.0) / (curvature + _ridge(curvature, sides.cells, rules))
    return scores


def _ridge(curvature: Floats, cells: Floats, rules: GrowthRules) -> Floats:
    ridge: Floats = rules.l2 * (1 + cells * rules.gradient_sd**2 / curvature)
    return ridge


def _floored(sides: _Sides, rules: GrowthRules) -> Floats:
    """Give second derivatives no smaller than their noise can tell."""
    least = np.maximum(_LEAST_CURVATURE, rules.curvature_sd * np.sqrt(np.maximum(sides.cells, 0)))
    return np.maximum(sides.curvature, least)


def _is_heavy(sides: _Sides, rules: GrowthRules) -> NDArray[np.bool_]:
    noise = 2 * rules.curvature_sd * np.sqrt(np.maximum(sides.cells, 0))
    least = np.maximum(rules.min_weight, _LEAST_CURVATURE) + noise
    heavy: NDArray[np.bool_] = (sides.cells > 0) & (sides.curvature >= least)
    return heavy


def _differ(left: _Sides, right: _Sides, rules: GrowthRules) -> NDArray[np.bool_] | bool:
    """Say which candidates differ by more than noise: always, where there is none."""
    if rules.gradient_sd == 0:
        return True
    left_curvature, right_curvature = _floored(left, rules), _floored(right, rules)
    difference = left.gradient / left_curvature - right.gradient / right_curvature
    spread = left.cells / left_curvature**2 + right.cells / right_curvature**2
    candidates = max(2, int(np.count_nonzero((left.cells > 0) & (right.cells > 0))))
    least = 2 * math.log(candidates) * rules.gradient_sd**2
    differs: NDArray[np.bool_] = difference**2 >= least * spread
    return differs


def _one(sides: _Sides, place: tuple[np.intp, ...]) -> Side:
    return Side(
        float(sides.gradient[place]), float(sides.curvature[place]), float(sides.cells[place])
    )
