"""Map vectors linearly, in the same way at every site of a round.

Only a linear map that all sites share and that is known before masking can be undone after the sum
(traffic.md). The map is drawn from the round's public seed through integers alone: bits of
AES-256-CTR as signs, sorted 64-bit keys as subset; no floating-point random numbers, which differ
between vendors. Its operator norm is at most 1, so what the clip has bounded stays bounded: signs
and block Hadamard matrices are orthonormal, a subset of coordinates only leaves some out and scales
nothing up (privacy.md, D-REC step 4).

A vector is a body followed by a tail: the body is mapped, the tail (the metrics, where a subset
would lose them) passes unchanged. Without a subset the whole vector is body.

Shapes: D = coordinates of the vector, d = coordinates after the map and its padding, N = records.
"""

import math
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property, lru_cache

import numpy as np
from numpy.typing import NDArray

from privacy.clip import ClippedDelta
from privacy.errors import UsageError
from privacy.kernels.compiled import loops_for
from privacy.keystream import Keystream, Label, check_seed

_BLOCK_SIZES = (4096, 1024, 256, 64, 16, 4, 1)
"""Squares of powers of two: a block is two small matrix products and 1/sqrt(block) is exact."""

_BATCH = 1 << 16  # coordinates rotated at once: the working arrays stay in the second-level cache


class MapKind(StrEnum):
    """The linear maps there are, by their names in job files."""

    IDENTITY = "identity"
    ROTATION = "rotation"
    RANDOM_K = "random-k"
    ROTATION_RANDOM_K = "rotation+random-k"
    LOW_RANK = "low-rank"

    @property
    def rotates(self) -> bool:
        """Say whether signs and block Hadamard matrices are part of the map."""
        return self in (MapKind.ROTATION, MapKind.ROTATION_RANDOM_K, MapKind.LOW_RANK)

    @property
    def selects(self) -> bool:
        """Say whether a subset of the whole gradient's coordinates is part of the map."""
        return self in (MapKind.RANDOM_K, MapKind.ROTATION_RANDOM_K)

    @property
    def loses(self) -> bool:
        """Say whether the map leaves something out that decoding cannot bring back."""
        return self.selects or self is MapKind.LOW_RANK


@dataclass(frozen=True, repr=False)
class CompressedDelta:
    """A clipped delta after the shared map.

    Attributes:
        values_d: float64, shape (d,), parameter units.
        clipping_norm: Bound on the L2 norm, parameter units: the map has not raised it.
    """

    values_d: NDArray[np.float64]
    clipping_norm: float


@dataclass(frozen=True)
class LinearMap:
    """A map of operator norm at most 1 from D to d coordinates, fixed by integers.

    Attributes:
        kind: Which parts the map has.
        length: D, coordinates of the vector with its tail.
        tail: Trailing coordinates that pass unchanged; 0 for a map that keeps all coordinates.
        kept: Coordinates of the (rotated) body that a subset keeps; 0 where there is no subset.
        seed: 32 public bytes.

    Raises:
        UsageError: A length, the seed or the combination is out of range.
    """

    kind: MapKind
    length: int
    tail: int
    kept: int
    seed: bytes

    def __post_init__(self) -> None:
        check_seed(self.seed)
        if self.kind is MapKind.LOW_RANK:
            raise UsageError("the low-rank map is one of its own: `privacy.low_rank_map`")
        if not 0 <= self.tail < self.length:
            message = f"a tail of {self.tail} leaves nothing of {self.length} coordinates to map"
            raise UsageError(message)
        if self.kind.selects and not 1 <= self.kept <= self._rotated:
            message = f"a subset must keep 1 to {self._rotated} coordinates, not {self.kept}"
            raise UsageError(message)
        if not self.kind.selects and (self.kept or self.tail):
            message = f"the map {self.kind} keeps every coordinate: it takes no subset and no tail"
            raise UsageError(message)

    @property
    def output_length(self) -> int:
        """Return d, all padding counted: the d of the accountant and of the wire."""
        return (self.kept if self.kind.selects else self._rotated) + self.tail

    @cached_property
    def block(self) -> int:
        """Return the block size: the largest of ours that pads the body by at most an eighth."""
        return block_for(self.length - self.tail)

    def apply(self, records_ND: NDArray[np.floating]) -> NDArray[np.float64]:
        """Map one vector, or each row of a batch.

        Args:
            records_ND: float32 or float64, shape (D,) or (N, D).

        Returns:
            float64, shape (d,) or (N, d). The identity gives back its argument where it can.

        Raises:
            UsageError: The last dimension is not D.
        """
        self._check(records_ND, self.length)
        mapped = records_ND.astype(np.float64, copy=False)
        if self.kind is MapKind.IDENTITY:
            return mapped
        body, tail = np.split(mapped, [self.length - self.tail], axis=-1)
        if self.kind.rotates:
            padded = np.zeros((*body.shape[:-1], self._rotated))
            np.multiply(body, self._signs[: body.shape[-1]], out=padded[..., : body.shape[-1]])
            body = rotate_blocks(padded, self.block)
        if self.kind.selects:
            body = body.take(self._subset, axis=-1)
        return np.concatenate([body, tail], axis=-1) if self.tail else body

    def adjoint(self, mapped_d: NDArray[np.float64]) -> NDArray[np.float64]:
        """Map back: the inverse where no coordinate was left out, else zeros in place of those.

        Args:
            mapped_d: float64, shape (d,) or (N, d).

        Returns:
            float64, shape (D,) or (N, D).

        Raises:
            UsageError: The last dimension is not d.
        """
        self._check(mapped_d, self.output_length)
        if self.kind is MapKind.IDENTITY:
            return mapped_d
        body, tail = np.split(mapped_d, [self.output_length - self.tail], axis=-1)
        if self.kind.selects:
            spread = np.zeros((*body.shape[:-1], self._rotated))
            spread[..., self._subset] = body
            body = spread
        if self.kind.rotates:
            body = rotate_blocks(body, self.block) * self._signs
        return np.concatenate([body[..., : self.length - self.tail], tail], axis=-1)

    def decode(self, mapped_d: NDArray[np.float64]) -> NDArray[np.float64]:
        """Map a sum back as the aggregator reads it: the adjoint, for kept coordinates stay as are.

        Args:
            mapped_d: float64, shape (d,) or (N, d).
        """
        return self.adjoint(mapped_d)

    def output_at(self, _parity: int) -> int:
        """Return d of the versions of a parity: here all have the same."""
        return self.output_length

    @property
    def longest_output(self) -> int:
        """Return the largest d of any version: here all have the same."""
        return self.output_length

    @property
    def shortest_output(self) -> int:
        """Return the smallest d of any version: here all have the same."""
        return self.output_length

    @property
    def shortest_block(self) -> int:
        """Return the smallest rotated block of any version: 1 where nothing is rotated."""
        return self.block if self.kind.rotates else 1

    @property
    def inner_dimensions(self) -> tuple[int, ...]:
        """Return the inner dimension of each matrix product, for bounds on float error."""
        return (math.isqrt(self.block),) * 2 if self.kind.rotates else ()

    @property
    def _rotated(self) -> int:
        """Return the body's length after the rotation, before a subset is taken."""
        body = self.length - self.tail
        return body + (-body % self.block if self.kind.rotates else 0)

    @property
    def _signs(self) -> NDArray[np.float64]:
        return draw_signs(self.seed, self._rotated)

    @property
    def _subset(self) -> NDArray[np.intp]:
        return draw_subset(self.seed, self._rotated, self.kept)

    def _check(self, values: NDArray[np.floating], length: int) -> None:
        if values.ndim not in (1, 2) or values.shape[-1] != length:
            message = f"the map takes vectors of {length} coordinates, not shape {values.shape}"
            raise UsageError(message)


