"""Fix the order in which a model's tensors form one flat vector.

Every site and the aggregator must agree on which coordinate is which, or a sum means nothing. The
spec names the tensors in order with their shapes; its canonical bytes go into the plan that is
signed (secure-aggregation.md, ``mh``). Tensors are float32; nothing is cast, reordered or padded.

Shapes: D = coordinates of the flat vector.
"""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from privacy.errors import PeerError, Reason
from privacy.secagg.encoding import hash_of

MAX_TENSORS = 65_536
MAX_LENGTH = 2**34


@dataclass(frozen=True)
class TensorSpec:
    """One tensor of the vector: its name and shape."""

    name: str
    shape: tuple[int, ...]

    @property
    def size(self) -> int:
        """Return the number of coordinates; 1 for a scalar."""
        return math.prod(self.shape)


@dataclass(frozen=True)
class VectorSpec:
    """The tensors of a model in the order of the flat vector.

    Attributes:
        tensors: Names are unique, dimensions at least 1, the order is that of the vector.

    Raises:
        PeerError: WRONG_SHAPE: no tensor, a name twice or empty, or a dimension below 1.
    """

    tensors: tuple[TensorSpec, ...]

    def __post_init__(self) -> None:
        names = [tensor.name for tensor in self.tensors]
        if not 1 <= len(names) <= MAX_TENSORS:
            _refuse(f"a vector holds 1 to {MAX_TENSORS} tensors, not {len(names)}")
        if len(set(names)) != len(names) or "" in names:
            _refuse("every tensor of a vector needs a name of its own")
        for tensor in self.tensors:
            if any(dimension < 1 for dimension in tensor.shape):
                _refuse(f"tensor {tensor.name!r} has an empty dimension: {tensor.shape}")
        if self.length > MAX_LENGTH:
            _refuse(f"{self.length} coordinates are more than {MAX_LENGTH}")

    @classmethod
    def of(cls, arrays: Mapping[str, NDArray[np.float32]]) -> "VectorSpec":
        """Describe arrays in the order in which the mapping gives them.

        Raises:
            PeerError: WRONG_SHAPE: an array is not float32, or the spec would not be valid.
        """
        for name, array in arrays.items():
            _check_dtype(name, array)
        return cls(tuple(TensorSpec(name, tuple(a.shape)) for name, a in arrays.items()))

    @classmethod
    def from_bytes(cls, raw: bytes) -> "VectorSpec":
        """Read a spec from its canonical bytes.

        Raises:
            PeerError: MALFORMED: these are not the canonical bytes of any spec; WRONG_SHAPE: they
                are, of one that is not valid.
        """
        try:
            pairs = json.loads(raw)
            spec = cls(tuple(TensorSpec(*_name_and_shape(pair)) for pair in pairs))
        except (ValueError, TypeError, RecursionError) as error:
            message = "a vector spec is a JSON list of [name, [dimensions]]"
            raise PeerError(Reason.MALFORMED, message) from error
        if spec.to_bytes() != raw:
            message = "a vector spec must come in its canonical form: compact JSON, ASCII"
            raise PeerError(Reason.MALFORMED, message)
        return spec

    def to_bytes(self) -> bytes:
        """Return the canonical bytes: compact ASCII JSON, a list of [name, [dimensions]]."""
        pairs = [[tensor.name, list(tensor.shape)] for tensor in self.tensors]
        return json.dumps(pairs, separators=(",", ":")).encode("ascii")

    @cached_property
    def digest(self) -> bytes:
        """Return the spec's name in plans: 32 bytes."""
        return hash_of("vector-spec", self.to_bytes())

    @cached_property
    def length(self) -> int:
        """Return D, the number of coordinates."""
        return sum(tensor.size for tensor in self.tensors)

    def flatten(self, arrays: Mapping[str, NDArray[np.float32]]) -> NDArray[np.float32]:
        """Copy named arrays into one flat vector.

        Args:
            arrays: One float32 array a tensor, in any order of names, of exactly its shape.

        Returns:
            A new vector, shape (D,).

        Raises:
            PeerError: WRONG_SHAPE: a tensor is missing, unknown, of another shape or not float32.
        """
        if arrays.keys() != {tensor.name for tensor in self.tensors}:
            wrong = sorted(arrays.keys() ^ {tensor.name for tensor in self.tensors})
            _refuse(f"tensors missing or unknown: {', '.join(wrong[:5])}")
        flat_D = np.empty(self.length, dtype=np.float32)
        begin = 0
        for tensor in self.tensors:
            array = arrays[tensor.name]
            _check_dtype(tensor.name, array)
            if tuple(array.shape) != tensor.shape:
                _refuse(f"tensor {tensor.name!r} has shape {array.shape}, not {tensor.shape}")
            flat_D[begin : begin + tensor.size] = array.reshape(-1)
            begin += tensor.size
        return flat_D

    def unflatten(self, flat_D: NDArray[np.float32]) -> dict[str, NDArray[np.float32]]:
        """Show a flat vector as named arrays that share its memory.

        Args:
            flat_D: Contiguous, shape (D,).

        Returns:
            Views in the order of the spec: writing to one writes to the vector.

        Raises:
            PeerError: WRONG_SHAPE: the vector is not float32 or not of shape (D,).
        """
        self.check(flat_D)
        arrays = {}
        begin = 0
        for tensor in self.tensors:
            arrays[tensor.name] = flat_D[begin : begin + tensor.size].reshape(tensor.shape)
            begin += tensor.size
        return arrays

    def check(self, flat_D: NDArray[np.float32]) -> None:
        """Refuse what is not a contiguous float32 vector of D coordinates.

        Raises:
            PeerError: WRONG_SHAPE.
        """
        _check_dtype("flat vector", flat_D)
        if flat_D.shape != (self.length,):
            _refuse(f"the flat vector has shape {flat_D.shape}, not ({self.length},)")
        if not flat_D.flags.c_contiguous:
            _refuse("the flat vector is strided; copy it into a contiguous one")


def _name_and_shape(pair: object) -> tuple[str, tuple[int, ...]]:
    if not isinstance(pair, list) or len(pair) != 2:
        raise TypeError
    name, shape = pair
    if not isinstance(name, str) or not isinstance(shape, list):
        raise TypeError
    if any(type(dimension) is not int for dimension in shape):  # True is an int elsewhere
        raise TypeError
    return name, tuple(shape)


def _check_dtype(name: str, array: object) -> None:
    if not isinstance(array, np.ndarray) or array.dtype != np.float32:
        kind = array.dtype if isinstance(array, np.ndarray) else type(array).__name__
        _refuse(f"{name!r} must be a float32 array, not {kind}")


def _refuse(message: str) -> None:
    raise PeerError(Reason.WRONG_SHAPE, message)
