"""Decide when the ready sites make a cohort: ready first, then aggregate.

Sites train for as long as they need and say when they are ready; only then is a cohort cut, and
only out of ready ones: a slow site never holds up an exchange (architecture.md section 2).
"""

from collections.abc import Set as AbstractSet
from dataclasses import dataclass

from privacy.errors import UsageError
from privacy.secagg.messages import Fingerprint


@dataclass(frozen=True)
class CohortRule:
    """When a cohort is cut.

    Attributes:
        colluders: c of the manifest.
        min_survivors: N_min of the manifest.
        target_sites: Cut as soon as this many are ready.
        deadline_s: Seconds from the start of a round after which it is cut without the others.
    """

    colluders: int
    min_survivors: int
    target_sites: int
    deadline_s: float

    @property
    def min_sites(self) -> int:
        """Return the fewest sites of a cohort: max(3c, N_min), by SA-1's threat model."""
        return max(3 * self.colluders, self.min_survivors)

    def __post_init__(self) -> None:
        """Refuse a target that could never be a cohort.

        Raises:
            UsageError: It is below max(3c, N_min).
        """
        if self.target_sites < self.min_sites:
            raise UsageError(
                f"[round] target_sites = {self.target_sites} is fewer than the"
                f" {self.min_sites} sites that the manifest asks of a cohort"
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
