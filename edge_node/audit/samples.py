"""Count which records a site's steps take: at most the public rate, and other ones each time."""

import math
from itertools import pairwise

import numpy as np

from edge_node.audit.finding import Finding
from edge_node.audit.setting import Setting
from edge_node.audit.subject import Rows, ScriptedApp, Subject, Terms, update_of
from privacy.audit.noise_law import threshold

FALSE_ALARM = 1e-6
_RECORDS = 20_000
_RATE = 0.03
_STEPS = 20


def check_samples(_setting: Setting) -> list[Finding]:
    """Hold the rate of sampled records, and of those that two steps share, against q and q^2."""
    subject = Subject.of(Terms(coordinates=1, sampling_rate=_RATE, rounds=_STEPS))
    taken: list[set[int]] = []

    def records(_model_D: Rows, rows: Rows) -> tuple[Rows, Rows]:
        taken[-1].update(rows[rows[:, 0] > 0, 0].astype(int).tolist())  # padding is 0
        return np.zeros((len(rows), 1), np.float32), np.zeros((len(rows), 0), np.float32)

    site = subject.site(np.arange(1, _RECORDS + 1), ScriptedApp(records))
    for number in range(1, _STEPS + 1):
        taken.append(set())
        update_of(site, subject.request(number))
    both = sum(len(first & second) for first, second in pairwise(taken))
    return [
        _rate("records of a step", sum(map(len, taken)), _RECORDS * _STEPS, _RATE),
        _rate("two steps in a row", both, _RECORDS * (_STEPS - 1), _RATE**2),
    ]


def _rate(subject: str, count: int, chances: int, rate: float) -> Finding:
    """Hold a count against a binomial one; five percent more for what two pairs have in common."""
    spread = 1.05 * math.sqrt(chances * rate * (1 - rate))
    most = threshold(FALSE_ALARM) * spread
    return Finding(
        check="samples",
        subject=f"record-distributed, {subject}",
        claim=f"rate within {most / chances:.5f} of {rate:.5f}",
        measured=f"{count / chances:.5f}",
        passed=abs(count - chances * rate) <= most,
        false_alarm=FALSE_ALARM,
    )
