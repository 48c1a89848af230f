"""Integer sensitivities, scale, variance and bit width of a distributed Skellam sum.

privacy.md, *D-REC*, steps 5 to 7. All sensitivities are in grid units (a value x in parameter units
is x * s in grid units), under adjacency add or remove one record. A site computes these itself from
the signed plan and refuses a plan that promises less noise (step 6).

Symbols: C clipping norm, s scale, d number of released integers after all padding, z noise
multiplier, V guaranteed variance a coordinate, m_h honest sites that are sure to survive.
"""

import math
from dataclasses import dataclass
from typing import Final

from privacy.accounting.events import MAX_DIMENSION, require_count, require_real
from privacy.errors import UsageError
from privacy.ring import MAX_BITS, MIN_BITS

UNIT_ROUNDOFF: Final = 2.0**-53
ROUNDING_SHARE: Final = 0.02  # sqrt(d) at most 2 % of C * s: rounding then costs about 1 % of z
RANGE_DEVIATIONS: Final = 5.0
_MAX_SCALE: Final = 2.0**52
_MAX_NORM: Final = 1e9
_MAX_RECORDS: Final = 2**40


@dataclass(frozen=True)
class IntegerSensitivity:
    """How far one record moves the integer sum, in grid units.

    Attributes:
        D1: L1 bound, min(sqrt(d) * D2, D2^2): an integer v has |v_i| <= v_i^2.
        D2: L2 bound.
    """

    D1: float
    D2: float


def record_rounding_sensitivity(clipping_norm: float, scale: float, d: int) -> IntegerSensitivity:
    """Bound one record's share when each record is rounded to the grid before summing.

    Nearest rounding moves a coordinate by at most 1/2, so a vector of norm C*s ends within
    D2 = C*s + sqrt(d)/2; the sum of integers is exact. Rounding errors in map and scaling cannot
    add to it, because the pipeline checks the *integer* norm of each record against D2.

    Raises:
        UsageError: An argument is out of range.
    """
    _check_grid(clipping_norm, scale, d)
    return _with_l1(clipping_norm * scale + math.sqrt(d) / 2, d)


def sum_rounding_sensitivity(
    clipping_norm: float,
    scale: float,
    d: int,
    n_max: int,
    inner_dimensions: tuple[int, ...] = (),
    norm_length: int = 0,
) -> IntegerSensitivity:
    """Bound one record's share when records are summed in float64 and the sum is rounded once.

    |round(a + b) - round(a)| <= |b| + 1 in every coordinate, hence D2 = C*s + sqrt(d) + slack. The
    two float64 sums, with and without the record, may each be off by `float64_sum_error`, in any
    order of summation, hence slack = 2*s*error.

    Args:
        clipping_norm: C, parameter units.
        scale: s, a power of two: scaling is then exact in float64.
        d: Integers released, after padding.
        n_max: Public bound on the records in one batch; the pipeline refuses more.
        inner_dimensions: Inner dimension of each linear map that the vectors pass.
        norm_length: Coordinates that the clip takes norms over, where a subset leaves only d.

    Raises:
        UsageError: An argument is out of range, or the scale is no power of two.
    """
    _check_grid(clipping_norm, scale, d)
    if math.frexp(scale)[0] != 0.5:
        raise UsageError(
            f"scale is {scale!r}: rounding a float64 sum needs a power of two, so that scaling is"
            " exact; use choose_scale"
        )
    error = float64_sum_error(clipping_norm, max(d, norm_length), n_max, inner_dimensions)
    slack = 2 * scale * error
    return _with_l1(clipping_norm * scale + math.sqrt(d) + slack, d)


def conditional_rounding_sensitivity(
    clipping_norm: float, scale: float, d: int
) -> IntegerSensitivity:
    """Bound a site's vector under conditional stochastic rounding with beta = exp(-1/2).

    D2^2 = min{(C s + sqrt(d))^2, (C s)^2 + d/4 + sqrt(2 ln(1/beta)) (C s + sqrt(d)/2)}: Kairouz,
    Liu, Steinke (2021), arXiv 2102.06387, Proposition 26, for zero-out adjacency.

    Raises:
        UsageError: An argument is out of range.
    """
    _check_grid(clipping_norm, scale, d)
    reach, root = clipping_norm * scale, math.sqrt(d)
    typical = math.sqrt(reach**2 + d / 4 + (reach + root / 2))
    return _with_l1(min(reach + root, typical), d)


def float64_sum_error(
    clipping_norm: float, d: int, n_max: int, inner_dimensions: tuple[int, ...] = ()
) -> float:
    """Bound the L2 error of a float64 sum of clipped records, in parameter units.

    With u = 2^-53 and gamma_k = k*u / (1 - k*u) (Higham, *Accuracy and Stability*, 2nd ed.,
    lemma 3.1, eq. 4.4 and 3.13, valid for any order of summation):

    1. Clip: a norm over d coordinates and the division by it are off by a factor of at most
       1 + gamma_(d+4), so a record's true norm is at most C' = C * (1 + gamma_(d+4)).
    2. Sum of n records: coordinate-wise at most gamma_(n-1) * sum |x_i|; in L2 at most
       e = gamma_(n-1) * n * C'. The exact sum has norm at most n * C'.
    3. A linear map R, operator norm at most 1, inner dimension k: at most gamma_k * |R| |x|
       coordinate-wise, and ||R|||_2 <= ||R||_F <= sqrt(k), so e grows by gamma_k*sqrt(k)*(n*C'+e).
       The same holds when the map comes before the sum, or between partial sums.

    The excess C' - C of the one record that differs is added too. Scaling by a power of two is
    exact. Underflow in products is below k * sqrt(d) * 2^-1074, which the final rounding up covers.

    Raises:
        UsageError: An argument is out of range.
    """
    norm = require_real("clipping norm C", clipping_norm, 0.0, _MAX_NORM)
    require_count("dimension d", d, MAX_DIMENSION)
    require_count("n_max", n_max, _MAX_RECORDS)
    record_norm = norm * (1 + _gamma(d + 4))
    sum_norm = n_max * record_norm
    error = _gamma(n_max - 1) * sum_norm
    for inner in inner_dimensions:
        require_count("inner dimension", inner, MAX_DIMENSION)
        error += _gamma(inner) * math.sqrt(inner) * (sum_norm + error)
    # The bound itself is computed in float64: 2^-40 relative is far above its own rounding.
    return (error + norm * _gamma(d + 4)) * (1 + 2.0**-40)


