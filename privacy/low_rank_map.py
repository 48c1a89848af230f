"""Map a vector to the low-rank payload of its matrices, and back.

The vector is [gradient (D) | metrics (M)]. Of each matrix M·B or Mᵀ·B is taken, times the factor
that makes the basis' norm at most 1 (`privacy.basis`); of the small coordinates a seeded subset;
the metrics as they are. That payload is padded, given random signs and rotated in blocks, each of
which takes every (d/block)-th coordinate, so that all blocks hold some of every matrix and one step
size serves all. Each part has operator norm at most 1, hence the map has.

The decode is exact: rotation and products with int8 run on integers below 2^53 (over powers of
two), in any order and on any device; what follows are single, correctly rounded multiplications.
So all who decode one sum get the same bits.

Shapes: D = gradient coordinates, M = metrics, P = payload before its padding, metrics included, d =
integers on the wire, N = records.
"""

from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np
from numpy.typing import NDArray

from privacy.basis import Basis, BasisFactors
from privacy.compress import LinearMap, block_for, draw_signs, draw_subset, rotate_blocks
from privacy.errors import PeerError, Reason, UsageError
from privacy.keystream import check_seed
from privacy.low_rank import UNDECIDED, LowRank, Matrix, small_spans

_EXACT_BITS = 53
_ENTRY_BITS = 7


