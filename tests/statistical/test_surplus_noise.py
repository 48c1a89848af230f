"""What is left in an opened sum once surplus noise is off: the level's variance, and its law.

The whole path: sites draw by the plan, shares wrap and add up in the ring, the aggregator takes the
revealed parts off slice by slice. Seeds are fixed; d = 1e6 gives the estimate a relative deviation
of 0.14 %, so 1 % is 7 sd.
"""

import hashlib

import numpy as np
import pytest

from aggregator.fold import FoldedSum
from aggregator.unmask import Surplus, unmask
from privacy.noise import add_skellam_noise
from privacy.quantise import QuantisedDelta
from privacy.ring import centre
from privacy.surplus import NoiseShare, choose_levels, levels_reached
from tests.statistical.test_noise_distribution import FALSE_ALARM, chi_square_p

D = 1_000_000
N_MIN, COLLUDERS, TARGET, BITS = 4, 1, 8, 24


def seed_of(name):
    return hashlib.sha256(name.encode()).digest()


def opened(survivors, silent=0):
    """Open a sum of noise alone; return it centred, and the variance that the plan says is left."""
    share = NoiseShare(2500, choose_levels(2500, N_MIN, COLLUDERS, TARGET))
    reached = levels_reached([level.survivors for level in share.levels], survivors)
    sum_d, seeds = np.zeros(D, dtype=np.uint32), []
    for site in range(survivors):
        name = seed_of(f"surplus {survivors} {site}")
        made = add_skellam_noise(QuantisedDelta(np.zeros(D, np.int64), 1.0), share, name)
        sum_d += made.vector_D.astype(np.uint32)
        if site >= silent:
            seeds.append(made.surplus_seeds[:reached])
    surplus = Surplus(share, tuple(seeds))
    folded = FoldedSum(sum_d, BITS, survivors)
    left = unmask(folded, (), surplus.parts, workers=2)
    return share, centre(left.values_d, BITS), surplus.variance_left(survivors)


@pytest.mark.parametrize("survivors", [4, 5, 8])
def test_the_variance_of_the_opened_sum_is_the_levels(survivors):
    share, noise_d, stated = opened(survivors)
    charged = share.variance * (N_MIN - COLLUDERS)
    a_site = -(-charged // (survivors - COLLUDERS))
    assert stated == survivors * a_site
    assert float(np.mean(noise_d.astype(np.float64) ** 2)) == pytest.approx(stated, rel=0.01)
    assert chi_square_p(noise_d, stated) > FALSE_ALARM
    # What the honest survivors alone keep is the charge, and the surplus is gone.
    assert charged <= stated * (survivors - COLLUDERS) / survivors < charged * 1.01


def test_a_survivor_that_does_not_answer_leaves_its_surplus_in():
    share, noise_d, stated = opened(8, silent=2)
    assert stated == 2 * share.variance + 6 * share.base
    assert float(np.mean(noise_d.astype(np.float64) ** 2)) == pytest.approx(stated, rel=0.01)