def choose_scale(clipping_norm: float, d: int) -> float:
    """Choose s: the smallest power of two with sqrt(d) <= 2 % of C*s.

    A power of two makes scaling and unscaling exact in binary floating point on every device, and
    costs at most one bit of B. The value depends on public constants only.

    Raises:
        UsageError: An argument is out of range, or s would leave [2^-52, 2^52].
    """
    norm = require_real("clipping norm C", clipping_norm, 0.0, _MAX_NORM)
    require_count("dimension d", d, MAX_DIMENSION)
    needed = math.sqrt(d) / (ROUNDING_SHARE * norm)
    mantissa, exponent = math.frexp(needed)
    scale = math.ldexp(1.0, exponent - 1 if mantissa == 0.5 else exponent)
    if not 1 / _MAX_SCALE <= scale <= _MAX_SCALE:
        raise UsageError(f"C={norm!r} at d={d} needs the scale {scale!r}: choose another C")
    return scale


def required_variance(noise_multiplier: float, D2: float) -> float:
    """Give V = (z * D2)^2, the variance that must be in the sum: never (z*C*s)^2.

    Raises:
        UsageError: An argument is out of range.
    """
    z = require_real("noise multiplier z", noise_multiplier, 0.0, 1e9)
    sensitivity = require_real("D2", D2, 0.0, 2.0**62)
    return (z * sensitivity) ** 2


def honest_sites(n_min: int, colluding: int) -> int:
    """Give m_h = N_min - c: the sites whose noise is sure to be there and unknown (step 6).

    Raises:
        UsageError: Not 1 <= c < N_min.
    """
    require_count("N_min", n_min, 2**20)
    if isinstance(colluding, bool) or not isinstance(colluding, int) or not 1 <= colluding < n_min:
        raise UsageError(f"c is {colluding!r}, must be an integer with 1 <= c < N_min={n_min}")
    return n_min - colluding


def site_variance(variance: float, n_min: int, colluding: int) -> float:
    """Give V_site = V / m_h, rounded up so that V_site * m_h >= V holds in float64.

    Args:
        variance: V, grid units squared.
        n_min: N_min of the manifest, complete graph.
        colluding: c of the manifest.

    Raises:
        UsageError: An argument is out of range.
    """
    total = require_real("variance V", variance, 0.0, 2.0**128)
    count = honest_sites(n_min, colluding)
    share = total / count
    while share * count < total:
        share = math.nextafter(share, math.inf)
    return share


def bit_width(share: float, n_sites: int, signal_sd: float) -> int:
    """Give B so that the centred sum holds +-5 deviations of signal plus noise of all sites.

    Args:
        share: V_site, grid units squared.
        n_sites: Sites in the cohort: all of them add noise, not only m_h.
        signal_sd: Public constant: deviation of one coordinate of the summed signal, grid units.

    Returns:
        B in [8, 32].

    Raises:
        UsageError: More than 32 bits would be needed, or an argument is out of range.
    """
    variance = require_real("V_site", share, 0.0, 2.0**128)
    require_count("n_sites", n_sites, 2**20)
    signal = require_real("signal_sd", signal_sd, 0.0, 2.0**62, zero_allowed=True)
    half_range = math.ceil(RANGE_DEVIATIONS * math.sqrt(n_sites * variance + signal * signal))
    # Centred values lie in [-2^(B-1), 2^(B-1) - 1].
    bits = max(MIN_BITS, half_range.bit_length() + 1)
    if bits > MAX_BITS:
        raise UsageError(
            f"the sum needs B={bits} bits, the ring has at most {MAX_BITS}: lower the scale s"
            " (smaller d) or the noise multiplier"
        )
    return bits


def l1_sensitivity(D2: float, d: int) -> float:
    """Give D1 = min(sqrt(d) * D2, D2^2) of integer vectors with L2 norm at most D2."""
    return min(math.sqrt(d) * D2, D2 * D2)


def _with_l1(D2: float, d: int) -> IntegerSensitivity:
    return IntegerSensitivity(D1=l1_sensitivity(D2, d), D2=D2)


def _check_grid(clipping_norm: float, scale: float, d: int) -> None:
    require_real("clipping norm C", clipping_norm, 0.0, _MAX_NORM)
    require_real("scale s", scale, 0.0, _MAX_SCALE)
    require_count("dimension d", d, MAX_DIMENSION)


def _gamma(operations: int) -> float:
    """Give gamma_k = k*u / (1 - k*u), the relative error bound of k float64 operations."""
    product = operations * UNIT_ROUNDOFF
    if product >= 0.5:
        raise UsageError(f"{operations} float64 operations in one sum have no useful error bound")
    return product / (1 - product)
