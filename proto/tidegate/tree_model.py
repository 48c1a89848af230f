"""Hold boosted trees as one flat vector, which is what model versions are.

Every tree is a heap of the job's full depth: node 0 is the root, node i has the children 2 i + 1
(left) and 2 i + 2 (right). A node without a split is a leaf, and so is each node of the last level.
A node's value is known when the node is, so a version in the midst of a tree is a model like any
other. The vector also holds the bin edges: a released file needs nothing beside it but the
features' names, in the order of the job.

All numbers are float32; places and flags are whole numbers, which float32 holds exactly.

Shapes: N = records, F = features, E = most edges of a feature, T = trees, I = inner nodes of a
tree, V = all its nodes, D = numbers of the vector.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from privacy.errors import PeerError, Reason
from privacy.spec import TensorSpec, VectorSpec
from tidegate.jobfile.work_kinds import Trees
from tidegate.tree_bins import Edges, as_edges, bin_values, width_of

NO_SPLIT = -1
NO_EDGE = float(np.finfo(np.float32).max)
"""Fills the rows of features with fewer edges; a split there parts missing values from the rest."""

_BLOCK_ROWS = 1 << 16


@dataclass(frozen=True, eq=False)
class TreeModel:
    """Some trees, grown or not yet; an array may be written to by whoever made the model.

    Attributes:
        base_margin: Log-odds before any tree.
        edges: Of each feature.
        feature_TI: Which feature a node splits on, or `NO_SPLIT`; int64.
        bin_TI: The last bin that goes left; int64.
        missing_left_TI: Whether missing values go left.
        value_TV: What a node adds to the margin where it is a leaf; float32.
    """

    base_margin: float
    edges: tuple[Edges, ...] = field(repr=False)
    feature_TI: NDArray[np.int64] = field(repr=False)
    bin_TI: NDArray[np.int64] = field(repr=False)
    missing_left_TI: NDArray[np.bool_] = field(repr=False)
    value_TV: NDArray[np.float32] = field(repr=False)

    @classmethod
    def empty(cls, trees: Trees) -> "TreeModel":
        """Make the model of a job before its first sum: every margin is 0."""
        inner = (trees.trees, (1 << trees.depth) - 1)
        return cls(
            base_margin=0.0,
            edges=trees.edges,
            feature_TI=np.full(inner, NO_SPLIT, dtype=np.int64),
            bin_TI=np.zeros(inner, dtype=np.int64),
            missing_left_TI=np.zeros(inner, dtype=np.bool_),
            value_TV=np.zeros((trees.trees, (2 << trees.depth) - 1), dtype=np.float32),
        )

    @classmethod
    def from_vector(cls, trees: Trees, values_D: NDArray[np.float32]) -> "TreeModel":
        """Read a model version of a job; the arrays are new ones.

        Args:
            trees: The job's.
            values_D: From the wire: anything of the right length.

        Raises:
            PeerError: WRONG_SHAPE: it has not D numbers; MALFORMED: it holds no trees of this job.
        """
        model = cls.from_tensors(model_spec(trees).unflatten(np.ascontiguousarray(values_D)))
        if model.edges != trees.edges:
            raise PeerError(Reason.MALFORMED, "the model's bins are not those of the job")
        return model

    @classmethod
    def from_tensors(cls, tensors: Mapping[str, NDArray[np.float32]]) -> "TreeModel":
        """Read a model from its named tensors, as a released safetensors file has them.

        Raises:
            PeerError: MALFORMED: they are no trees.
        """
        try:
            edges_FE = tensors["edges"]
            model = cls(
                base_margin=float(tensors["base_margin"][0]),
                edges=tuple(as_edges(row_E[row_E < np.float32(NO_EDGE)]) for row_E in edges_FE),
                feature_TI=_whole(tensors["split_feature"], NO_SPLIT, len(edges_FE) - 1),
                bin_TI=_whole(tensors["split_bin"], 0, edges_FE.shape[1]),
                missing_left_TI=_whole(tensors["missing_left"], 0, 1).astype(np.bool_),
                value_TV=tensors["value"].astype(np.float32),
            )
        except (KeyError, IndexError) as error:
            message = f"the file holds no boosted trees: {error} is missing"
            raise PeerError(Reason.MALFORMED, message) from error
        if not (np.isfinite(model.value_TV).all() and np.isfinite(model.base_margin)):
            raise PeerError(Reason.MALFORMED, "the trees have values that are not finite")
        return model

    def to_tensors(self) -> dict[str, NDArray[np.float32]]:
        """Give the named tensors in the order of the vector."""
        edges_FE = np.full(
            (len(self.edges), max(1, *map(len, self.edges))), NO_EDGE, dtype=np.float32
        )
        for row_E, cuts in zip(edges_FE, self.edges, strict=True):
            row_E[: len(cuts)] = cuts
        return {
            "base_margin": np.array([self.base_margin], dtype=np.float32),
            "edges": edges_FE,
            "split_feature": self.feature_TI.astype(np.float32),
            "split_bin": self.bin_TI.astype(np.float32),
            "missing_left": self.missing_left_TI.astype(np.float32),
            "value": self.value_TV,
        }

    def to_vector(self) -> NDArray[np.float32]:
        """Give the flat vector, shape (D,)."""
        return np.concatenate([tensor.reshape(-1) for tensor in self.to_tensors().values()])

    def agrees(self, other: "TreeModel", trees: int) -> bool:
        """Say whether the first trees are the same in both models of a job."""
        return all(
            np.array_equal(mine[:trees], theirs[:trees])
            for mine, theirs in (
                (self.feature_TI, other.feature_TI),
                (self.bin_TI, other.bin_TI),
                (self.missing_left_TI, other.missing_left_TI),
                (self.value_TV, other.value_TV),
            )
        )

    def nodes(self, bins_NF: NDArray[np.uint16], tree: int, levels: int) -> NDArray[np.int64]:
        """Follow records down a tree, at most so many levels.

        Args:
            bins_NF: Of all features.
            tree: Which tree.
            levels: How far; the tree's depth for the leaves.

        Returns:
            Each record's node in the heap, int64, shape (N,).
        """
        node_N = np.zeros(len(bins_NF), dtype=np.int64)
        missing_F = np.array([width_of(cuts) - 1 for cuts in self.edges])
        rows_N = np.arange(len(bins_NF))
        for level in range(levels):
            first = (1 << level) - 1
            if (self.feature_TI[tree, first : 2 * first + 1] == NO_SPLIT).all():
                break  # by the model alone: no time may tell where records are
            inner_N = np.minimum(node_N, self.feature_TI.shape[1] - 1)
            feature_N = self.feature_TI[tree, inner_N]
            open_N = (node_N >= first) & (feature_N != NO_SPLIT)
            bin_N = bins_NF[rows_N, feature_N]
            left_N = np.where(
                bin_N == missing_F[feature_N],
                self.missing_left_TI[tree, inner_N],
                bin_N <= self.bin_TI[tree, inner_N],
            )
            node_N = np.where(open_N, 2 * node_N + 2 - left_N, node_N)
        return node_N

    def margins(self, bins_NF: NDArray[np.uint16], trees: range) -> NDArray[np.float32]:
        """Add up what some trees say of each record, the base margin not counted, shape (N,)."""
        depth = (self.value_TV.shape[1] + 1).bit_length() - 2
        margin_N = np.zeros(len(bins_NF), dtype=np.float32)
        for begin in range(0, len(bins_NF), _BLOCK_ROWS):
            rows = slice(begin, begin + _BLOCK_ROWS)
            for tree in trees:
                margin_N[rows] += self.value_TV[tree, self.nodes(bins_NF[rows], tree, depth)]
        return margin_N

    def predict_margin(self, values_NF: NDArray[np.float32]) -> NDArray[np.float32]:
        """Give the log-odds of raw records, NaN where a value is missing, shape (N,)."""
        bins_NF = bin_values(np.asarray(values_NF, dtype=np.float32), self.edges)
        return self.margins(bins_NF, range(len(self.value_TV))) + np.float32(self.base_margin)


def model_spec(trees: Trees) -> VectorSpec:
    """Describe the model vector of a job."""
    tensors = TreeModel.empty(trees).to_tensors()
    return VectorSpec(tuple(TensorSpec(name, array.shape) for name, array in tensors.items()))


def _whole(values: NDArray[np.float32], low: int, high: int) -> NDArray[np.int64]:
    """Read whole numbers of a range from floats; NaN is none."""
    if not ((values >= low) & (values <= high) & (values == np.floor(values))).all():
        raise PeerError(Reason.MALFORMED, f"the trees have places outside {low} to {high}")
    return values.astype(np.int64)
