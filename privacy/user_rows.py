"""Add up the rows of each user, in memory of one user's vector and a block (privacy.md, "Ledger").

A user's rows come one after the other, over as many blocks as it takes, and are added in that
order, one by one: what a user's rows give must not depend on how blocks happen to cut them, for
that depends on the other users, and a sum rounded in another order could then differ by a grid step
that belongs to nobody's sensitivity. (``np.add.reduceat`` adds in pairs, whose order such a cut
changes.) The loop below is over the rows of a user, never over users.

Shapes: L = coordinates of a row, N = rows of a block, U = users that end in a block.
"""

import numpy as np
from numpy.typing import NDArray


class UserRows:
    """Rows in, whole users out."""

    def __init__(self, length: int) -> None:
        """Begin without a user.

        Args:
            length: L.
        """
        self._open_L = np.zeros(length)
        self._is_open = False

    @property
    def is_open(self) -> bool:
        """Whether a user's last row is still to come."""
        return self._is_open

    def take(self, rows_NL: NDArray[np.float64], last_N: NDArray[np.bool_]) -> NDArray[np.float64]:
        """Add rows, and give the sums of the users that end here, shape (U, L).

        Args:
            rows_NL: Whole rows, none of them padding; not finite where a row is not.
            last_N: True at the last row of each user.
        """
        count = len(rows_NL)
        if not count:
            return np.empty((0, self._open_L.size))
        ends_U = np.flatnonzero(last_N)
        starts_S = np.append(0, ends_U + 1)
        stops_S = np.append(ends_U + 1, count)
        sums_SL = np.zeros((len(starts_S), self._open_L.size))
        sums_SL[0] = self._open_L
        lengths_S = stops_S - starts_S
        with np.errstate(invalid="ignore"):  # infinities of both signs: the user counts as zero
            for rank in range(int(lengths_S.max())):
                going_S = np.flatnonzero(lengths_S > rank)
                sums_SL[going_S] += rows_NL[starts_S[going_S] + rank]
        self._open_L = sums_SL[-1].copy()
        self._is_open = bool(lengths_S[-1])
        return sums_SL[:-1]
