"""Make and check the public bases of the low-rank map, and the factors that go with them.

A basis is data, int8, so that every vendor's devices hold the same one: floating-point QR and
random numbers differ between them (traffic.md). Its columns are nearly orthogonal; what they lack
of it is made good by two numbers that all ends compute alike from exact integers:

- the *norm factor* c, the largest float64 with c^2 * g <= 1, where g is the largest absolute row
  sum of the Gram matrix BᵀB. By Gershgorin g bounds the square of B's operator norm, so c*B has
  norm 1 at most whatever bytes came: the map raises no clipping bound (D-REC step 4);
- the *decode factor* 1/(c * mean of diag BᵀB), by which X·Bᵀ is the projection of M on B's span
  when the columns are orthogonal and alike. Using (BᵀB)⁻¹ would cost the exactness of the decode
  for a gain below the error of the int8 entries (ADR 19).

Shapes: b = rows of a basis, r = its columns.
"""

import math
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from privacy.errors import PeerError, Reason
from privacy.keystream import Keystream, Label
from privacy.low_rank import LowRank
from privacy.secagg.encoding import hash_of

_MOST = 127
_DITHER = 1e-6  # relative: gives columns that a sum left empty a direction of their own


@dataclass(frozen=True)
class BasisFactors:
    """The two public factors of one matrix's basis; see the module."""

    norm: float
    decode: float


@dataclass(frozen=True, eq=False, repr=False)
class Basis:
    """One version's bases, in the order of the matrices.

    Attributes:
        columns: int8, each of shape (b, r) of its matrix.

    Raises:
        PeerError: MALFORMED: a basis is all zeros, or has an entry of -128.
    """

    columns: tuple[NDArray[np.int8], ...]

    def __post_init__(self) -> None:
        for columns in self.columns:
            if not columns.any():
                raise PeerError(Reason.MALFORMED, "a basis of zeros maps everything to nothing")
            if columns.min() < -_MOST:
                raise PeerError(Reason.MALFORMED, "the entries of a basis lie in -127..127")

    @classmethod
    def from_bytes(cls, layout: LowRank, parity: int, raw: bytes) -> "Basis":
        """Read the bases of a version as they came.

        Args:
            layout: The plan's.
            parity: Of the version.
            raw: The entries, row by row, matrix by matrix.

        Raises:
            PeerError: MALFORMED: another length than the plan's, or as the class.
        """
        shapes = layout.basis_shapes(parity)
        length = sum(rows * columns for rows, columns in shapes)
        if len(raw) != length:
            message = f"the bases of this version have {length} entries, not {len(raw)}"
            raise PeerError(Reason.MALFORMED, message)
        entries = np.frombuffer(raw, dtype=np.int8)
        begin, found = 0, []
        for rows, columns in shapes:
            found.append(entries[begin : begin + rows * columns].reshape(rows, columns))
            begin += rows * columns
        return cls(tuple(found))

    def to_bytes(self) -> bytes:
        """Return the entries, row by row, matrix by matrix."""
        return b"".join(columns.tobytes() for columns in self.columns)

    @cached_property
    def digest(self) -> bytes:
        """Return what names the bases in a version's plan, 32 bytes."""
        return hash_of("basis", self.to_bytes())

    @cached_property
    def factors(self) -> tuple[BasisFactors, ...]:
        """Return the factors of each basis."""
        return tuple(_factors(columns) for columns in self.columns)

    @cached_property
    def floats(self) -> tuple[NDArray[np.float64], ...]:
        """Return the same entries as float64, for products."""
        return tuple(columns.astype(np.float64) for columns in self.columns)


def first_basis(layout: LowRank, parity: int, seed: bytes) -> Basis:
    """Draw bases for a version that no sum came before: signs of a public stream, one bit each.

    Args:
        layout: The plan's.
        parity: Of the version.
        seed: 32 public bytes, the version's own.
    """
    stream = Keystream(seed, Label.MAP_BASIS)
    drawn = []
    for rows, columns in layout.basis_shapes(parity):
        raw = stream.read(-(-rows * columns // 8))
        bits = np.unpackbits(raw, count=rows * columns, bitorder="little")
        drawn.append((1 - 2 * bits.astype(np.int8)).reshape(rows, columns))
    return Basis(tuple(drawn))


def next_basis(
    layout: LowRank, basis: Basis, gradient_D: NDArray[np.float64], seed: bytes
) -> Basis:
    """Make the next version's bases from what a version's public sum decoded to.

    The factor that was sent is M·B, up to its scale; orthonormalised it spans what the sum has
    learnt of the matrix's other side (one step of a power iteration). In float64 on the CPU, by
    the aggregator alone: the result is sent as data.

    Args:
        layout: Of the version's plan, its parity decided.
        basis: The version's.
        gradient_D: The decoded mean; the matrices' coordinates are finite.
        seed: 32 public bytes, for directions that the sum says nothing of.
    """
    spare = first_basis(layout, 1 - layout.parity, seed)
    made = []
    for matrix, columns, signs in zip(layout.matrices, basis.floats, spare.floats, strict=True):
        entries = gradient_D[matrix.offset : matrix.offset + matrix.size]
        whole = entries.reshape(matrix.rows, matrix.cols)
        factor = (whole if matrix.from_right(layout.parity) else whole.T) @ columns
        most = float(np.abs(factor).max())
        factor = factor / most if most > 0 else factor
        spread = np.linalg.qr(factor + _DITHER * signs)[0]
        scaled = spread * (_MOST / np.abs(spread).max())
        made.append(np.rint(scaled).astype(np.int8))
    return Basis(tuple(made))


def _factors(columns: NDArray[np.int8]) -> BasisFactors:
    """Compute both factors from the Gram matrix; integers below 2^53 are exact in float64."""
    floats = columns.astype(np.float64)
    gram = np.abs(floats.T @ floats).astype(np.int64)
    bound, trace = int(gram.sum(axis=0).max()), int(np.trace(gram))
    norm = 1.0 / math.sqrt(bound)
    while Fraction(norm) ** 2 * bound > 1:
        norm = math.nextafter(norm, 0.0)
    return BasisFactors(norm, columns.shape[1] / trace / norm)
