"""Name a model's architecture by one digest: modules, parameters and buffers, in order.

Two models of one architecture differ in their values only. The vector spec names the trainable
tensors; this digest also covers frozen ones, buffers, and what the modules are, so that a layer
cannot become another one of the same shapes.
"""

import json
from dataclasses import astuple, dataclass

from privacy.secagg.encoding import hash_of


@dataclass(frozen=True)
class ModuleFact:
    """A module: its place in the model, and the full name of its class."""

    name: str
    kind: str


@dataclass(frozen=True)
class TensorFact:
    """A parameter or buffer: its place, "trained", "frozen" or "buffer", shape and type."""

    name: str
    role: str
    shape: tuple[int, ...]
    dtype: str


def architecture_digest(modules: tuple[ModuleFact, ...], tensors: tuple[TensorFact, ...]) -> bytes:
    """Give the digest of an architecture: 32 bytes.

    Args:
        modules: In the order of the model.
        tensors: Likewise, parameters before buffers.
    """
    facts = [[astuple(module) for module in modules], [astuple(tensor) for tensor in tensors]]
    return hash_of("architecture", json.dumps(facts, separators=(",", ":")).encode("ascii"))
