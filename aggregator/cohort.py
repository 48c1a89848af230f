"""Decide when the ready sites make a cohort: ready first, then aggregate.

Sites train for as long as they need and say when they are ready; only then is a cohort cut, and
only out of ready ones: a slow site never holds up an exchange (architecture.md section 2).
"""

import hashlib
from collections.abc import Collection
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

from privacy.errors import PeerError, UsageError
from privacy.pipeline import Mode
from privacy.secagg.encoding import hash_of
from privacy.secagg.graph import STANDARD, GraphRule
from privacy.secagg.messages import Fingerprint
from privacy.secagg.rules import DEFAULT_DROPOUT_PERCENT, thresholds
from tidegate.jobfile import LEAST_GROUP_SITES, JobFile
from tidegate.manifest import Manifest


@dataclass(frozen=True)
class GroupRule:
    """Into how many groups a round's cohort falls; each runs an attempt of its own (ADR 14).

    Attributes:
        count: 1 where the cohort stays whole.
        least_opened: The fewest groups whose sums must open for the round to be done.
        least_sites: The fewest sites of a group, beside what the manifest asks.
    """

    count: int = 1
    least_opened: int = 1
    least_sites: int = 1


@dataclass(frozen=True)
class CohortRule:
    """When a cohort is cut.

    Attributes:
        colluders: c of the manifest.
        min_survivors: N_min of the manifest.
        target_sites: Cut as soon as this many are ready.
        deadline_s: Seconds from the start of a round after which it is cut without the others.
        groups: See ``GroupRule``.
        dropout_percent: Of the manifest.
        shares_noise: The job's noise is shared among the sites, so the sparse graph is not for it.
        graph: Of the protocol; tests take another, to be small.
    """

    colluders: int
    min_survivors: int
    target_sites: int
    deadline_s: float
    groups: GroupRule = GroupRule()
    dropout_percent: int = DEFAULT_DROPOUT_PERCENT
    shares_noise: bool = False
    graph: GraphRule = STANDARD

    @property
    def group_sites(self) -> int:
        """Return the fewest sites of one secure sum: max(3c, N_min), by SA-1's threat model."""
        return max(3 * self.colluders, self.min_survivors, self.groups.least_sites)

    @property
    def min_sites(self) -> int:
        """Return the fewest sites of a cohort: what one sum needs, for each of its groups."""
        return self.groups.count * self.group_sites

    def size_of(self, ready: int) -> int:
        """Return how many of the ready sites make the largest cohort; 0 if none do.

        All of them, or where the sparse graph is not for them, those that the complete one takes.
        """
        for size in (ready, self.groups.count * self.graph.complete_up_to):
            if self.min_sites <= size <= ready and self._carries(size):
                return size
        return 0

    def _carries(self, size: int) -> bool:
        for each in {size // self.groups.count, -(-size // self.groups.count)}:
            if self.shares_noise and self.graph.is_sparse(each):
                return False
            try:
                self._thresholds(each)
            except PeerError:
                return False
        return True

    def __post_init__(self) -> None:
        """Refuse a target that could never be a cohort.

        Raises:
            UsageError: It is below max(3c, N_min), of each group where there are groups, or needs a
                sparse graph that is refused.
        """
        if self.target_sites >= self.min_sites:
            self._check_sparse()
            return
        if self.groups.count > 1:
            raise UsageError(
                f"[robust] {self.groups.count} groups of at least {self.group_sites} sites, which"
                f" the manifest asks of each, are {self.min_sites}: [round] target_sites ="
                f" {self.target_sites} is too few. Raise it, take fewer groups, or leave [robust]"
                " out"
            )
        raise UsageError(
            f"[round] target_sites = {self.target_sites} is fewer than the"
            f" {self.min_sites} sites that the manifest asks of a cohort"
        )

    def _check_sparse(self) -> None:
        """Refuse a target whose sums would need a sparse graph that is not for them."""
        most = -(-self.target_sites // self.groups.count)
        if self.graph.is_sparse(most) and self.shares_noise:
            raise UsageError(
                f"[round] target_sites = {self.target_sites} asks for sums over {most} sites, more"
                f" than the {self.graph.complete_up_to} of a complete graph. The sparse graph above"
                " is not for modes whose noise is shared among sites (record-distributed, site), as"
                " how many honest sites one sum holds is not promised there. Lower it, or use"
                " mode record-local"
            )
        try:
            self._thresholds(most)
        except PeerError as error:
            raise UsageError(
                f"[round] target_sites = {self.target_sites} cannot be a cohort: {error.args[0]}"
            ) from error

    def _thresholds(self, sites: int) -> None:
        """Refuse a secure sum over so many sites where the protocol does."""
        least, percent = self.min_survivors, self.dropout_percent
        thresholds(sites, self.colluders, least, percent, self.graph)


def cohort_rule(job: JobFile, manifest: Manifest, graph: GraphRule = STANDARD) -> CohortRule:
    """Read when cohorts of a job are cut, and into how many groups.

    Args:
        job: The job file.
        manifest: Of the consortium.
        graph: See ``CohortRule``.

    Raises:
        UsageError: The job asks for cohorts that the manifest does not allow.
    """
    groups, robust = GroupRule(), job.robust
    if robust is not None:
        groups = GroupRule(robust.groups, robust.least_groups, LEAST_GROUP_SITES)
    rules = job.round
    return CohortRule(
        manifest.colluders,
        manifest.min_survivors,
        rules.target_sites,
        rules.deadline_s,
        groups,
        manifest.dropout_percent,
        Mode(job.privacy.mode).shares_noise,
        graph,
    )


def choose(
    ready: Collection[Fingerprint], rule: CohortRule, seed: bytes, draw: int
) -> tuple[Fingerprint, ...]:
    """Choose the cohort out of the ready sites: all, or where they are too many, some at random.

    Args:
        ready: Sites that ``may_cut`` found to be enough.
        rule: See ``CohortRule``.
        seed: As for ``draw_groups``.
        draw: Likewise.
    """
    order = sorted(ready, key=lambda site: hash_of("cut", seed, draw, site))
    return tuple(sorted(order[: rule.size_of(len(ready))]))


def may_cut(
    ready: AbstractSet[Fingerprint],
    training: AbstractSet[Fingerprint],
    rule: CohortRule,
    *,
    late: bool,
) -> bool:
    """Say whether the ready sites are a cohort now.

    Args:
        ready: Sites with an update and a key bundle.
        training: Connected sites that may still become ready in this round.
        rule: See ``CohortRule``.
        late: The round's deadline is past.
    """
    if not rule.size_of(len(ready)):
        return False
    return late or not training or len(ready) >= rule.target_sites


def draw_groups(
    sites: Collection[Fingerprint], count: int, seed: bytes, draw: int
) -> tuple[tuple[Fingerprint, ...], ...]:
    """Draw a cohort's groups at random, of sizes that differ by one at most.

    The order of SHA-256(seed, draw, site) is a random one to whoever does not know the seed: no
    site can choose the group that it comes into, nor who else is in it.

    Args:
        sites: The cohort.
        count: How many groups, 1 to ``len(sites)``.
        seed: 32 random bytes, fresh for the round and kept to the aggregator.
        draw: Which draw of the round it is, from 1: every try is drawn anew.

    Returns:
        Sorted fingerprints of each group.
    """

    def place(site: Fingerprint) -> bytes:
        return hashlib.sha256(seed + draw.to_bytes(8, "big") + site).digest()

    shuffled = sorted(sites, key=place)
    return tuple(tuple(sorted(shuffled[index::count])) for index in range(count))
