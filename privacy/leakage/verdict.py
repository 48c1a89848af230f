"""Judge what an attack recovered against what a guess without data gets.

The lines are those of privacy.md, "Leakage audit". A score near the data-free baseline is a PASS,
whatever its size: a picture that is almost grey is 18 dB from grey. Above the baseline's margin the
absolute line decides between WARN and FAIL. Nothing that was not attacked is a PASS.

Shapes: N = records shown, L = tokens, W = numbers of a row, K = labels.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray

from privacy.errors import UsageError

AUDIT_VERSION = 1
"""Goes up when an attack or a line changes: an older PASS is then no PASS any more."""

PSNR_MARGIN_DB = 1.5
PSNR_FAIL_DB = 18.0
SSIM_FAIL = 0.5
TOKEN_FACTOR = 2.0
TOKEN_FAIL = 0.10
_LUCK = 0.999
CELL_MARGIN = 0.05
LABEL_SHARE = 0.8
MAX_SHOWN = 8
"""Records kept as evidence of one attack."""


class Verdict(StrEnum):
    """What an attack's outcome means."""

    PASS = "PASS"  # noqa: S105 - a verdict, no secret
    WARN = "WARN"
    FAIL = "FAIL"
    NOT_APPLICABLE = "NOT APPLICABLE"

    @property
    def rank(self) -> int:
        """Return how bad it is: 0 for PASS to 2 for FAIL; -1 where nothing was attacked."""
        return {"PASS": 0, "WARN": 1, "FAIL": 2, "NOT APPLICABLE": -1}[self.value]


class Exposure(StrEnum):
    """What the attacker sees."""

    ALONE = "update alone"
    SUM = "sum of sites"


class Metric(StrEnum):
    """What a score counts."""

    PSNR = "mean PSNR, dB"
    TOKENS = "share of tokens"
    CELLS = "share of cells"
    ROWS = "share of exact rows"
    LABELS = "share of labels"


class EvidenceKind(StrEnum):
    """How evidence is to be shown."""

    IMAGES = "images"
    TOKENS = "tokens"
    ROWS = "rows"
    COUNTS = "counts"


@dataclass(frozen=True, eq=False)
class Evidence:
    """Originals beside their reconstructions, best match by best match.

    Attributes:
        kind: IMAGES: float32 (N, H, W) or (N, C, H, W), 0 to 1; TOKENS: int64 (N, L); ROWS: float32
            (N, W); COUNTS: float32 (N, K).
        columns: ROWS and COUNTS: a name a column; else the field's name.
        originals: What the site had.
        reconstructions: What the attack made of the update, same shape.
        right: TOKENS and ROWS: which cells count as recovered; else None.
    """

    kind: EvidenceKind
    columns: tuple[str, ...]
    originals: NDArray[np.float32 | np.int64] = field(repr=False)
    reconstructions: NDArray[np.float32 | np.int64] = field(repr=False)
    right: NDArray[np.bool_] | None = field(default=None, repr=False)


@dataclass(frozen=True)
class Finding:
    """What one attack got out of one exposure.

    Attributes:
        attack: "A1" to "A5".
        title: What was tried, in a few words.
        exposure: What the attacker saw.
        metric: What ``score`` and ``baseline`` count.
        score: NaN where the attack does not apply.
        baseline: What a guess without data gets.
        verdict: Against the lines above.
        reason: One sentence, without data.
        details: Further figures by name.
        evidence: Originals and reconstructions; None where there is nothing to show.
    """

    attack: str
    title: str
    exposure: Exposure
    metric: Metric
    score: float
    baseline: float
    verdict: Verdict
    reason: str
    details: Mapping[str, float] = field(default_factory=dict)
    evidence: Evidence | None = field(default=None, repr=False, compare=False)


@dataclass(frozen=True)
class Report:
    """A whole audit.

    Attributes:
        findings: Of every attack and exposure.
        verdict: The worst of those that apply; WARN at best where an exposure was not attacked.
        reason: One sentence.
        version: `AUDIT_VERSION` of the code that made it.
    """

    findings: tuple[Finding, ...]
    verdict: Verdict
    reason: str
    version: int = AUDIT_VERSION


def judge_pictures(score: float, baseline: float, best: float, ssim: float) -> Verdict:
    """Judge reconstructed pictures.

    Args:
        score: Mean PSNR over the victims, dB.
        baseline: The same of a grey picture.
        best: Highest PSNR of a victim that is above its own grey picture's by the margin; -inf.
        ssim: Highest SSIM of such a victim.
    """
    if best >= PSNR_FAIL_DB or ssim >= SSIM_FAIL:
        return Verdict.FAIL
    return _near(score <= baseline + PSNR_MARGIN_DB)


