"""Draw the rows of one step with secret coins, filled up to a public number of rows.

How long a step takes must not tell how many records the secret coins chose, for "ready" is sent
when it ends (privacy.md: no timing that depends on data leaves a site). So each step hands over as
many rows as the largest draw that ever comes (`rows_a_step`): the sampled ones, then padding, which
is evaluated, clipped and summed like the others under a mask. Where the unit is a user, every user
takes the same number of rows, however many are filled. What is left: the number of rows follows
from the size of the site's data set, which therefore shows; a draw above the bound, one in about
10^9 steps, takes longer; and neither gathering rows nor float arithmetic is constant-time in its
values.

Shapes: N = rows of a step, W = numbers of a row, S = users drawn, R = rows of a user.
"""

import math
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from edge_node.data import Dataset
from edge_node.tasks.batches import padding_row
from privacy.sampling import poisson_sample
from tidegate.jobfile import PrivacyUnit
from tidegate.schema import Schema

_USER = "user"


def rows_a_step(n_units: int, sampling_rate: float) -> int:
    """Give how many units a step has room for: more than a Poisson sample but once in 10^9.

    Six standard deviations above the mean, and six more where the mean is small; never more than
    there are.

    Args:
        n_units: Records, or users, of the site's data set.
        sampling_rate: The public rate q.
    """
    mean = n_units * sampling_rate
    return min(n_units, math.ceil(mean + 6 * math.sqrt(mean) + 6))


@dataclass(frozen=True)
class DrawnRows:
    """The rows of one step.

    Attributes:
        rows_NW: float32, shape (N, W): sampled rows and padding.
        real_N: True where a row was sampled.
        last_N: True at the last row of each user; None where the unit is a record.
        shares_N: What a row's metrics weigh, so that those of a user are a mean over its rows:
            one over the rows of its user that are used; 1 where the unit is a record.
    """

    rows_NW: NDArray[np.float32] = field(repr=False)
    real_N: NDArray[np.bool_] = field(repr=False)
    last_N: NDArray[np.bool_] | None = field(repr=False)
    shares_N: NDArray[np.float32] = field(repr=False)

    def lasts(self, rows: slice) -> NDArray[np.bool_] | None:
        """Give `last_N` of some rows."""
        return None if self.last_N is None else self.last_N[rows]


class RowDraw:
    """Where a job's rows are drawn from."""

    def __init__(
        self, dataset: Dataset, schema: Schema, unit: PrivacyUnit, sampling_rate: float
    ) -> None:
        """Take the data, the columns of a row, whose contribution is hidden, and the public rate.

        Raises:
            UsageError: The unit's column cannot tell users apart.
        """
        self._dataset = dataset
        self._schema = schema
        self._rate = sampling_rate
        self._rows_each = unit.max_rows if unit.kind == _USER else 1
        self._groups = dataset.groups(unit.column) if unit.kind == _USER else None
        self._padding_W = padding_row(schema)

    def draw(self, coins: bytes) -> DrawnRows:
        """Draw a Poisson sample; an empty one is padding alone.

        Args:
            coins: 32 secret bytes, fresh for every step.
        """
        if self._groups is None:
            indices = poisson_sample(len(self._dataset), self._rate, coins)
            n_rows = max(rows_a_step(len(self._dataset), self._rate), len(indices))
            real_N = np.arange(n_rows) < len(indices)
            ones_N = np.ones(n_rows, dtype=np.float32)
            return DrawnRows(self._padded(indices, n_rows), real_N, None, ones_N)
        users_S = poisson_sample(len(self._groups), self._rate, coins)
        indices_SR, valid_SR = self._groups.rows_of(users_S, self._rows_each)
        n_rows = max(rows_a_step(len(self._groups), self._rate), len(users_S)) * self._rows_each
        rows_NW = self._padded(indices_SR.reshape(-1), n_rows)
        real_N = np.zeros(n_rows, dtype=np.bool_)
        real_N[: valid_SR.size] = valid_SR.reshape(-1)
        # A user's real rows come first among its slots, and each user has at least one.
        last_N = np.zeros(n_rows, dtype=np.bool_)
        counts_S = valid_SR.sum(axis=1)
        last_N[np.arange(len(users_S)) * self._rows_each + counts_S - 1] = True
        shares_N = np.ones(n_rows, dtype=np.float32)
        shares_N[: valid_SR.size] = np.repeat(1.0 / counts_S, self._rows_each)
        rows_NW[~real_N] = self._padding_W
        return DrawnRows(rows_NW, real_N, last_N, shares_N)

    def _padded(self, indices: NDArray[np.int64], n_rows: int) -> NDArray[np.float32]:
        rows_NW = np.empty((n_rows, self._schema.width), dtype=np.float32)
        rows_NW[: len(indices)] = self._dataset.take_rows(indices, self._schema)
        rows_NW[len(indices) :] = self._padding_W
        return rows_NW
