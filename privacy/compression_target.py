"""Find the map, rank and bits by which a job's updates get as small as the job file asks.

A target of "100x" means that an update takes a hundredth of the model in fp32, mean over even and
odd versions, padding and metrics included. The mildest means that reaches it is taken: fewer bits
for all coordinates, then a low-rank map of the largest rank that fits; where a model has no tensor
large enough for one, a seeded share of its coordinates.

Everything follows from the spec, the manifest's number of members and the mode, so both ends find
the same. Where the sum carries noise of its own, the noise fixes the bits and needs the plan first:
then `NOISED_BITS` are reckoned with.

Shapes: D = coordinates of the model, d = integers of an update.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

from privacy.compress import MapKind, block_for
from privacy.errors import UsageError
from privacy.low_rank import MAX_RANK, LowRank, Matrix, find_matrices
from privacy.pipeline import Mode
from privacy.spec import VectorSpec
from privacy.step_size import bits_for
from privacy.terms import CohortRules, PrivacyTerms

NOISED_BITS = 24
"""Bits that noised sums are reckoned with: B = 20 to 24 for d = 10^4 to 10^7 (privacy.md)."""

SMALL_SHARE = 0.1
"""Share of the small coordinates that is kept before a higher rank is paid for."""

LEAST_SHARE = 0.01
"""Least share of coordinates that is worth a round."""

_PADDING = 0.95  # what a dense target may miss by: padding is no reason to leave coordinates out
_FP32_BITS = 32


@dataclass(frozen=True)
class Size:
    """How large a job's updates are.

    Attributes:
        integers: d, mean over even and odd versions.
        bits: B.
        ratio: The model in fp32 over it.
    """

    integers: float
    bits: int
    ratio: float


def resolve(terms: PrivacyTerms, spec: VectorSpec, rules: CohortRules) -> PrivacyTerms:
    """Fill in what a job's compression leaves to be found.

    Args:
        terms: The job's; with neither target nor a map that needs bits they stay as they are.
        spec: The model's.
        rules: The manifest's.

    Returns:
        Terms without a target.

    Raises:
        UsageError: No setting reaches the target; says the nearest.
    """
    plain = terms.mode in (Mode.NONE, Mode.RECORD_LOCAL)
    bits = (terms.bits or bits_for(rules.members)) if plain else 0
    if not terms.target:
        coarse = terms.bits or terms.map_kind is MapKind.LOW_RANK
        return replace(terms, bits=bits) if plain and coarse else terms
    asked = replace(terms, target=0.0, bits=bits)
    dense = replace(asked, map_kind=MapKind.ROTATION, keep=1.0, rank=0, decay=0.0)
    if plain and size_of(dense, spec).ratio >= _PADDING * terms.target:
        return dense
    matrices = find_matrices(spec)
    small = spec.length - sum(matrix.size for matrix in matrices)

    def at(rank: int, kept: int) -> PrivacyTerms:
        share = kept / small if small else 1.0
        return replace(asked, map_kind=MapKind.LOW_RANK, rank=rank, keep=share)

    def fits(rank: int, kept: int) -> bool:
        return size_of(at(rank, kept), spec).ratio >= terms.target

    least = max(1, math.ceil(LEAST_SHARE * small)) if small else 0
    usual = max(least, math.ceil(SMALL_SHARE * small))
    rank = min(1, len(matrices))
    if not fits(rank, least):
        raise _unreached(terms.target, size_of(at(rank, least), spec).ratio)
    if matrices and fits(rank, usual):
        most = min(MAX_RANK, max(min(matrix.rows, matrix.cols) for matrix in matrices))
        rank = _largest(rank, most, lambda r: fits(r, usual))
        least = usual
    kept = _largest(least, small, lambda k: fits(rank, k))
    return at(rank, kept)


def size_of(terms: PrivacyTerms, spec: VectorSpec) -> Size:
    """Say how large updates come out by terms without a target.

    Args:
        terms: The job's, resolved.
        spec: The model's.
    """
    bits = terms.bits or (_FP32_BITS if terms.mode in (Mode.NONE, Mode.RECORD_LOCAL) else 0)
    bits = bits or NOISED_BITS
    if terms.map_kind is MapKind.LOW_RANK:
        lengths = _lengths(terms, spec)
    else:
        share = terms.keep if terms.map_kind.selects else 1.0
        body = math.ceil(share * spec.length) + terms.metrics_length
        pads = terms.map_kind is MapKind.ROTATION
        lengths = [body + (-body % block_for(body) if pads else 0)]
    mean = sum(lengths) / len(lengths)
    return Size(mean, bits, _FP32_BITS * spec.length / (bits * mean))


def _lengths(terms: PrivacyTerms, spec: VectorSpec) -> list[int]:
    matrices: tuple[Matrix, ...] = find_matrices(spec) if terms.rank else ()
    small = spec.length - sum(matrix.size for matrix in matrices)
    kept = min(small, max(1, math.ceil(terms.keep * small)))
    layout = LowRank(max(1, terms.rank), matrices, kept)
    payloads = [layout.payload(parity) + terms.metrics_length for parity in (0, 1)]
    return [payload + -payload % block_for(payload) for payload in payloads]


def _largest(low: int, high: int, good: Callable[[int], bool]) -> int:
    """Give the largest number from ``low``, which is good, to ``high`` by halving.

    Padding makes the sizes rise in steps now and then; what is found is good in any case.
    """
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if good(middle) else (low, middle - 1)
    return low


def _unreached(target: float, nearest: float) -> UsageError:
    return UsageError(
        f'[compression] target = "{target:g}x" is more than this model gives: with rank 1 and'
        f" {LEAST_SHARE:.0%} of the small coordinates an update is {nearest:.4g} times smaller"
        f' than the model in fp32; ask for "{math.floor(nearest)}x" at most'
    )
