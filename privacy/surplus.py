"""Let a sum lose the noise that it needs only where more sites had dropped out.

Each site adds V_0 = V/(N_min - c), as if just N_min survived. With |U3| = m survivors the sum then
holds more than the accountant counts with. So a site draws its share as independent parts, for
public levels N_min = l_0 < l_1 < ... < l_L: with m >= l_k a share of variance v_k is enough, where

    v_0 = V_0,  v_k = ceil(V_0 * (N_min - c) / (l_k - c)),

hence the parts v_L (the base, never revealed) and e_k = v_(k-1) - v_k, k = 1..L. Skellam variables
add up, so all parts together are exactly the share of variance V_0 that a job without levels draws.
After step 4 of SA-1 each survivor has revealed the seeds of e_1..e_k for the largest l_k <= m, and
the aggregator takes these parts off. The idea is XNoise's: Jiang et al., "Dordis: Efficient
Federated Learning with Dropout-Resilient Differential Privacy", EuroSys 2024, arXiv 2209.12528.

Why the charge stays V: a seed leaves a site only with slot 4, on T signatures for one U3 of size m.
T = floor(2n/3) + 1 and n >= 3c, so no second U3 finds a quorum, and only the sum over all honest
members of that U3 opens. There are at least m - c >= l_k - c of them, and each has kept parts of
variance v_k or more: together at least v_k * (l_k - c) >= V_0 * (N_min - c), what the ledger was
charged with, without rounding. What was revealed is independent of the data and of what is kept,
so it is no more than post-processing. A survivor that does not answer only leaves more noise in.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise

MAX_LEVELS = 4
"""Each level is one more part to draw at every site, and one more table at the aggregator."""


@dataclass(frozen=True)
class NoiseLevel:
    """What a share needs at least where this many sites survive.

    Attributes:
        survivors: l_k.
        variance: v_k, grid units squared.
    """

    survivors: int
    variance: int


@dataclass(frozen=True)
class NoiseShare:
    """One site's share of the noise, in the parts that it is drawn in.

    Attributes:
        variance: V_0, of all parts together, grid units squared.
        levels: Ascending by survivors, variances descending; none where nothing is ever revealed.
    """

    variance: int
    levels: tuple[NoiseLevel, ...] = ()

    @property
    def base(self) -> int:
        """Return the variance of the part that is never revealed."""
        return self.levels[-1].variance if self.levels else self.variance

    @property
    def increments(self) -> tuple[int, ...]:
        """Return e_1..e_L: the variances of the parts whose seeds may be revealed."""
        steps = (self.variance, *(level.variance for level in self.levels))
        return tuple(above - below for above, below in pairwise(steps))

    @property
    def is_valid(self) -> bool:
        """Whether the levels make parts of a variance of at least 1 each."""
        survivors = [level.survivors for level in self.levels]
        return (
            len(self.levels) <= MAX_LEVELS
            and survivors == sorted(set(survivors))
            and all(part >= 1 for part in (self.base, *self.increments))
        )


def levels_reached(level_survivors: Iterable[int], survivors: int) -> int:
    """Count the levels that a survivor set reaches: as many seeds does each survivor reveal.

    Args:
        level_survivors: l_1..l_L.
        survivors: |U3|.
    """
    return sum(level <= survivors for level in level_survivors)


def choose_levels(
    variance: int, min_survivors: int, colluders: int, most: int
) -> tuple[NoiseLevel, ...]:
    """Spread at most `MAX_LEVELS` levels evenly above N_min, up to the most survivors expected.

    Public constants only go in. A level that would lower no share is left out.

    Args:
        variance: V_0 of a share, a whole number, at least 1.
        min_survivors: N_min.
        colluders: c, below N_min.
        most: Survivors of a round in which nobody is lost.
    """
    room = most - min_survivors
    count = min(MAX_LEVELS, max(0, room))
    needed = variance * (min_survivors - colluders)
    levels: list[NoiseLevel] = []
    before = variance
    for number in range(1, count + 1):
        survivors = min_survivors + number * room // count
        enough = -(-needed // (survivors - colluders))  # rounded up
        if enough < before:
            levels.append(NoiseLevel(survivors, enough))
            before = enough
    return tuple(levels)
