"""Bound epsilon from below by guessing which canaries were in, in one run of the mechanism.

Steinke, Nasr, Jagielski, *Privacy Auditing with One (1) Training Run* (2023), arXiv 2305.08846,
theorem 5.2: m canaries are each in or out by a fair coin; an auditor who sees only the outputs
makes r guesses and abstains from the rest; v are right. If the mechanism is (epsilon, delta)-DP
with respect to one canary, then

    P[right >= v] <= beta + 2 m delta * max_(1 <= i <= v) (P[W >= v - i] - P[W >= v]) / i

with W ~ Binomial(r, e^epsilon / (1 + e^epsilon)) and beta = P[W >= v]. An epsilon at which this is
below the significance is refuted. A bound below the claim proves nothing: it only fails to refute.

Shapes: M = canaries.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from privacy.errors import UsageError

SHARES = (0.02, 0.05, 0.1, 0.25, 0.5)
"""Guesses on each side as shares of m, fixed in advance: the significance is split among them."""

_STEPS = 40  # bisections: far finer than any use of the bound
_MOST = 64.0  # e^-64 is beyond what float64 tells from one


@dataclass(frozen=True)
class LowerBound:
    """What the guesses refute.

    Attributes:
        epsilon: Every smaller epsilon is refuted at the significance; 0 if none is.
        right: Right guesses of the best number of guesses.
        guesses: That number, r.
    """

    epsilon: float
    right: int
    guesses: int


def guess_p_value(canaries: int, guesses: int, right: int, epsilon: float, delta: float) -> float:
    """Bound the chance of so many right guesses if the mechanism is (epsilon, delta)-DP.

    Args:
        canaries: m.
        guesses: r, at most m.
        right: v, at most r.
        epsilon: Claimed, at least 0.
        delta: Claimed, in [0, 1).

    Raises:
        UsageError: The counts make no sense.
    """
    if not 0 <= right <= guesses <= canaries:
        raise UsageError(f"{right} right of {guesses} guesses on {canaries} canaries make no sense")
    share = 1 / (1 + math.exp(-epsilon))
    beta = float(stats.binom.sf(right - 1, guesses, share))
    if not right or not delta:
        return min(1.0, beta)
    # P[W >= v - i] - P[W >= v] is the mass at v - i .. v - 1.
    mass = stats.binom.pmf(np.arange(right - 1, -1, -1), guesses, share)
    steepest = float((np.cumsum(mass) / np.arange(1, right + 1)).max())
    return min(1.0, beta + 2 * canaries * delta * steepest)


def epsilon_refuted(
    canaries: int, guesses: int, right: int, delta: float, significance: float
) -> float:
    """Give the epsilon below which every claim is refuted; 0 if not even 0 is."""
    if guess_p_value(canaries, guesses, right, 0.0, delta) > significance:
        return 0.0
    low, high = 0.0, _MOST
    for _ in range(_STEPS):
        middle = (low + high) / 2
        if guess_p_value(canaries, guesses, right, middle, delta) > significance:
            high = middle
        else:
            low = middle
    return low


def lower_bound(
    scores_M: NDArray[np.float64],
    included_M: NDArray[np.bool_],
    delta: float,
    significance: float,
    shares: Sequence[float] = SHARES,
) -> LowerBound:
    """Guess "in" for the highest scores, "out" for the lowest, and bound epsilon.

    Several numbers of guesses are tried, each at its part of the significance (Bonferroni), so the
    bound holds at the whole.

    Args:
        scores_M: What the auditor saw of each canary, higher when it was in.
        included_M: The coins.
        delta: Of the claim.
        significance: Chance of an epsilon above the truth that is accepted.
        shares: Guesses on each side, as shares of m.

    Raises:
        UsageError: The shapes differ, or no share makes a guess.
    """
    count = scores_M.size
    if scores_M.shape != included_M.shape or scores_M.ndim != 1:
        raise UsageError(f"scores {scores_M.shape} and coins {included_M.shape} do not match")
    order_M = np.argsort(-scores_M, kind="stable")
    sides = sorted({math.floor(share * count) for share in shares} - {0})
    if not sides or 2 * sides[-1] > count:
        raise UsageError(f"no share of {tuple(shares)} makes guesses on {count} canaries")
    found = []
    for side in sides:
        right = int(included_M[order_M[:side]].sum() + (~included_M[order_M[-side:]]).sum())
        epsilon = epsilon_refuted(count, 2 * side, right, delta, significance / len(sides))
        found.append(LowerBound(epsilon, right, 2 * side))
    return max(found, key=lambda bound: bound.epsilon)
