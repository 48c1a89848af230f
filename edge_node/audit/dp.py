"""Run the DP audit: the pipeline as it is must pass every check, and every mutant must fail one.

privacy.md, "DP audit". What it shows, and what it does not, stands in docs/guides/audits.md.
"""

import contextlib
import hashlib
import secrets
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from edge_node.audit.canaries import (
    check_all_records,
    check_local_updates,
    check_sampled_records,
    check_whole_sites,
)
from edge_node.audit.claims import check_plans
from edge_node.audit.counts import check_counts
from edge_node.audit.finding import Check, Finding
from edge_node.audit.mutants import MUTANTS, Mutant
from edge_node.audit.neighbours import (
    check_batch_size,
    check_hostile_records,
    check_memory,
    check_rounding,
)
from edge_node.audit.noise import (
    check_local_noise,
    check_sampler,
    check_shared_noise,
    check_site_noise,
    check_surplus_noise,
)
from edge_node.audit.samples import check_samples
from edge_node.audit.setting import SeededSecrets, Setting, secrets_from
from privacy.errors import TidegateError

CHECKS: tuple[Check, ...] = (
    check_plans,
    check_rounding,
    check_hostile_records,
    check_batch_size,
    check_memory,
    check_samples,
    check_counts,
    check_sampler,
    check_shared_noise,
    check_surplus_noise,
    check_local_noise,
    check_site_noise,
    check_all_records,
    check_sampled_records,
    check_local_updates,
    check_whole_sites,
)
REFUSED = "the pipeline itself"


@dataclass(frozen=True)
class Caught:
    """What noticed a mutant.

    Attributes:
        mutant: Its name.
        fault: What was wrong.
        checks: The checks that failed, in order; empty if nothing noticed.
    """

    mutant: str
    fault: str
    checks: tuple[str, ...]


@dataclass(frozen=True)
class DpReport:
    """What the audit found.

    Attributes:
        findings: Of the pipeline as it is.
        mutants: Of each mutant that was tried.
        seed: That the run repeats with; None where secrets came from the operating system.
        coordinates: d of the vectors whose noise was measured.
        canaries: m of the largest attack.
    """

    findings: tuple[Finding, ...]
    mutants: tuple[Caught, ...]
    seed: int | None
    coordinates: int
    canaries: int

    @property
    def passed(self) -> bool:
        """Whether every check held and every mutant was noticed."""
        noticed = all(caught.checks for caught in self.mutants)
        return noticed and all(finding.passed for finding in self.findings)

    @property
    def false_alarm(self) -> float:
        """Return a bound on the chance that a correct pipeline fails: the sum over the checks."""
        return sum(finding.false_alarm for finding in self.findings)


def audit_dp(
    seed: int | None,
    setting_of: Callable[[bytes], Setting] = Setting.whole,
    mutants: tuple[Mutant, ...] = MUTANTS,
    checks: tuple[Check, ...] = CHECKS,
    progress: Callable[[str], None] = lambda _: None,
) -> DpReport:
    """Audit the pipeline and the audit.

    Args:
        seed: Makes the run repeat; None takes secrets from the operating system, as the daemon.
        setting_of: Gives how much to look at, for the auditor's coins.
        mutants: Faults to try.
        checks: What to hold the pipeline, and each mutant, against.
        progress: Told what is being done.
    """
    setting = setting_of(_key(seed))
    with _secrets_for(seed):
        progress("the pipeline as it is")
        findings = tuple(finding for check in checks for finding in check(setting))
    caught = []
    for mutant in mutants:
        progress(f"mutant {mutant.name}: {mutant.fault}")
        with _secrets_for(seed), mutant.applied():
            caught.append(Caught(mutant.name, mutant.fault, _failing(setting, checks)))
    return DpReport(findings, tuple(caught), seed, setting.coordinates, setting.canaries)


def _failing(setting: Setting, checks: tuple[Check, ...]) -> tuple[str, ...]:
    """Give the names of the checks that fail, each once; a refusal by the pipeline is one too."""
    failed: dict[str, None] = {}
    for check in checks:
        try:
            with np.errstate(all="ignore"):  # without its clip, the pipeline overflows
                found = check(setting)
        except TidegateError:
            failed[REFUSED] = None
        else:
            failed.update((finding.check, None) for finding in found if not finding.passed)
    return tuple(failed)


def _key(seed: int | None) -> bytes:
    return secrets.token_bytes(32) if seed is None else hashlib.sha256(f"{seed}".encode()).digest()


def _secrets_for(seed: int | None) -> contextlib.AbstractContextManager[None]:
    if seed is None:
        return contextlib.nullcontext()
    return secrets_from(SeededSecrets(b"sites" + _key(seed)))
