"""Draw a Poisson sample of record indices with secret coins.

Every record is in the sample with probability floor(q * 2^64) / 2^64, at most q and less than
2^-64 below it, independently of the others (privacy.md, D-REC step 1). The coin of record i is the
i-th little-endian 64-bit integer of AES-256-CTR keyed with the seed; the record is taken when the
integer is below floor(q * 2^64). The accountant's q is then an upper bound of the real rate.
"""

from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from privacy.errors import UsageError
from privacy.keystream import Keystream, Label, check_seed

_BLOCK_ROWS = 1 << 16


def poisson_sample(n_rows: int, sampling_rate: float, seed: bytes) -> NDArray[np.int64]:
    """Draw the indices of a Poisson sample.

    Args:
        n_rows: Records to draw from, at least 0.
        sampling_rate: The public rate q, in (0, 1].
        seed: 32 secret bytes, fresh for every batch; the same seed gives the same sample.

    Returns:
        Increasing indices, int64; possibly none.

    Raises:
        UsageError: An argument is out of range.
    """
    check_seed(seed)
    if n_rows < 0:
        raise UsageError(f"cannot sample from {n_rows} rows")
    if not 0.0 < sampling_rate <= 1.0:  # NaN fails too
        raise UsageError(f"a sampling rate must be in (0, 1], not {sampling_rate}")
    if sampling_rate == 1.0:
        return np.arange(n_rows, dtype=np.int64)
    # A float is a binary fraction, so this is the exact floor, without a rounding of q * 2^64.
    threshold = np.uint64(Fraction(sampling_rate) * 2**64 // 1)
    stream = Keystream(seed, Label.SAMPLE)
    taken = []
    for begin in range(0, n_rows, _BLOCK_ROWS):
        count = min(_BLOCK_ROWS, n_rows - begin)
        coins_N = stream.read(8 * count).view("<u8")
        taken.append(np.flatnonzero(coins_N < threshold) + begin)
    return np.concatenate(taken) if taken else np.empty(0, dtype=np.int64)
