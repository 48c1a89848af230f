"""Stage 10: take the masks off a folded sum, with the terms that SA-1's state machine gives."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from aggregator.fold import FoldedSum
from privacy.secagg import masking
from privacy.secagg.messages import MaskTerm


@dataclass(frozen=True, eq=False, repr=False)
class UnmaskedSum:
    """The exact sum of the updates of a survivor set; the only type that ``decode`` is given.

    Attributes:
        values_d: uint32 below 2^B, shape (d,).
        bits: B.
        updates: How many updates it holds.
    """

    values_d: NDArray[np.uint32]
    bits: int
    updates: int


def unmask(folded: FoldedSum, terms: Sequence[MaskTerm]) -> UnmaskedSum:
    """Apply the terms to the folded sum, in place: exact, or noise to anybody without all terms.

    Args:
        folded: Of exactly the survivor set that the terms are for.
        terms: From ``UnmaskSum``.
    """
    masking.unmask(folded.values_d, terms, folded.bits)
    return UnmaskedSum(folded.values_d, folded.bits, folded.updates)
