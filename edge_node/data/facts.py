"""Note, while a column streams by, what its values are like: range, gaps, digest.

Nothing of this leaves the site.
"""

import hashlib
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class ColumnFacts:
    """What one column's values are like.

    Attributes:
        low: Least finite number as the source has it, before it became float32; None without one.
        high: Greatest finite number; None like ``low``.
        missing: How many numbers are NaN.
        infinite: How many are infinite.
        is_whole: Whether every number that is there is a whole one.
        digest: BLAKE2b-128 of the float32 values in order, hexadecimal.
    """

    low: float | None
    high: float | None
    missing: int
    infinite: int
    is_whole: bool
    digest: str


class FactsTally:
    """Gathers one column's facts, block by block."""

    def __init__(self) -> None:
        self._low = np.inf
        self._high = -np.inf
        self._missing = 0
        self._infinite = 0
        self._is_whole = True
        self._digest = hashlib.blake2b(digest_size=16)

    def add(self, values: NDArray[Any], stored: NDArray[np.float32]) -> None:
        """Take in a block.

        Args:
            values: Numbers as the source has them, any shape.
            stored: The same as they are kept.
        """
        if not values.size:
            return
        self._digest.update(np.ascontiguousarray(stored, dtype="<f4").reshape(-1).data)
        finite = values.astype(np.int64) if values.dtype.kind == "b" else values
        if finite.dtype.kind == "f":
            finite = self._set_gaps_apart(finite)
        if finite.size:
            self._low = min(self._low, float(finite.min()))
            self._high = max(self._high, float(finite.max()))
        if self._is_whole and finite.dtype.kind == "f":
            self._is_whole = bool((finite == np.rint(finite)).all())

    def _set_gaps_apart(self, values: NDArray[Any]) -> NDArray[Any]:
        """Count what is not finite and give the rest, flat where anything was left out."""
        there = np.isfinite(values)
        if there.all():
            return values
        missing = int(np.isnan(values).sum())
        self._missing += missing
        self._infinite += int(there.size - np.count_nonzero(there)) - missing
        rest: NDArray[Any] = values[there]
        return rest

    def result(self) -> ColumnFacts:
        """Give the facts of all blocks."""
        some = self._low <= self._high
        return ColumnFacts(
            low=self._low if some else None,
            high=self._high if some else None,
            missing=self._missing,
            infinite=self._infinite,
            is_whole=self._is_whole,
            digest=self._digest.hexdigest(),
        )
