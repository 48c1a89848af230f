"""Sum the gradient histograms of boosted trees over a site's records.

No code of an app runs: the daemon bins the records by the job's public edges, follows the trees of
the published model version, and adds each record's gradient and second derivative to one cell of
each histogram. All records are gone through whatever the secret sample says, block by block: memory
does not tell of it, and time only what adding a sampled record's cells takes.

The bins are made once. What finished trees say of a record is kept from version to version, so a
round costs one walk down the newest tree, however many there are.

Shapes: N = records, R = records of a block, F = features, K = histograms that a record adds to,
W = numbers of a row.
"""

import asyncio
import secrets
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from edge_node.job_state import encoding_of
from edge_node.rounds.contract import JobAtSite, RoundRequest
from privacy.cell_sum import CellSum
from privacy.errors import PeerError, Reason
from privacy.noise import NoisedUpdate
from privacy.pipeline import Mode
from privacy.sampling import poisson_sample
from tidegate.jobfile import Trees
from tidegate.schema import Schema
from tidegate.tree_bins import bin_values
from tidegate.tree_layout import CURVATURE_WEIGHT, NO_NODE, TreeLayout, Turn
from tidegate.tree_model import TreeModel

_SEED_BYTES = 32
_BLOCK_VALUES = 1 << 20


@dataclass(eq=False)
class _Records:
    """A site's records as trees see them.

    Attributes:
        bins_NF: uint16.
        label_N: float32, 0 or 1.
        labelled_N: False where the label is neither: such a record adds nothing.
        margin_N: What the finished trees of ``model`` say, its base margin not counted.
        finished: How many trees that is.
        model: The version that the margins are of; None before the first.
    """

    bins_NF: NDArray[np.uint16] = field(repr=False)
    label_N: NDArray[np.float32] = field(repr=False)
    labelled_N: NDArray[np.bool_] = field(repr=False)
    margin_N: NDArray[np.float32] = field(repr=False)
    finished: int = 0
    model: TreeModel | None = None


class TreeHistograms:
    """One level's, or one table's, sums; see ``contract.LocalRound``."""

    def __init__(self, job: JobAtSite, trees: Trees) -> None:
        """Take the job.

        Raises:
            PeerError: POLICY: the site's data set lacks a column.
        """
        self.job = job
        self._layout = TreeLayout(trees)
        self._schema = Schema(tuple(job.schema[name] for name in (trees.label, *trees.features)))
        lacking = [name for name in self._schema.names if name not in job.dataset.columns]
        if lacking:
            names = ", ".join(lacking[:5])
            raise PeerError(Reason.POLICY, f"this site's data set has no column {names}")
        self._records: _Records | None = None

    async def start(self) -> None:
        """Bin the records; no code of an app runs."""
        self._records = await asyncio.to_thread(self._read_records)

    async def stop(self) -> None:
        """Forget the records."""
        self._records = None

    async def make_update(self, request: RoundRequest) -> NoisedUpdate:
        """Sum the sampled records, all of them at a sampling rate of 1; none is noise alone.

        Raises:
            PeerError: MALFORMED: the version is no model of the job, or one too many.
            UsageError: The data set holds more records than the job's ``max_records``.
        """
        return await asyncio.to_thread(self._sum, request)

    def _sum(self, request: RoundRequest) -> NoisedUpdate:
        trees = self._layout.trees
        if not 0 <= request.version < trees.sums:
            raise PeerError(Reason.MALFORMED, "the job's trees are all grown at this version")
        model = TreeModel.from_vector(trees, request.model_D)
        turn = self._layout.turn(request.version)
        if self._records is None:
            self._records = self._read_records()
        records = self._records
        _finish_trees(records, model, turn.tree)
        plan, _ = encoding_of(self.job.plan, request.version)
        coins = secrets.token_bytes(_SEED_BYTES)
        taken_N = np.zeros(len(records.label_N), dtype=np.bool_)
        taken_N[poisson_sample(len(taken_N), plan.sampling_rate, coins)] = True
        taken_N &= records.labelled_N
        total = CellSum(plan, self._layout.ranges, secrets.token_bytes(_SEED_BYTES))
        rows = max(1, _BLOCK_VALUES // len(self._layout.ranges))
        for begin in range(0, len(taken_N), rows):
            block = slice(begin, begin + rows)
            cells, values = self._contributions(records, block, model, turn)
            total.add(cells, values, taken_N[block])
        private = plan.mode is not Mode.NONE
        return total.finish(secrets.token_bytes(_SEED_BYTES) if private else None)

    def _contributions(
        self, records: _Records, block: slice, model: TreeModel, turn: Turn
    ) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        """Give cells and values of a block, shapes (R, 2 K): gradients, then curvatures."""
        bins_RF = records.bins_NF[block]
        first = (1 << turn.level) - 1
        node_R = model.nodes(bins_RF, turn.tree, turn.level) - first
        node_R[node_R < 0] = NO_NODE  # at a leaf of a level above
        cells_RK = self._layout.cells(turn, bins_RF, node_R)
        margin_R = records.margin_N[block] + np.float32(model.base_margin)
        with np.errstate(over="ignore"):  # exp of a large margin is infinite, and p is then 0
            p_R = 1 / (1 + np.exp(-margin_R))
        values_RK = np.empty((len(p_R), 2 * cells_RK.shape[1]), dtype=np.float32)
        values_RK[:, : cells_RK.shape[1]] = (p_R - records.label_N[block])[:, np.newaxis]
        weighted_R = np.float32(CURVATURE_WEIGHT) * p_R * (1 - p_R)
        values_RK[:, cells_RK.shape[1] :] = weighted_R[:, np.newaxis]
        return np.concatenate([cells_RK, cells_RK], axis=1), values_RK

    def _read_records(self) -> _Records:
        dataset, edges = self.job.dataset, self._layout.trees.edges
        count = len(dataset)
        bins_NF = np.empty((count, len(edges)), dtype=np.uint16, order="F")
        label_N = np.empty(count, dtype=np.float32)
        rows = max(1, _BLOCK_VALUES // self._schema.width)
        for begin in range(0, count, rows):
            block = slice(begin, min(begin + rows, count))
            rows_RW = dataset.take_rows(np.arange(block.start, block.stop), self._schema)
            label_N[block] = rows_RW[:, 0]
            bins_NF[block] = bin_values(rows_RW[:, 1:], edges)
        labelled_N = (label_N == 0) | (label_N == 1)
        return _Records(bins_NF, label_N, labelled_N, np.zeros(count, dtype=np.float32))


def _finish_trees(records: _Records, model: TreeModel, trees: int) -> None:
    """Bring the margins to those of a version's finished trees, the new ones alone if it can."""
    known = records.model
    done = records.finished
    if known is None or trees < done or not known.agrees(model, done):
        records.margin_N[:] = 0
        done = 0
    records.margin_N += model.margins(records.bins_NF, range(done, trees))
    records.finished, records.model = trees, model
