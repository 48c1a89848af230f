"""Lay out the low-rank map of a model: which tensors are matrices, and what stays beside them.

A difference of one round's training is close to low rank, matrix by matrix, so a site sends M·B
(rows x r) or Mᵀ·B (cols x r) instead of a matrix M (traffic.md, "Uplink"). The side alternates with
the model version: the factor that one version's sum gives is the next version's basis B. Of all
other coordinates, the *small* ones, a seeded random share is kept.

Everything here follows from the model's spec and three numbers of the job; the map itself stands in
`privacy.low_rank_map`, its bases in `privacy.basis`.

Shapes: D = gradient coordinates, r = rank.
"""

import itertools
from collections.abc import Iterable
from dataclasses import dataclass

from privacy.errors import PeerError, Reason
from privacy.spec import MAX_LENGTH, VectorSpec

MAX_RANK = 512
MAX_MATRICES = 1024
MIN_ENTRIES = 3_000
"""The fewest entries of a tensor that is taken as a matrix; a smaller one saves next to nothing."""

UNDECIDED = -1
"""The parity of a job's plan, which is of no version yet."""


@dataclass(frozen=True)
class Matrix:
    """One tensor as a matrix within the flat vector, rows first.

    Attributes:
        offset: Of its first entry.
        rows: The tensor's first dimension.
        cols: The product of the others.
        turn: 0 where even versions multiply it from the right, 1 where odd ones do.
    """

    offset: int
    rows: int
    cols: int
    turn: int

    @property
    def size(self) -> int:
        """Return its number of entries."""
        return self.rows * self.cols

    def rank(self, rank: int) -> int:
        """Return its own rank: no more columns than it has dimensions."""
        return min(rank, self.rows, self.cols)

    def from_right(self, parity: int) -> bool:
        """Say whether versions of a parity send M·B, and not Mᵀ·B."""
        return (parity + self.turn) % 2 == 0

    def basis_rows(self, parity: int) -> int:
        """Return the rows of its basis B."""
        return self.cols if self.from_right(parity) else self.rows

    def factor_rows(self, parity: int) -> int:
        """Return the rows of what is sent of it."""
        return self.rows if self.from_right(parity) else self.cols


@dataclass(frozen=True)
class LowRank:
    """The low-rank part of an encoding plan.

    Attributes:
        rank: r, the columns of each basis where a matrix has as many.
        matrices: In the order of the vector; may be none: then all coordinates are small.
        small_kept: How many of the other coordinates a seeded subset keeps.
        parity: Of the version that updates start from; ``UNDECIDED`` in the job's own plan.
        basis_digest: Names the version's bases, 32 bytes; empty in the job's own plan.

    Raises:
        PeerError: MALFORMED: a number is out of range, or the matrices overlap.
    """

    rank: int
    matrices: tuple[Matrix, ...]
    small_kept: int
    parity: int = UNDECIDED
    basis_digest: bytes = b""

    def __post_init__(self) -> None:
        decided = self.parity in (0, 1)
        ends = [0, *(matrix.offset + matrix.size for matrix in self.matrices)]
        good = (
            1 <= self.rank <= MAX_RANK
            and len(self.matrices) <= MAX_MATRICES
            and all(_is_sound(matrix) for matrix in self.matrices)
            and all(end <= m.offset for end, m in zip(ends, self.matrices, strict=False))
            and ends[-1] <= MAX_LENGTH
            and 0 <= self.small_kept <= MAX_LENGTH
            and (decided or self.parity == UNDECIDED)
            and len(self.basis_digest) == (32 if decided else 0)
            and (bool(self.matrices) or self.small_kept > 0)
        )
        if not good:
            raise PeerError(Reason.MALFORMED, "the plan's low-rank part is out of range")

    @property
    def end(self) -> int:
        """Return where the last matrix ends: a vector is at least so long."""
        return self.matrices[-1].offset + self.matrices[-1].size if self.matrices else 0

    @property
    def matrix_entries(self) -> int:
        """Return how many coordinates lie in matrices."""
        return sum(matrix.size for matrix in self.matrices)

    def payload(self, parity: int) -> int:
        """Return how many numbers versions of a parity send, metrics and padding apart."""
        return self.small_kept + sum(
            matrix.factor_rows(parity) * matrix.rank(self.rank) for matrix in self.matrices
        )

    def basis_shapes(self, parity: int) -> tuple[tuple[int, int], ...]:
        """Return the shapes of a version's bases, in the order of the matrices."""
        return tuple((m.basis_rows(parity), m.rank(self.rank)) for m in self.matrices)


def find_matrices(spec: VectorSpec) -> tuple[Matrix, ...]:
    """Find the tensors that are mapped as matrices, and which of them start from the right.

    Where there are more than `MAX_MATRICES`, the largest are taken. Turns are chosen so that the
    payloads of even and odd versions come out about equal: the largest difference first, each to
    the side that is behind.
    """
    found = []
    offset = 0
    for tensor in spec.tensors:
        if len(tensor.shape) > 1 and tensor.size >= MIN_ENTRIES:
            rows = tensor.shape[0]
            found.append((offset, rows, tensor.size // rows))
        offset += tensor.size
    if len(found) > MAX_MATRICES:
        found = sorted(sorted(found, key=lambda place: -place[1] * place[2])[:MAX_MATRICES])
    turns: dict[int, int] = {}
    ahead = 0  # how much more even versions send so far
    for at, rows, cols in sorted(found, key=lambda place: (-abs(place[1] - place[2]), place[0])):
        difference = rows - cols  # of even versions, if it starts from the right
        turns[at] = int(abs(ahead + difference) > abs(ahead - difference))
        ahead += -difference if turns[at] else difference
    return tuple(Matrix(at, rows, cols, turns[at]) for at, rows, cols in found)


def small_spans(matrices: Iterable[Matrix], length: int) -> list[tuple[int, int]]:
    """Give the runs of coordinates that lie in no matrix, as (begin, end).

    Args:
        matrices: In order.
        length: D.
    """
    edges = [0, *itertools.chain(*((m.offset, m.offset + m.size) for m in matrices)), length]
    return [(begin, end) for begin, end in zip(edges[::2], edges[1::2], strict=True) if begin < end]


def _is_sound(matrix: Matrix) -> bool:
    return (
        matrix.offset >= 0
        and matrix.rows >= 1
        and matrix.cols >= 1
        and matrix.turn in (0, 1)
        and matrix.size <= MAX_LENGTH
    )