def judge_tokens(score: float, baseline: float, tokens: int) -> Verdict:
    """Judge a share of recovered tokens.

    Of few tokens one lucky hit is a large share: so many as chance alone gives in one audit of a
    thousand count as chance.

    Args:
        score: Share of tokens.
        baseline: What chance gives.
        tokens: How many there were.
    """
    if score <= max(TOKEN_FACTOR * baseline, _lucky_hits(tokens, baseline) / tokens):
        return Verdict.PASS
    return Verdict.FAIL if score >= TOKEN_FAIL else Verdict.WARN


def _lucky_hits(tokens: int, chance: float) -> int:
    """Give how many hits chance does not exceed in 999 of 1000 audits: a binomial quantile."""
    if chance >= 1:
        return tokens
    log_mass, below, hits = tokens * math.log1p(-chance), 0.0, 0
    while True:
        below += math.exp(log_mass)
        if below >= _LUCK or hits == tokens:
            return hits
        log_mass += math.log((tokens - hits) / (hits + 1)) + math.log(chance / (1 - chance))
        hits += 1


def judge_cells(score: float, baseline: float, exact_rows: int, by_chance: int) -> Verdict:
    """Judge a share of recovered cells.

    Args:
        score: Share of cells.
        baseline: The same of guesses without data.
        exact_rows: Rows recovered in every cell.
        by_chance: Most rows that any of the guesses had exact.
    """
    if exact_rows > by_chance:
        return Verdict.FAIL
    return _near(score <= baseline + CELL_MARGIN)


def judge_labels(score: float, baseline: float) -> Verdict:
    """Judge label counts: are they as good as known?

    They are of no one record, so they never fail an audit by themselves, and noise that hides each
    record blurs them only: what counts is how much of the guess's error is gone.
    """
    return _near(score <= baseline + LABEL_SHARE * (1 - baseline))


def _near(near: bool) -> Verdict:  # noqa: FBT001 - one comparison's outcome
    return Verdict.PASS if near else Verdict.WARN


def not_applicable(
    attack: str, title: str, exposure: Exposure, metric: Metric, reason: str
) -> Finding:
    """Say that an attack does not apply, and why."""
    nan = math.nan
    return Finding(attack, title, exposure, metric, nan, nan, Verdict.NOT_APPLICABLE, reason)


def report_of(findings: Iterable[Finding]) -> Report:
    """Put findings together: the worst decides, and what nothing attacked is no PASS.

    Label counts alone (A1) do not count as an attack on an exposure: records were not attacked.

    Raises:
        UsageError: There are none.
    """
    found = tuple(findings)
    if not found:
        raise UsageError("an audit without findings says nothing")
    applied = [finding for finding in found if finding.verdict is not Verdict.NOT_APPLICABLE]
    worst = max((finding.verdict for finding in applied), key=_rank, default=Verdict.WARN)
    attacked = {finding.exposure for finding in applied if finding.attack != "A1"}
    missing = [exposure.value for exposure in Exposure if exposure not in attacked]
    if worst is Verdict.PASS and missing:
        return Report(found, Verdict.WARN, f"no attack on records applied to: {', '.join(missing)}")
    deciding = [f"{f.attack} on the {f.exposure}" for f in applied if f.verdict is worst]
    if worst is Verdict.PASS:
        return Report(found, worst, "no attack did clearly better than a guess without data")
    if not applied:
        return Report(found, worst, "no attack applied, so nothing was shown")
    return Report(found, worst, f"{worst} by {', '.join(dict.fromkeys(deciding))}")


def worst_of(reports: Sequence[Report]) -> Report:
    """Keep, of several audits of one job, the worst finding of each attack on each exposure.

    Args:
        reports: Of what a site may send in different circumstances; at least one.
    """
    worst: dict[tuple[str, str, Exposure], Finding] = {}
    for finding in (finding for report in reports for finding in report.findings):
        key = (finding.attack, finding.title, finding.exposure)
        if key not in worst or _badness(finding) > _badness(worst[key]):
            worst[key] = finding
    return report_of(worst.values())


def _badness(finding: Finding) -> tuple[int, float]:
    """Order findings: by verdict, then by how far above the guess without data."""
    return finding.verdict.rank, finding.score - finding.baseline


def _rank(verdict: Verdict) -> int:
    return verdict.rank


def summary(report: Report) -> dict[str, object]:
    """Give a report as plain values for JSON, without evidence; NaN becomes None."""
    return {
        "version": report.version,
        "verdict": report.verdict.value,
        "reason": report.reason,
        "findings": [
            {
                "attack": finding.attack,
                "title": finding.title,
                "exposure": finding.exposure.value,
                "metric": finding.metric.value,
                "score": _finite(finding.score),
                "baseline": _finite(finding.baseline),
                "verdict": finding.verdict.value,
                "reason": finding.reason,
                "details": {name: _finite(value) for name, value in finding.details.items()},
            }
            for finding in report.findings
        ],
    }


def _finite(value: float) -> float | None:
    return float(value) if math.isfinite(value) else None
