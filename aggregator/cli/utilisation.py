"""Say what a site's time and bytes went into, and against which named baseline.

Times are the site's own and add up to those between its first train request and its newest "ready":
*compute* is making an update (fetching the model version and the encoding included), *exposed
communication* the secure exchange in which it does not train, *idle* the rest, mostly waiting for
other sites.
"""

from dataclasses import dataclass

from tidegate.jobfile import RECORD_DISTRIBUTED, Evaluation, JobFile, Statistics, Trees
from tidegate.requests import SiteProgress

_FP32_BYTES = 4
TIMES = "time: compute / exposed communication / idle, in percent"


@dataclass(frozen=True)
class Baseline:
    """What full synchronisation in float32 would send.

    Attributes:
        name: Which synchronisation.
        round_bytes: Of one site, in a round and direction: the bare vector.
    """

    name: str
    round_bytes: int

    def share(self, site: SiteProgress, rounds: int) -> float | None:
        """Give a site's bytes, both directions, over the baseline's; None before a round is over.

        Args:
            site: Its counts.
            rounds: Finished rounds of the job.
        """
        whole = 2 * self.round_bytes * rounds
        return (site.bytes_up + site.bytes_down) / whole if whole else None


def baseline_of(job: JobFile, parameters: int) -> Baseline | None:
    """Name what a job's traffic is compared with; None where no vector of a model is trained.

    A round of record-distributed is one step; elsewhere it stands for several, so that averaging
    after as many local steps is the fair comparison.

    Args:
        job: The job file.
        parameters: D.
    """
    if isinstance(job.work, Trees | Statistics | Evaluation):
        return None
    by_step = job.privacy.mode == RECORD_DISTRIBUTED
    name = "per-step fp32 synchronisation" if by_step else "fp32 FedAvg, same local steps"
    return Baseline(name, parameters * _FP32_BYTES)


def time_shares(site: SiteProgress) -> tuple[float, float, float] | None:
    """Give the shares of compute, exposed communication and idle time; None before any passed."""
    parts = (site.train_s, site.exchange_s, site.wait_s)
    whole = sum(parts)
    if whole <= 0:
        return None
    compute, exposed, idle = (part / whole for part in parts)
    return compute, exposed, idle


def time_text(site: SiteProgress) -> str:
    """Write a site's three shares in percent."""
    shares = time_shares(site)
    return "-" if shares is None else "/".join(f"{100 * share:.0f}" for share in shares)


def share_text(share: float | None) -> str:
    """Write a share of the baseline in percent, small ones to a digit more."""
    if share is None:
        return "-"
    return f"{100 * share:.1f} %" if share < 0.1 else f"{100 * share:.0f} %"
