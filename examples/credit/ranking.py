"""Measure how well scores rank customers.

Shapes: N = rows.
"""

import numpy as np
from numpy.typing import NDArray


def auc(scores_N: NDArray[np.floating], labels_N: NDArray[np.floating]) -> float:
    """Return the exact area under the ROC curve, ties counted half; NaN without both classes.

    It is the share of (defaulted, not defaulted) pairs in the right order (Mann-Whitney).
    """
    _, place_N, count_U = np.unique(scores_N, return_inverse=True, return_counts=True)
    mid_rank_U = np.cumsum(count_U) - (count_U - 1) / 2
    positive_N = np.asarray(labels_N) > 0.5
    positives = int(positive_N.sum())
    negatives = len(positive_N) - positives
    if not positives or not negatives:
        return float("nan")
    wins = float(mid_rank_U[place_N][positive_N].sum()) - positives * (positives + 1) / 2
    return wins / (positives * negatives)
