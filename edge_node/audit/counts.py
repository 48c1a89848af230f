"""Audit sums of sparse records: statistics, whose path (`privacy.cell_sum`) trees share.

The work place is that of the daemon (`edge_node.rounds.cell_counts`); a record is a row of numbers,
so here nothing stands in for an app.

Shapes: K = ranges that a record adds to, d = cells.
"""

import asyncio
import math

import numpy as np
from numpy.typing import NDArray

from edge_node.audit import claims
from edge_node.audit.finding import Finding
from edge_node.audit.neighbours import noise_off
from edge_node.audit.noise import FALSE_ALARM
from edge_node.audit.setting import SeededSecrets, Setting, secrets_from
from edge_node.audit.subject import RULES, Subject, Terms
from edge_node.data import from_table
from edge_node.rounds.cell_counts import CellCounts
from edge_node.rounds.contract import JobAtSite
from privacy.audit import noise_law
from privacy.audit.noise_law import NoiseLaw
from privacy.planning import derive_encoding, step_event
from tidegate.job_terms import privacy_terms, statistics_layout
from tidegate.jobfile import JobFile

_NAME = "statistics"
_COLUMNS = 12
_BINS = 1000
_DRAWS = 8  # of the dither
_EDGES = (-1.0, 0.37, 1.0, 5.0, -3e38, math.nan, math.inf, -math.inf)
_JOB = """
[job]
name = "dp-audit"
dataset = "audit"
[statistics]
bins = {bins}
{columns}
[privacy]
mode = "record-distributed"
epsilon = 3.0
delta_dp = 1e-5
max_records = 1000
[round]
target_sites = 5
"""
_COLUMN = '[[columns]]\nname = "c{}"\nlow = -1.0\nhigh = 1.0\n'


def subject_of(columns: int, bins: int) -> Subject:
    """Derive a statistics job's plan; its terms are what the claims are computed from."""
    text = _JOB.format(bins=bins, columns="".join(_COLUMN.format(k) for k in range(columns)))
    job = JobFile.parse(text.encode(), "the audit's job")
    layout = statistics_layout(job)
    plan = derive_encoding(privacy_terms(job), layout.spec, RULES, bytes(32))
    # Each record adds at most 1 to one cell of each range: a count, and three for each column.
    terms = Terms(coordinates=layout.spec.length, clipping_norm=math.sqrt(1 + 3 * columns))
    return Subject(terms, RULES, job, layout.model_spec, plan)


def check_counts(setting: Setting) -> list[Finding]:
    """Hold sums of counts against D2 and the noise that was charged."""
    return [_shift(subject_of(_COLUMNS, 7), setting), *_noise(subject_of(_COLUMNS, _BINS), setting)]


def _shift(subject: Subject, setting: Setting) -> Finding:
    """Add one record to some others, with values at and beyond every edge."""
    source = setting.coins("counts")
    others = source.uniform(-1, 1, (5, _COLUMNS)).astype(np.float32)
    worst = 0.0
    for draw in range(_DRAWS):
        for value in (*_EDGES, None):
            row = np.full(_COLUMNS, 0.0 if value is None else value)
            if value is None:
                row = source.choice(_EDGES, _COLUMNS)
            moved = [
                _counted(subject, rows, draw)
                for rows in (others, np.vstack([others, row.astype(np.float32)]))
            ]
            worst = max(worst, float(np.linalg.norm(moved[1] - moved[0])))
    reach = subject.terms.clipping_norm * subject.plan.scale
    return Finding(
        check="neighbours: counts",
        subject=_NAME,
        claim=f"{0.99 * reach:.2f} <= shift <= D2 = {subject.plan.sensitivity:.2f}",
        measured=f"{worst:.2f}",
        passed=0.99 * reach <= worst <= subject.plan.sensitivity,
    )


def _noise(subject: Subject, setting: Setting) -> list[Finding]:
    """Count nothing, often enough to see the variance."""
    repeats = max(2, math.ceil(setting.coordinates / subject.plan.length))
    site = _site(subject, np.zeros((0, _COLUMNS), dtype=np.float32))
    made = [
        asyncio.run(site.make_update(subject.request(number))).vector_D.astype(np.float64)
        for number in range(1, repeats + 1)
    ]
    law = NoiseLaw.skellam(claims.share(subject))
    noise = np.concatenate(made)
    ratio = noise_law.variance_ratio(noise, law.variance)
    worst = noise_law.correlation(made[0], made[1])
    most = noise_law.threshold(FALSE_ALARM)
    return [
        Finding(
            check="noise: variance",
            subject=f"{_NAME}, one site's shares",
            claim=f"within {setting.tolerance:.1%} of {law.variance:.6g}",
            measured=f"{ratio - 1:+.2%}",
            passed=abs(ratio - 1) <= setting.tolerance,
            false_alarm=noise_law.variance_false_alarm(noise.size, law, setting.tolerance),
        ),
        Finding(
            check="noise: independence",
            subject=f"{_NAME}, rounds of a site",
            claim=f"correlation <= {most:.1f} sd",
            measured=f"{worst:.2f} sd",
            passed=worst <= most,
            false_alarm=FALSE_ALARM,
        ),
    ]


def _counted(subject: Subject, rows: NDArray[np.float32], draw: int) -> NDArray[np.int64]:
    """Give the integers of one sum with the coins of a draw, without noise."""
    with noise_off(), secrets_from(SeededSecrets(draw.to_bytes(32, "big"))):
        site = _site(subject, rows)
        return asyncio.run(site.make_update(subject.request(1))).vector_D.astype(
            np.int64, copy=False
        )


def _site(subject: Subject, rows: NDArray[np.float32]) -> CellCounts:
    names = [f"c{k}" for k in range(rows.shape[1])]
    dataset = from_table("audit", "audit", names, rows.copy())
    event = step_event(subject.plan, subject.rules)
    return CellCounts(
        JobAtSite("dp-audit", subject.job, subject.plan, subject.spec, event, "enforced", dataset)
    )
