"""Who shares masks and shares with whom: complete up to 200 sites, a sparse ring above.

The sparse graph is a circulant: the sites stand on a ring in an order that nobody could choose, and
each is a neighbour of the k/2 sites before and the k/2 after it (Bell et al., CCS 2020, with a ring
in place of their random graph, so that connectivity can be checked by every site by itself).

The order comes from ``seed = H("graph", rh, r_1, ..., r_n)`` (docs/protocol.md, section 12).
Nobody can try orders out. Each bundle commits to its r before a roster is cut and rh covers all
bundles, so a roster has one seed only, whatever is revealed to whom. An honest site reveals r only
after the roster is durable in its slot 0, where no other one fits for that ctx, and its bundle is
burnt with it. So whoever knows the seed of a roster has already bound every honest member to some
roster; a sum needs T > (n + c)/2 signatures, hence more than half of the honest members bound to
this one before its seed was known. One ctx gives one draw that can matter; a withheld reveal only
burns it; and a site takes part in at most ``rules.MAX_ATTEMPTS`` sparse attempts a round, by a
number that is durable and strictly rises.

Connectivity: among any k/2 ring positions in a row are at most c_w colluders, but with probability
2^-40 (``most_colluders``). Where each such window holds c_w + 1 survivors, one of them is honest,
so from each honest survivor to the next on the ring are at most k/2 steps: they are neighbours, and
the honest survivors are one connected piece, as far as each was told of the same U2. Who was told
another one, and so did not sign, stays masked: t > k/2 + 1 + c_w (``rules``, docs/adr/0011). Nobody
can cut an arc off and learn its sum alone.
"""

from bisect import bisect_left
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from functools import lru_cache
from math import comb

import numpy as np
import numpy.typing as npt

from privacy.secagg.encoding import Label, hash_of

SECURITY_BITS = 40
"""Colluders are bounded but with probability 2^-40, over the ring's order."""


@dataclass(frozen=True)
class GraphRule:
    """Which graph a cohort gets: constants of the protocol. Only tests take others, to be small.

    Attributes:
        complete_up_to: Sites up to which the graph is complete.
        degree: k, even.
        shares: Least t of the k + 1 holders, the owner included; colluders raise it (``rules``).
        lossy_degree: k where the manifest expects more drop-outs than ``lossy_above_percent``.
        lossy_shares: Least t there.
        lossy_above_percent: See ``lossy_degree``.
        colluder_percent: Sparse cohorts need c of at most so much of n.
    """

    complete_up_to: int = 200
    degree: int = 128
    shares: int = 77
    lossy_degree: int = 160
    lossy_shares: int = 96
    lossy_above_percent: int = 20
    colluder_percent: int = 20

    def is_sparse(self, n: int) -> bool:
        """Whether a cohort of n sites is too large for the complete graph."""
        return n > self.complete_up_to

    def neighbourhood(self, dropout_percent: int) -> tuple[int, int]:
        """Return k and t of the sparse graph for a manifest's expected drop-out."""
        if dropout_percent > self.lossy_above_percent:
            return self.lossy_degree, self.lossy_shares
        return self.degree, self.shares


STANDARD = GraphRule()


@dataclass(frozen=True)
class Graph:
    """Neighbourhoods of one cohort; sites by their index from 1.

    Attributes:
        ring: Every index, in ring order.
        degree: k, even; n - 1 (of either parity) is the complete graph.
    """

    ring: tuple[int, ...]
    degree: int
    _holders: dict[int, tuple[int, ...]] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )
    _position: dict[int, int] = field(init=False, repr=False, compare=False)
    _everyone: tuple[int, ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Find each site's place."""
        places = {index: place for place, index in enumerate(self.ring)}
        object.__setattr__(self, "_position", places)
        object.__setattr__(self, "_everyone", tuple(sorted(self.ring)))

    @classmethod
    def complete(cls, n: int) -> "Graph":
        """Return the complete graph on 1..n."""
        return cls(tuple(range(1, n + 1)), n - 1)

    @classmethod
    def circulant(cls, n: int, degree: int, seed: bytes) -> "Graph":
        """Return the ring of 1..n in the order of H("ring", seed, index), with k neighbours each.

        Args:
            n: Sites, more than ``degree``.
            degree: k, even.
            seed: ``statements.graph_seed``.
        """
        ring = sorted(range(1, n + 1), key=lambda index: hash_of(Label.RING, seed, index))
        return cls(tuple(ring), degree)

    @property
    def is_complete(self) -> bool:
        """Whether everybody is everybody's neighbour."""
        return self.degree == len(self.ring) - 1

    def holders(self, owner: int) -> tuple[int, ...]:
        """Return who holds a share of the owner's secrets: N(owner) and itself, ascending."""
        if self.is_complete:
            return self._everyone
        found = self._holders.get(owner)
        if found is None:
            reach, n = self.degree // 2, len(self.ring)
            place = self._position[owner]
            around = (self.ring[at % n] for at in range(place - reach, place + reach + 1))
            found = self._holders[owner] = tuple(sorted(around))
        return found

    def neighbours(self, index: int) -> tuple[int, ...]:
        """Return N(i), ascending."""
        return tuple(j for j in self.holders(index) if j != index)

    def rank(self, owner: int, holder: int) -> int:
        """Return a holder's place, from 0, among ``holders(owner)``."""
        return bisect_left(self.holders(owner), holder)

    def are_neighbours(self, one: int, other: int) -> bool:
        """Whether two different sites are neighbours."""
        steps = abs(self._position[one] - self._position[other])
        return self.is_complete or min(steps, len(self.ring) - steps) <= self.degree // 2

    def least_covered(self, owners: Iterable[int], present: Collection[int]) -> int:
        """Return the fewest sites present among ``holders(owner)``, over all owners."""
        if self.is_complete:
            return len(present)
        counts = self._windows(present, self.degree + 1)
        reach, n = self.degree // 2, len(self.ring)
        return min(int(counts[(self._position[owner] - reach) % n]) for owner in owners)

    def least_in_window(self, present: Collection[int]) -> int:
        """Return the fewest sites present among k/2 ring positions in a row, over all n windows."""
        return int(self._windows(present, self.degree // 2).min())

    def _windows(self, present: Collection[int], width: int) -> npt.NDArray[np.int64]:
        """Count who is present from each ring position on, ``width`` positions in a row."""
        n = len(self.ring)
        there = np.zeros(n, dtype=np.int64)
        there[[self._position[index] for index in present]] = 1
        sums = np.concatenate(([0], np.cumsum(np.concatenate((there, there[: width - 1])))))
        counts: npt.NDArray[np.int64] = sums[width:] - sums[:-width]
        return counts


@lru_cache(maxsize=64)
def most_colluders(n: int, colluders: int, drawn: int, places: int) -> int:
    """Bound the colluders in every one of ``places`` sets of ``drawn`` random ring positions.

    The ring's order is uniform and independent of who colludes, so the number in one set is
    hypergeometric; its tail is summed exactly in integers, and the sets by the union bound.

    Args:
        n: Sites that are drawn from.
        colluders: c of them, fixed before the order was.
        drawn: Positions a set.
        places: Number of sets.

    Returns:
        The least x with places * P[more than x colluders in one set] <= 2^-SECURITY_BITS.
    """
    ways, tail = comb(n, drawn), 0
    for count in range(min(colluders, drawn), 0, -1):
        tail += comb(colluders, count) * comb(n - colluders, drawn - count)
        if (tail * places) << SECURITY_BITS > ways:
            return count
    return 0
