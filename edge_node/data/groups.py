"""Find the rows of each user, for privacy whose unit is a user.

Who a user is stays here: a user is a number from 0 that was given out locally.

Shapes: U = users, N = rows that have a user, S = users drawn, R = rows of a user that are used.
"""

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

NOBODY = -1
"""The number of a row without a user. No draw ever has it, for nobody's budget covers it."""


@dataclass(frozen=True)
class RowGroups:
    """The rows of a data set by user.

    Attributes:
        first_U: Where each user's rows begin in ``rows_N``.
        counts_U: How many they are, each at least 1.
        rows_N: Row numbers, user after user, ascending within a user.
    """

    first_U: NDArray[np.int64] = field(repr=False)
    counts_U: NDArray[np.int64] = field(repr=False)
    rows_N: NDArray[np.int64] = field(repr=False)

    def __len__(self) -> int:
        return len(self.counts_U)

    def rows_of(
        self, users_S: NDArray[np.int64], most: int
    ) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        """Give the rows of some users, at most ``most`` each: the first in the data set's order.

        Which rows are used depends on the user's own rows alone, so one user more or less changes
        no other user's rows.

        Args:
            users_S: Numbers of users, from 0, shape (S,); S may be 0.
            most: R, at least 1.

        Returns:
            Row numbers, int64, shape (S, R), and which of them are real, bool, shape (S, R); the
            others name row 0 and must be masked.

        Raises:
            ValueError: ``most`` is below 1.
        """
        if most < 1:
            raise ValueError(f"most must be at least 1, not {most}")
        slots_R = np.arange(most, dtype=np.int64)
        valid_SR = slots_R < self.counts_U[users_S, None]
        places_SR = np.where(valid_SR, self.first_U[users_S, None] + slots_R, 0)
        if not len(self.rows_N):
            return np.zeros(valid_SR.shape, dtype=np.int64), valid_SR
        return np.where(valid_SR, self.rows_N[places_SR], 0), valid_SR


def group_rows(codes: NDArray[np.int64]) -> RowGroups:
    """Group the rows of a data set by their users' codes.

    Args:
        codes: One for each row of the data set, any whole numbers from 0; ``NOBODY`` where a row
            has no user.
    """
    order = np.argsort(codes, kind="stable")
    rows_N = order[np.searchsorted(codes, 0, sorter=order) :].astype(np.int64, copy=False)
    _, first_U, counts_U = np.unique(codes[rows_N], return_index=True, return_counts=True)
    return RowGroups(first_U.astype(np.int64), counts_U.astype(np.int64), rows_N)
