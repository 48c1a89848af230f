"""Combine the means of a round's groups so that a minority of poisoned groups moves nothing far.

Post-processing of what the groups' secure sums have published. A coordinate of the median lies
between the values of two honest groups as long as fewer than half of the groups are poisoned; one
of the trimmed mean, within the honest ones as long as no more are than are trimmed (Yin et al.,
ICML 2018, arXiv 1803.01498, there over single sites).

Shapes: G = groups, D = coordinates.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from privacy.errors import UsageError
from tidegate.jobfile import Combine, Robust

_CHUNK = 1 << 16  # coordinates sorted at once: the working array stays in cache


def combine(means_GD: Sequence[NDArray[np.float64]], rule: Robust) -> NDArray[np.float64]:
    """Give the median or the trimmed mean of the groups' means, coordinate by coordinate.

    Args:
        means_GD: One vector a group, each of shape (D,), finite.
        rule: Which of the two, and how much is trimmed. Of an even number of groups the median is
            the mean of the two in the middle.

    Raises:
        UsageError: Fewer groups than the rule needs.
    """
    if len(means_GD) < rule.least_groups:
        raise UsageError(f"{len(means_GD)} groups opened, {rule.least_groups} are needed")
    combined_D = np.empty_like(means_GD[0])
    for begin in range(0, combined_D.size, _CHUNK):
        part = slice(begin, begin + _CHUNK)
        sorted_GD = np.sort(np.stack([mean_D[part] for mean_D in means_GD]), axis=0)
        kept = slice(rule.trim, len(means_GD) - rule.trim)
        if rule.combine is Combine.MEDIAN:
            middle = (len(means_GD) - 1) // 2
            kept = slice(middle, len(means_GD) - middle)
        combined_D[part] = sorted_GD[kept].mean(axis=0)
    return combined_D
