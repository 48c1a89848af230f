"""Scale a delta to the nominal number of local steps: stage 2 of a time-boxed round.

In such a round each site trains for the same time, so fast and slow sites take different numbers of
steps. update_i = delta_i * nominal / taken_i makes them weigh the same, as in FedNova (Wang et al.
2020, arXiv 2007.07481) with a public effective number of steps. It comes *before* the clip: a
factor after it would multiply what one site can move the sum by, up to ``nominal`` times the
sensitivity that the noise is made for (mode site), and leave the ring's range in the other modes.

Shapes: D = coordinates of the flat vector.
"""

import numpy as np

from privacy.delta import Delta
from privacy.errors import UsageError

MAX_NOMINAL = 1_000_000


def step_factor(nominal: int, taken: int) -> float:
    """Give nominal / taken, which lies between 1 and ``nominal``.

    Args:
        nominal: The job's public number of local steps, the most that a site takes.
        taken: How many this site took, 1 to ``nominal``.

    Raises:
        UsageError: A number is out of its range: more steps than the cap were never charged.
    """
    if not (isinstance(nominal, int) and 1 <= nominal <= MAX_NOMINAL):
        raise UsageError(f"the nominal number of steps must be 1 to {MAX_NOMINAL}, not {nominal}")
    if not (isinstance(taken, int) and 1 <= taken <= nominal):
        raise UsageError(f"a site takes 1 to {nominal} local steps in a round, not {taken}")
    return nominal / taken


def normalise_delta(delta: Delta, nominal: int, taken: int) -> Delta:
    """Scale the delta of some steps to that of the nominal number; the same for all of them.

    A value that is or becomes too large for float32 is left infinite. What that means is the
    clip's business, which every delta meets next: refused in modes none and record-local, counted
    as zero in mode site, where a refusal here would tell uncharged what the site's data did.

    Args:
        delta: Of ``taken`` steps, shape (D,), parameter units.
        nominal: The job's public number of local steps.
        taken: How many this site took.

    Raises:
        UsageError: As `step_factor`.
    """
    factor = step_factor(nominal, taken)
    if taken == nominal:
        return delta
    with np.errstate(over="ignore", invalid="ignore"):
        scaled_D = (delta.values_D.astype(np.float64) * factor).astype(np.float32)
    return Delta(scaled_D, delta.spec_digest)
