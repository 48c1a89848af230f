"""Who takes part in a job: sites that were offered it, accepted it, or are out of it for good."""

from collections.abc import Callable, Mapping

from aggregator.cohort import CohortRule
from privacy.secagg.messages import Fingerprint


class Participants:
    """The members of the manifest, as one job sees them.

    Attributes:
        accepted: Connected sites that accepted the job; others may watch this set.
        lack_bundle: Of those, the ones that are ready but have no key bundle in stock.
    """

    def __init__(
        self,
        members: Mapping[Fingerprint, str],
        rule: CohortRule,
        is_connected: Callable[[Fingerprint], bool],
    ) -> None:
        """Start with nobody.

        Args:
            members: Site ids by fingerprint.
            rule: Says how many make a cohort.
            is_connected: Whether a site has a live session.
        """
        self.accepted: set[Fingerprint] = set()
        self.lack_bundle: set[Fingerprint] = set()
        self._members = members
        self._rule = rule
        self._is_connected = is_connected
        self._out: dict[Fingerprint, str] = {}
        self._offered_s: dict[Fingerprint, float] = {}

    def is_out(self, site: Fingerprint) -> bool:
        """Say whether a site is out of the job for good."""
        return site in self._out

    def offer(self, site: Fingerprint, now_s: float) -> None:
        """Note that a site is reading the offer."""
        self._offered_s[site] = now_s

    def accept(self, site: Fingerprint) -> None:
        """Note that a site takes part."""
        self._offered_s.pop(site, None)
        self.accepted.add(site)

    def leave(self, site: Fingerprint) -> bool:
        """Note that a site is gone for now; True where it took part."""
        self._offered_s.pop(site, None)
        self.lack_bundle.discard(site)
        took_part = site in self.accepted
        self.accepted.discard(site)
        return took_part

    def exclude(self, site: Fingerprint, why: str) -> str:
        """Note that a site is out for the rest of the job.

        Returns:
            Empty, or in words that the others are too few for any cohort, and all reasons.
        """
        self.leave(site)
        self._out[site] = why
        left = len(self._members) - len(self._out)
        if left >= self._rule.min_sites:
            return ""
        reasons = "; ".join(f"{self._members[s]}: {text}" for s, text in self._out.items())
        return (
            f"{left} of {len(self._members)} sites are left, a cohort needs"
            f" {self._rule.min_sites}. {reasons}"
        )

    def here(self) -> list[Fingerprint]:
        """Return the sites that take part and are connected."""
        return [site for site in self.accepted if self._is_connected(site)]

    def may_begin(self, now_s: float) -> bool:
        """Say whether a round can begin: enough are here, and nobody is just reading the offer."""
        deadline_s = now_s - self._rule.deadline_s
        reading = any(offered_s > deadline_s for offered_s in self._offered_s.values())
        return len(self.here()) >= self._rule.min_sites and not reading

    def shortage(self) -> str:
        """Say in words what is missing for a cohort; empty where nothing is."""
        here = len(self.here())
        if here >= self._rule.min_sites:
            return ""
        connected = sum(1 for site in self._members if self._is_connected(site))
        return (
            f"STALLED: a cohort needs {self._rule.min_sites} sites; {connected} connected,"
            f" {here} of them accepted the job"
        )
