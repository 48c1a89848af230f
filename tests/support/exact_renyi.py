"""Exact Renyi divergences of Skellam laws, summed over the integers in log space."""

import functools
import math

import numpy as np
from scipy import special


@functools.lru_cache(maxsize=32)
def log_pmf_upto(V, reach):
    """Give log P(X = k), k = 0..reach, for a symmetric Skellam of variance V: e^-V I_k(V).

    Ratios of neighbouring Bessel functions by their continued fraction, downwards (stable): the
    functions themselves underflow far out, where high orders still look.
    """
    logs_K = np.empty(reach + 1)
    logs_K[0] = math.log(special.ive(0, V))
    ratio = 0.0
    ratios_K = np.empty(reach + 1)
    for k in range(reach + 200, 0, -1):
        ratio = 1 / (2 * k / V + ratio)
        if k <= reach:
            ratios_K[k] = ratio
    logs_K[1:] = logs_K[0] + np.cumsum(np.log(ratios_K[1:]))
    return logs_K


def log_pmf(V, support_K):
    return log_pmf_upto(V, int(np.abs(support_K).max()))[np.abs(support_K)]


def renyi(alpha, log_p_K, log_q_K):
    terms_K = alpha * log_p_K + (1 - alpha) * log_q_K
    total = special.logsumexp(terms_K)
    # The ends of the support must not matter, else the check would be too easy to pass.
    assert max(terms_K[0], terms_K[-1]) < total - 25
    return total / (alpha - 1)


def mixture(q, log_p_K, log_q_K):
    return np.logaddexp(math.log(q) + log_p_K, math.log1p(-q) + log_q_K)
