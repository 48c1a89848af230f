"""Read ``[robust]``: a round's cohort falls into groups, whose means are combined robustly.

One poisoned site spoils the mean of its group alone; the median or the trimmed mean over groups
passes that group over. What a secure sum is of is thereby smaller, and each carries whole noise.
"""

from dataclasses import dataclass
from enum import StrEnum

from privacy.errors import UsageError
from tidegate.jobfile.work_kinds import Evaluation, FlowerApp, Statistics, Trees, Work
from tidegate.toml_table import Span, Table

LEAST_GROUPS = 3
"""A median over fewer than this passes nobody over."""

LEAST_GROUP_SITES = 5
"""Fewer sites in a secure sum than this are refused, whatever the manifest would allow."""

_MOST_GROUPS = 40  # of 5 sites each: all that ``target_sites`` allows


class Combine(StrEnum):
    """How the groups' means become one, coordinate by coordinate."""

    MEDIAN = "median"
    TRIMMED_MEAN = "trimmed-mean"


@dataclass(frozen=True)
class Robust:
    """Groups of a round, and how their means are combined.

    Attributes:
        groups: How many groups a cohort is drawn into.
        combine: See ``Combine``.
        trim: Groups left out at either end of each coordinate; 0 for the median.
    """

    groups: int
    combine: Combine
    trim: int = 0

    @property
    def least_groups(self) -> int:
        """Return the fewest groups that must open: 3, and one more than are trimmed."""
        return max(LEAST_GROUPS, 2 * self.trim + 1)

    @property
    def tolerated(self) -> int:
        """Return how many groups may be poisoned where all have opened: fewer than half, or trim.

        That many malicious sites, in whichever groups they are drawn, move no coordinate beyond
        what honest groups gave.
        """
        return self.trim if self.combine is Combine.TRIMMED_MEAN else (self.groups - 1) // 2


def read_robust(top: Table, work: Work, target_sites: int) -> Robust | None:
    """Read the table; None where the job has none.

    Raises:
        UsageError: The work has no mean over sites, a number is out of range, or the cohort is too
            small for so many groups.
    """
    if not top.has("robust"):
        return None
    _check_work(top, work)
    table = top.table("robust", ("groups", "combine", "trim"))
    groups = table.whole("groups", Span(LEAST_GROUPS, _MOST_GROUPS))
    combine = Combine(table.choice("combine", [kind.value for kind in Combine]))
    trim = 0
    if combine is Combine.TRIMMED_MEAN:
        trim = table.whole("trim", Span(1, (groups - 1) // 2))
    elif table.has("trim"):
        raise table.bad("trim", "must be absent: the median leaves all but the middle out")
    least = groups * LEAST_GROUP_SITES
    if target_sites < least:
        raise UsageError(
            f"{table.where} {groups} groups of at least {LEAST_GROUP_SITES} sites are {least},"
            f" and [round] target_sites = {target_sites}: raise it, or leave [robust] out. In a"
            " smaller group a sum would hide too few sites"
        )
    return Robust(groups, combine, trim)


def _check_work(top: Table, work: Work) -> None:
    """Refuse work whose sums mean something only as a whole."""
    if isinstance(work, Trees | Statistics | Evaluation):
        raise top.bad(
            "robust",
            "must be absent: this work counts records over all sites, and a median of groups'"
            " counts is no count",
        )
    if isinstance(work, FlowerApp) and (work.evaluate_every or top.has("evaluation_metrics")):
        raise top.bad(
            "robust",
            "must be absent where a Flower app evaluates: its metrics are sums over all sites;"
            " train with [robust], and evaluate the model in a job of its own",
        )
