"""Lay out the gradient histograms of trees: one vector, the same at the sites and the aggregator.

At a published model version a record has a gradient g = p - y in [-1, 1] and a second derivative
h = p (1 - p) in [0, 1/4] of the logistic loss. It adds both to one bin of each of K ranges:

- structure "levels": K features, each with one histogram a node of the level; a tree takes one sum
  a level. Which K features a tree sees is drawn publicly where the job asks for fewer than all.
- structure "tables": one table over the bins of a few publicly drawn features together, K = 1; a
  tree takes one sum, whatever its depth, for the table holds all that its splits need.

What is summed of h is `CURVATURE_WEIGHT` times h. With p = |g| for y = 0 and 1 - |g| for y = 1,
g^2 + (w h)^2 <= 1 for every p as long as w^2 <= min (2 - p) / (p (1 - p)^2) = 11.09, so h costs
nothing: a record's vector has an L2 norm of at most sqrt(K), exactly sqrt(K) where p and y are
opposite. That bound is public, and privacy.cell_sum holds each record to it.

Which sum a model version asks for follows from the version alone: sums are taken in order, one a
version.

Shapes: N = records, F = features, K = ranges, U = coordinates of the vector (2 a cell).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final

import numpy as np
from numpy.typing import NDArray

from privacy.cell_sum import NO_CELL
from privacy.secagg.encoding import hash_of
from privacy.spec import TensorSpec, VectorSpec
from tidegate.jobfile.work_kinds import LEVELS, Trees
from tidegate.tree_bins import width_of

CURVATURE_WEIGHT: Final = 3.25
"""w, by which second derivatives are scaled up in the vector."""

NO_NODE: Final = -1
"""A record that is at no open node of the level: it adds nothing."""


@dataclass(frozen=True)
class Turn:
    """What one sum is of.

    Attributes:
        tree: From 0.
        level: From 0; always 0 with tables.
        features: Places of the features in the job's list, widest first.
    """

    tree: int
    level: int
    features: tuple[int, ...]


@dataclass(frozen=True)
class TreeLayout:
    """Where each bin of each node lies.

    Attributes:
        trees: What the job says.
    """

    trees: Trees

    @property
    def widths_F(self) -> tuple[int, ...]:
        """Return each feature's bins, missing values' counted."""
        return tuple(width_of(edges) for edges in self.trees.edges)

    @cached_property
    def cells_K(self) -> tuple[int, ...]:
        """Return the cells of each range: room for the widest features that a draw can give."""
        widest = sorted(self.widths_F, reverse=True)[: self.trees.features_per_tree]
        if self.trees.structure == LEVELS:
            nodes = 1 << (self.trees.depth - 1)
            return tuple(nodes * width for width in widest)
        return (math.prod(widest),)

    @property
    def ranges(self) -> tuple[int, ...]:
        """Return the cells of all ranges in the order of the vector: gradients, then curvatures."""
        return (*self.cells_K, *self.cells_K)

    @property
    def norm(self) -> float:
        """Return the most that one record moves the vector, in L2."""
        return math.sqrt(len(self.cells_K))

    @property
    def spec(self) -> VectorSpec:
        """Describe the vector that is summed."""
        cells = sum(self.cells_K)
        return VectorSpec((TensorSpec("gradients", (cells,)), TensorSpec("curvatures", (cells,))))

    def turn(self, version: int) -> Turn:
        """Say which sum is taken at a model version."""
        depth = self.trees.depth if self.trees.structure == LEVELS else 1
        tree = version // depth
        return Turn(tree, version % depth, self._drawn(tree))

    def cells(
        self, turn: Turn, bins_NF: NDArray[np.uint16], node_N: NDArray[np.int64]
    ) -> NDArray[np.int64]:
        """Give the cell of each record in each range.

        Args:
            turn: Which sum.
            bins_NF: Of all the job's features.
            node_N: Each record's node, from 0 in its level, or `NO_NODE`.

        Returns:
            Cells within their range, int64, shape (N, K); `NO_CELL` where a record adds nothing.
        """
        nowhere_N = node_N == NO_NODE
        levels = self.trees.structure == LEVELS
        cells_NK = np.zeros((len(node_N), len(self.cells_K)), dtype=np.int64)
        if levels:
            cells_NK += node_N[:, np.newaxis]
        for place, feature in enumerate(turn.features):
            cells_N = cells_NK[:, place if levels else 0]
            cells_N *= self.widths_F[feature]
            cells_N += bins_NF[:, feature]
        cells_NK[nowhere_N] = NO_CELL
        return cells_NK

    def split_sums(
        self, sums_U: NDArray[np.float64]
    ) -> tuple[list[NDArray[np.float64]], list[NDArray[np.float64]]]:
        """Take a decoded sum apart: per range the gradients' cells and the second derivatives'."""
        gradients, curvatures = np.split(sums_U, 2)
        places = np.cumsum(self.cells_K)[:-1]
        return np.split(gradients, places), np.split(curvatures / CURVATURE_WEIGHT, places)

    def _drawn(self, tree: int) -> tuple[int, ...]:
        """Deal features out in passes: each pass shuffles them all, and deals them in hands."""
        count, hand = len(self.trees.features), self.trees.features_per_tree
        hands = count // hand
        if hand == count:
            dealt: Sequence[int] = range(count)
        else:
            deck = _shuffled(self.trees.seed, tree // hands, count)
            begin = hand * (tree % hands)
            dealt = deck[begin : begin + hand]
        return tuple(sorted(dealt, key=lambda feature: (-self.widths_F[feature], feature)))


def _shuffled(seed: int, deal: int, count: int) -> list[int]:
    """Shuffle the features, the same way at every site; nothing secret rests on it."""
    return sorted(range(count), key=lambda feature: hash_of("tree-deal", seed, deal, feature))
