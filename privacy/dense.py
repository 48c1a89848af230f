"""Take a site's long delta to integers in one pass: clip, map, scale and round, chunk by chunk.

Modes none and record-local, where no sensitivity is claimed for the sum; identity or rotation. What
comes out is what `clip`, `compress` and `quantise` give one after the other, in a sixth of their
time and without their float64 vectors: the norm may differ in its last bit, and so may a rotated
value, by the order in which products are added. A coordinate near 2^k steps then rounds to the
other side with a chance of about 2^(k-52): once in some 10^14 at 8 bits, in some 10^6 at 32.

Shapes: D = coordinates, d = integers after the map, s = of a chunk.
"""

import math
from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from privacy.clip import check_clipping_norm
from privacy.compress import LinearMap, MapKind
from privacy.errors import PeerError, Reason, UsageError
from privacy.kernels.compiled import loops_for
from privacy.keystream import Keystream, Label
from privacy.ring import check_bits

_CHUNK = 1 << 16  # coordinates: their coins and floats stay in the second-level cache
_EXACT = 2**53
_LANES = 16  # of the sum of squares
_NO_COINS = np.empty(0, np.uint32)
_KINDS = (MapKind.IDENTITY, MapKind.ROTATION)


def is_dense(linear_map: LinearMap) -> bool:
    """Say whether `round_delta` does this map, on this machine."""
    loops = loops_for(linear_map.length)
    if loops is None or linear_map.kind not in _KINDS:
        return False
    return linear_map.kind is MapKind.IDENTITY or linear_map.block == loops.BLOCK


def round_delta(
    values_D: NDArray[np.float32],
    clipping_norm: float,
    linear_map: LinearMap,
    scale: float,
    bits: int,
    rounding_seed: bytes | None = None,
) -> NDArray[np.integer] | None:
    """Clip, map, scale and round a delta.

    Args:
        values_D: float32, shape (D,), parameter units.
        clipping_norm: C, parameter units.
        linear_map: One that `is_dense`.
        scale: s, grid steps per unit.
        bits: Bit width B that the plan intends.
        rounding_seed: 32 secret bytes, used for nothing else: each value goes up with the
            probability of its fractional part (to 2^-32). None rounds to nearest, ties to even.

    Returns:
        Shape (d,), the narrowest integers that hold B bits; None if one leaves the ring, or
        the scale is too fine for float64.

    Raises:
        PeerError: NOT_FINITE: the delta holds a NaN or an infinity.
    """
    check_bits(bits)
    check_clipping_norm(clipping_norm)
    if clipping_norm * scale >= _EXACT:
        return None
    loops = _loops(linear_map.length)
    values_D = np.ascontiguousarray(values_D).view()
    values_D.flags.writeable = False  # one kind of array: the loops are compiled for each kind
    norm = l2_norm(values_D)
    if not math.isfinite(norm):
        message = "the local training gave NaN or infinity; lower the learning rate, check the data"
        raise PeerError(Reason.NOT_FINITE, message)
    factor = clipping_norm / norm if norm > clipping_norm else 1.0
    coins = None if rounding_seed is None else Keystream(rounding_seed, Label.ROUNDING)
    signs = Keystream(linear_map.seed, Label.MAP_SIGNS)
    rounded_d = np.empty(linear_map.output_length, dtype=_integers(bits))
    half = float(1 << (bits - 1))
    beyond = 0
    for begin in range(0, rounded_d.size, _CHUNK):
        source_s, rounded_s = (part[begin : begin + _CHUNK] for part in (values_D, rounded_d))
        coins_s = _NO_COINS if coins is None else coins.read(4 * rounded_s.size).view("<u4")
        if linear_map.kind is MapKind.ROTATION:
            sign_bits = signs.read(rounded_s.size // 8)
            beyond += loops.rotate_and_round(
                source_s, factor, sign_bits, scale, coins_s, half, rounded_s
            )
        else:
            beyond += loops.scale_and_round(source_s, factor, scale, coins_s, half, rounded_s)
    return None if beyond else rounded_d


def l2_norm(values_D: NDArray[np.float32]) -> float:
    """Take the L2 norm in float64: squares go to 16 lanes in turn, which are added at the end.

    Args:
        values_D: float32, long enough for the compiled loops.

    Returns:
        The norm; not finite where a value is not.
    """
    lanes = np.zeros(_LANES)
    _loops(values_D.size).square_sums(values_D, lanes)
    return math.sqrt(sum(lanes.tolist()))


def _loops(count: int) -> ModuleType:
    loops = loops_for(count)
    if loops is None:
        raise UsageError("this vector is too short for compiled loops: ask `is_dense` first")
    return loops


def _integers(bits: int) -> np.dtype[Any]:
    return np.dtype(np.int8 if bits <= 8 else np.int16 if bits <= 16 else np.int32)
