"""Small cases in 128-bit arithmetic: Skellam in one and two dimensions, both ways, subsampled.

The sums of `test_exact_renyi` are float64 logarithms; these share nothing with them, nor with ours,
but the definition: sum over x of P(x)^alpha Q(x)^(1-alpha).
"""

import itertools
import math

import mpmath
import pytest

from privacy.accounting.accountant import step_rdp
from privacy.accounting.cross_site import person_rdp
from privacy.accounting.events import SkellamRecordEvent

BITS = 128


def pmf(V, reach):
    """Give P(X = k) = e^-V I_k(V) for k = 0..reach."""
    return [mpmath.exp(-V) * mpmath.besseli(k, V) for k in range(reach + 1)]


def law(V, shift, reach):
    """Give the law of a shifted vector of independent Skellams on a box, by place."""
    one = pmf(V, 2 * reach)
    axes = [[one[abs(x - s)] for x in range(-reach, reach + 1)] for s in shift]
    return [mpmath.fprod(values) for values in itertools.product(*axes)]


def renyi(alpha, p, q):
    total = mpmath.fsum(a**alpha / b ** (alpha - 1) for a, b in zip(p, q, strict=True))
    return mpmath.log(total) / (alpha - 1)


def event_of(q, V, shift):
    D2 = math.sqrt(sum(s * s for s in shift))
    D1 = max(D2, min(math.sqrt(len(shift)) * D2, D2 * D2))
    return SkellamRecordEvent(q, V, D1, D2, len(shift), 1)


CASES = [
    ((1,), 2.0, 40),
    ((2,), 9.0, 60),
    ((3,), 40.0, 90),
    ((5,), 400.0, 190),
    ((1, 1), 4.0, 22),
    ((2, 1), 6.0, 26),
]


@pytest.mark.parametrize(("shift", "V", "reach"), CASES)
@pytest.mark.parametrize("q", [0.01, 0.3, 1.0])
@pytest.mark.parametrize("alpha", [2, 3, 6])
def test_the_price_is_above_the_exact_divergence_and_not_far(shift, V, reach, q, alpha):
    with mpmath.workprec(BITS):
        base, moved = law(V, (0,) * len(shift), reach), law(V, shift, reach)
        mixed = [q * a + (1 - q) * b for a, b in zip(moved, base, strict=True)]
        assert abs(mpmath.fsum(mixed) - 1) < 1e-9, "the box holds the law"
        exact = max(renyi(alpha, mixed, base), renyi(alpha, base, mixed))
        price = step_rdp(event_of(q, V, shift), (alpha,))[0]
        assert exact <= price
        # On such coarse grids the theorem's correction weighs most; on a finer one it is nothing.
        assert price <= exact * (1.06 if V >= 400 else 6.0)


@pytest.mark.parametrize("alpha", [2, 4])
@pytest.mark.parametrize("q", [0.02, 0.3])
def test_steps_that_look_at_earlier_ones_cost_no_more_than_their_sum(alpha, q):
    """The second shift is chosen by what the first showed: joint law of two adaptive releases."""
    V, reach = 6.0, 40
    with mpmath.workprec(BITS):
        one = pmf(V, 2 * reach)

        def marginal(x, shift):
            return q * one[abs(x - shift)] + (1 - q) * one[abs(x)]

        total = mpmath.mpf(0)
        for x in range(-reach, reach + 1):
            second = 2 if x > 0 else -1  # never more than D2 = 2
            inner = mpmath.fsum(
                marginal(y, second) ** alpha / one[abs(y)] ** (alpha - 1)
                for y in range(-reach, reach + 1)
            )
            total += marginal(x, 2) ** alpha / one[abs(x)] ** (alpha - 1) * inner
        exact = mpmath.log(total) / (alpha - 1)
        assert 0 < exact <= 2 * step_rdp(event_of(q, V, (2,)), (alpha,))[0]


@pytest.mark.parametrize("sites", [1, 2, 3])
@pytest.mark.parametrize("q", [0.01, 0.3])
@pytest.mark.parametrize("alpha", [2, 5])
def test_a_person_in_several_sites(sites, q, alpha):
    V, reach = 12.0, 80
    with mpmath.workprec(BITS):
        base = law(V, (0,), reach)
        laws = [law(V, (j,), reach) for j in range(sites + 1)]
        weights = [
            mpmath.binomial(sites, j) * mpmath.mpf(q) ** j * (1 - mpmath.mpf(q)) ** (sites - j)
            for j in range(sites + 1)
        ]
        mixed = [mpmath.fdot(weights, column) for column in zip(*laws, strict=True)]
        added, removed = renyi(alpha, mixed, base), renyi(alpha, base, mixed)
        price = person_rdp(event_of(q, V, (1,)), sites, (alpha,))[0]
        assert max(added, removed) <= price
        assert price <= 2 * max(added, removed)
