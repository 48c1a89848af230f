"""Decide when the ready sites make a cohort: ready first, then aggregate.

Sites train for as long as they need and say when they are ready; only then is a cohort cut, and
only out of ready ones: a slow site never holds up an exchange (architecture.md section 2).
"""

import hashlib
from collections.abc import Collection
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

from privacy.errors import UsageError
from privacy.secagg.messages import Fingerprint
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
    """

    colluders: int
    min_survivors: int
    target_sites: int
    deadline_s: float
    groups: GroupRule = GroupRule()

    @property
    def group_sites(self) -> int:
        """Return the fewest sites of one secure sum: max(3c, N_min), by SA-1's threat model."""
        return max(3 * self.colluders, self.min_survivors, self.groups.least_sites)

    @property
    def min_sites(self) -> int:
        """Return the fewest sites of a cohort: what one sum needs, for each of its groups."""
        return self.groups.count * self.group_sites

    def __post_init__(self) -> None:
        """Refuse a target that could never be a cohort.

        Raises:
            UsageError: It is below max(3c, N_min), of each group where there are groups.
        """
        if self.target_sites >= self.min_sites:
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


def cohort_rule(job: JobFile, manifest: Manifest) -> CohortRule:
    """Read when cohorts of a job are cut, and into how many groups.

    Raises:
        UsageError: The job asks for cohorts that the manifest does not allow.
    """
    groups, robust = GroupRule(), job.robust
    if robust is not None:
        groups = GroupRule(robust.groups, robust.least_groups, LEAST_GROUP_SITES)
    rules = job.round
    return CohortRule(
        manifest.colluders, manifest.min_survivors, rules.target_sites, rules.deadline_s, groups
    )


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
    if len(ready) < rule.min_sites:
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