@dataclass(frozen=True, eq=False)
class LowRankMap:
    """A map of operator norm at most 1, fixed by a seed and public int8 bases.

    Attributes:
        layout: The plan's low-rank part.
        length: D + M.
        metrics: M.
        seed: 32 public bytes.
        basis: The version's; None where only lengths are wanted.

    Raises:
        PeerError: MALFORMED: the layout does not fit the length, or the bases the layout.
        UsageError: The seed is not 32 bytes.
    """

    layout: LowRank
    length: int
    metrics: int
    seed: bytes
    basis: Basis | None = None

    def __post_init__(self) -> None:
        check_seed(self.seed)
        layout, small = self.layout, self.gradient_length - self.layout.matrix_entries
        if layout.end > self.gradient_length or layout.small_kept > small:
            message = f"the low-rank layout does not fit a vector of {self.gradient_length}"
            raise PeerError(Reason.MALFORMED, message)
        if self.basis is not None and self.basis.digest != layout.basis_digest:
            raise PeerError(Reason.MALFORMED, "the bases are not those that the plan names")

    @property
    def gradient_length(self) -> int:
        """Return D."""
        return self.length - self.metrics

    @property
    def output_length(self) -> int:
        """Return d, all padding counted; of a job's own plan, the larger of both parities."""
        if self.layout.parity == UNDECIDED:
            return self.longest_output
        return self._padded(self.layout.parity)

    def output_at(self, parity: int) -> int:
        """Return d of the versions of a parity."""
        return self._padded(parity)

    @property
    def longest_output(self) -> int:
        """Return the larger d of even and odd versions: what sensitivities are counted with."""
        return max(self._padded(0), self._padded(1))

    @property
    def shortest_output(self) -> int:
        """Return the smaller d of both: what the spread of a sum's coordinates is bounded with."""
        return min(self._padded(0), self._padded(1))

    @property
    def shortest_block(self) -> int:
        """Return the smaller rotated block of both."""
        return min(block_for(self.layout.payload(parity) + self.metrics) for parity in (0, 1))

    @property
    def block(self) -> int:
        """Return the size of the rotation's blocks."""
        return block_for(self._payload)

    @property
    def metrics_part(self) -> slice:
        """Return where the metrics lie in a payload."""
        return slice(self._payload - self.metrics, self._payload)

    def exact_bits(self) -> int:
        """Return the widest ring whose sums this map decodes exactly, whatever the version."""
        block = max(block_for(self.layout.payload(parity) + self.metrics) for parity in (0, 1))
        used = (block * self.layout.rank - 1).bit_length() + _ENTRY_BITS
        return _EXACT_BITS - used

    def apply(self, records_ND: NDArray[np.floating]) -> NDArray[np.float64]:
        """Map one vector, or each row of a batch.

        Args:
            records_ND: float32 or float64, shape (D + M,) or (N, D + M).

        Returns:
            float64, shape (d,) or (N, d).

        Raises:
            UsageError: The last dimension is not D + M.
        """
        return self.rotate(self.project(records_ND))

    def project(self, records_ND: NDArray[np.floating]) -> NDArray[np.float64]:
        """Take the payload of vectors: the part of `apply` before signs and rotation.

        Returns:
            float64, shape (d,) or (N, d): P numbers, the last M of them the metrics, then zeros.
        """
        _check(records_ND, self.length)
        rows = records_ND.reshape(-1, self.length)
        payload = np.zeros((rows.shape[0], self.output_length))
        end = 0
        for matrix, columns, factors in self._with_basis():
            begin, end = end, end + self._part(matrix)
            entries = rows[:, matrix.offset : matrix.offset + matrix.size].astype(np.float64)
            whole = entries.reshape(-1, matrix.rows, matrix.cols)
            if not matrix.from_right(self.layout.parity):
                whole = whole.swapaxes(1, 2)
            payload[:, begin:end] = (whole @ columns).reshape(len(rows), -1)
            payload[:, begin:end] *= factors.norm
        small = slice(end, end + self.layout.small_kept)
        payload[:, small] = rows[:, self._small]
        payload[:, small.stop : self._payload] = rows[:, self.gradient_length :]
        return payload.reshape(*records_ND.shape[:-1], -1)

    def rotate(self, payload_d: NDArray[np.float64]) -> NDArray[np.float64]:
        """Give a payload its signs and rotate it: orthonormal."""
        _check(payload_d, self.output_length)
        signed = payload_d * draw_signs(self.seed, self.output_length)
        blocks = signed.reshape(-1, self.block, self.output_length // self.block)
        spread = np.ascontiguousarray(blocks.swapaxes(1, 2))
        return rotate_blocks(spread.reshape(payload_d.shape), self.block)

    def adjoint(self, mapped_d: NDArray[np.float64]) -> NDArray[np.float64]:
        """Apply the transposed map, shape (d,) or (N, d) to (D + M,) or (N, D + M)."""
        return self._back(mapped_d, [factors.norm for _, _, factors in self._with_basis()])

    def decode(self, mapped_d: NDArray[np.float64]) -> NDArray[np.float64]:
        """Map a sum back: matrices onto the span of their bases, left-out coordinates to zero.

        Args:
            mapped_d: Integers, float64, shape (d,) or (N, d).

        Returns:
            float64, shape (D + M,) or (N, D + M), exact but for one rounding each.
        """
        return self._back(mapped_d, [factors.decode for _, _, factors in self._with_basis()])

    def _back(self, mapped_d: NDArray[np.float64], scales: list[float]) -> NDArray[np.float64]:
        _check(mapped_d, self.output_length)
        spread = rotate_blocks(np.ascontiguousarray(mapped_d), self.block)
        blocks = spread.reshape(-1, self.output_length // self.block, self.block).swapaxes(1, 2)
        payload = blocks.reshape(-1, self.output_length)
        payload = payload * draw_signs(self.seed, self.output_length)
        rows = np.zeros((len(payload), self.length))
        end = 0
        for (matrix, columns, _), scale in zip(self._with_basis(), scales, strict=True):
            begin, end = end, end + self._part(matrix)
            factor = payload[:, begin:end].reshape(len(payload), -1, columns.shape[1])
            whole = factor @ columns.T
            if not matrix.from_right(self.layout.parity):
                whole = whole.swapaxes(1, 2)
            entries = slice(matrix.offset, matrix.offset + matrix.size)
            rows[:, entries] = whole.reshape(len(payload), -1)
            rows[:, entries] *= scale
        small = slice(end, end + self.layout.small_kept)
        rows[:, self._small] = payload[:, small]
        rows[:, self.gradient_length :] = payload[:, small.stop : self._payload]
        return rows.reshape(*mapped_d.shape[:-1], -1)

    def _with_basis(self) -> list[tuple[Matrix, NDArray[np.float64], BasisFactors]]:
        basis = self.basis
        if basis is None:
            raise UsageError("this plan is of no version yet: its map has no basis")
        return list(zip(self.layout.matrices, basis.floats, basis.factors, strict=True))

    def _part(self, matrix: Matrix) -> int:
        return matrix.factor_rows(self.layout.parity) * matrix.rank(self.layout.rank)

    def _padded(self, parity: int) -> int:
        payload = self.layout.payload(parity) + self.metrics
        return payload + -payload % block_for(payload)

    @property
    def _payload(self) -> int:
        """Return P of the version."""
        return self.layout.payload(max(0, self.layout.parity)) + self.metrics

    @cached_property
    def _small(self) -> NDArray[np.intp]:
        """Return the small coordinates that are kept, in order."""
        small = _small_coordinates(self.layout.matrices, self.gradient_length)
        if not self.layout.small_kept:
            return small[:0]
        return small[draw_subset(self.seed, small.size, self.layout.small_kept)]


SharedMap = LinearMap | LowRankMap
"""A linear map that all sites of a round share."""


@lru_cache(maxsize=2)
def _small_coordinates(matrices: tuple[Matrix, ...], length: int) -> NDArray[np.intp]:
    spans = [np.arange(begin, end) for begin, end in small_spans(matrices, length)]
    return np.concatenate(spans) if spans else np.zeros(0, dtype=np.intp)


def _check(values: NDArray[np.floating], length: int) -> None:
    if values.ndim not in (1, 2) or values.shape[-1] != length:
        message = f"the map takes vectors of {length} coordinates, not shape {values.shape}"
        raise UsageError(message)
