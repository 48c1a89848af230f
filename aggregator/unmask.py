"""Stage 10: take the masks off a folded sum, with the terms that SA-1's state machine gives.

Slices of the vector are shared out to the cores: AES and numpy let go of the interpreter's lock.
"""

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
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


def unmask(folded: FoldedSum, terms: Sequence[MaskTerm], workers: int | None = None) -> UnmaskedSum:
    """Apply the terms to the folded sum, in place: exact, or noise to anybody without all terms.

    Args:
        folded: Of exactly the survivor set that the terms are for.
        terms: From ``UnmaskSum``.
        workers: Threads; by default as many as this process may use cores.
    """
    values_d, bits = folded.values_d, folded.bits

    def take_off(begin: int) -> None:
        masking.unmask(values_d[begin : begin + masking.SLICE_WORDS], terms, bits, begin)

    begins = range(0, values_d.size, masking.SLICE_WORDS)
    threads = min(workers or len(os.sched_getaffinity(0)), len(begins))
    if threads <= 1:
        for begin in begins:
            take_off(begin)
    else:
        with ThreadPoolExecutor(threads) as pool:
            for _ in pool.map(take_off, begins):
                pass
    return UnmaskedSum(values_d, bits, folded.updates)