def compress(delta: ClippedDelta, linear_map: LinearMap) -> CompressedDelta:
    """Apply the round's shared map to a clipped delta.

    Args:
        delta: Clipped, of the map's D coordinates.
        linear_map: The same for every site of the round.

    Raises:
        UsageError: The lengths differ.
    """
    return CompressedDelta(linear_map.apply(delta.values_D), delta.clipping_norm)


def block_for(body: int) -> int:
    """Return the largest of our block sizes that pads a body by at most an eighth."""
    return next(block for block in _BLOCK_SIZES if -body % block <= body // 8)


def rotate_blocks(values: NDArray[np.float64], block: int) -> NDArray[np.float64]:
    """Multiply each block by the orthonormal Hadamard matrix (Sylvester), side by side squared."""
    if block == 1:
        return values
    loops = loops_for(values.size)
    if loops is not None and block == loops.BLOCK and values.flags.c_contiguous:
        turned = np.empty_like(values)
        source = values.reshape(-1)
        source.flags.writeable = False  # one kind of array: the loop is compiled for each kind
        loops.rotate_blocks(source, turned.reshape(-1))
        return turned
    side = math.isqrt(block)
    matrix = _sylvester(side)
    squares = values.reshape(-1, side, side)
    rotated = np.empty_like(squares)
    step = max(1, _BATCH // block)
    for begin in range(0, squares.shape[0], step):
        # H_block = H_side (x) H_side, and H_side is symmetric: rows, then columns of a square.
        rows = squares[begin : begin + step] @ matrix
        np.matmul(matrix / side, rows, out=rotated[begin : begin + step])
    return rotated.reshape(values.shape)


@lru_cache(maxsize=len(_BLOCK_SIZES))
def _sylvester(side: int) -> NDArray[np.float64]:
    """Build the symmetric Hadamard matrix of a block's side: entries +-1."""
    matrix = np.ones((1, 1))
    while matrix.shape[0] < side:
        matrix = np.block([[matrix, matrix], [matrix, -matrix]])
    matrix.flags.writeable = False
    return matrix


@lru_cache(maxsize=4)
def draw_signs(seed: bytes, count: int) -> NDArray[np.float64]:
    """Draw signs: bit i of the stream, lowest bit of a byte first; 1 stands for -1."""
    raw = Keystream(seed, Label.MAP_SIGNS).read(-(-count // 8))
    bits = np.unpackbits(raw, count=count, bitorder="little")
    signs = 1.0 - 2.0 * bits.astype(np.float64)
    signs.flags.writeable = False
    return signs


@lru_cache(maxsize=4)
def draw_subset(seed: bytes, count: int, kept: int) -> NDArray[np.intp]:
    """Draw a subset: the coordinates with the smallest 64-bit little-endian keys, in order.

    Of equal keys (a chance of count^2 / 2^65) the lower coordinate goes first.
    """
    keys = Keystream(seed, Label.MAP_SUBSET).read(8 * count).view("<u8")
    limit = np.partition(keys, kept - 1)[kept - 1]
    below = np.flatnonzero(keys < limit)
    tied = np.flatnonzero(keys == limit)[: kept - below.size]
    subset = np.sort(np.concatenate([below, tied]))
    subset.flags.writeable = False
    return subset
