"""State what a job costs a person whose data lie in several sites (privacy.md, "Accounting").

The sites' ledgers protect one record or user of one site; for one that is in several, no ledger
can speak. The figure covers the job's plan and every attempt that was opened beside it, whether or
not sites were charged for it; never what other jobs released. In record-local a site charges again
for an update that it lost in a restart, of which only its own ledger knows.
"""

from dataclasses import dataclass

from aggregator.jobs import Job
from privacy.pipeline import Mode
from privacy.planning import CohortRules, person_epsilon
from tidegate.convert.bounds import MAX_EPSILON
from tidegate.job_terms import privacy_terms
from tidegate.manifest import Manifest


@dataclass(frozen=True)
class PersonEpsilon:
    """Epsilon of one job at its delta, by the number of sites that hold a person's data.

    Attributes:
        sites: k_max of the sealed manifest; 0 where nothing can be stated.
        one_site: For k = 1.
        all_sites: For k_max; 10^9 stands for no bound.
    """

    sites: int = 0
    one_site: float = 0.0
    all_sites: float = 0.0


def state_person_epsilon(job: Job, manifest: Manifest | None, repeats: int) -> PersonEpsilon:
    """Give a job's epsilon for one site and for as many as the manifest lets a person be in.

    Args:
        job: As submitted.
        manifest: The sealed one, if there is one.
        repeats: Attempts that were opened beyond one an exchange.
    """
    plan = job.plan
    if manifest is None or plan.mode is Mode.NONE:
        return PersonEpsilon()
    terms = privacy_terms(job.file)
    rules = CohortRules(manifest.colluders, manifest.min_survivors, len(manifest.members))
    most = manifest.max_sites_per_person
    one, several = (
        min(person_epsilon(plan, terms, rules, sites, repeats), MAX_EPSILON) for sites in (1, most)
    )
    return PersonEpsilon(most, one, several)
