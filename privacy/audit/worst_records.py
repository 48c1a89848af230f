"""Build records that rounding to the grid moves as far as a clipped record can be moved.

D2 holds a term for rounding, and a test with random records never meets it: rounding errors of
random records add up to sqrt(d/12), not sqrt(d)/2, and against the record half of the time. The
records here lie, in every coordinate that they use, just above a half (or, for sums that are
rounded once, just above a whole number over a base just below a half), with the norm that the clip
allows.

Values are so many steps and a power of two of one, which float32 holds exactly.

Shapes: d = integers after the map.
"""

import math

import numpy as np
from numpy.typing import NDArray

from privacy.errors import UsageError

_FLOAT32_BITS = 24
_LEAST_NUDGE = 2.0**-10
_MOST_NUDGE = 2.0**-3


def nudge(norm: float, used: int) -> float:
    """Give what a value lies beside a half: the least that float32 tells from it; grid steps.

    Raises:
        UsageError: The values would be too large to lie beside a half at all.
    """
    bits = math.ceil(math.log2(norm / math.sqrt(used) + 3))
    found = max(_LEAST_NUDGE, 2.0 ** (bits + 1 - _FLOAT32_BITS))
    if found > _MOST_NUDGE:
        raise UsageError(f"a norm of {norm} steps over {used} coordinates is too fine for float32")
    return found


def spread(norm: float, length: int, used: int, offset: float) -> NDArray[np.float64]:
    """Share a norm among the first coordinates, each a whole number plus the offset.

    Args:
        norm: At most this L2 norm, grid steps: C*s.
        length: d.
        used: Coordinates that are not zero.
        offset: Added to the whole numbers, in [0, 1).

    Returns:
        Shape (d,): two neighbouring levels, as many of the higher one as the norm allows.

    Raises:
        UsageError: So many coordinates cannot share the norm.
    """
    if not 1 <= used <= length:
        raise UsageError(f"{used} of {length} coordinates cannot be used")
    low = math.floor(norm / math.sqrt(used) - offset) + offset
    if low <= 0:
        raise UsageError(f"a norm of {norm} steps is too small for {used} coordinates")
    high = low + 1
    more = math.floor((norm**2 - used * low**2) / (high**2 - low**2))
    values_d = np.zeros(length)
    values_d[:used] = low
    values_d[: max(0, min(used, more))] = high
    return values_d


def rounded_up(norm: float, length: int, used: int) -> NDArray[np.float64]:
    """Give a record that nearest rounding raises by almost a half in each coordinate it uses."""
    return spread(norm, length, used, 0.5 + nudge(norm, used))


def over_the_edge(
    norm: float, length: int, used: int
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Give a base and a record whose sum rounds up by one step more than the record, everywhere.

    Returns:
        The base, just below a half in each coordinate used, and the record.
    """
    base_d = np.zeros(length)
    base_d[:used] = 0.5 - nudge(norm, used)
    return base_d, spread(norm, length, used, 2 * nudge(norm, used))
