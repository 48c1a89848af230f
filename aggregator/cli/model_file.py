"""Read a released model from a file and check it against the consortium's CA."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open

from privacy.errors import UsageError
from tidegate import provenance
from tidegate.provenance import Provenance


@dataclass(frozen=True)
class CheckedModel:
    """A model whose tensors and provenance were checked."""

    provenance: Provenance
    tensors: Mapping[str, NDArray[np.float32]] = field(repr=False)


def read_model(file: Path, ca_pem: bytes) -> CheckedModel:
    """Read and check a model.

    Args:
        file: A safetensors file that `model export` wrote.
        ca_pem: The consortium's CA certificate.

    Raises:
        UsageError: It cannot be read.
        PeerError: It is not what a job of this consortium released; says what differs.
    """
    try:
        with safe_open(file, framework="numpy") as opened:
            metadata = opened.metadata() or {}
            tensors = {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118
    except (OSError, SafetensorError) as error:
        raise UsageError(f"{file} is no safetensors file: {error}") from error
    return CheckedModel(provenance.check(metadata, tensors, ca_pem), tensors)
