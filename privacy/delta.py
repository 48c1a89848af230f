"""Take the difference that a site's local training made, as one flat vector.

A `Delta` is raw: nothing bounds it yet, so no stage but the clip accepts it. Record modes never
make one: their per-record gradients go into `privacy.pipeline.RecordAccumulator`.

Shapes: D = coordinates of the flat vector.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from privacy.spec import VectorSpec


@dataclass(frozen=True, repr=False)
class Delta:
    """Local minus global parameters.

    Attributes:
        values_D: float32, shape (D,), parameter units, in the order of the spec.
        spec_digest: The digest of that spec, 32 bytes.
    """

    values_D: NDArray[np.float32]
    spec_digest: bytes


def take_delta(
    spec: VectorSpec, local_D: NDArray[np.float32], global_D: NDArray[np.float32]
) -> Delta:
    """Subtract the global model from locally trained parameters.

    Args:
        spec: Order and shapes of both.
        local_D: Trained parameters, shape (D,).
        global_D: The published model version that training started from, shape (D,).

    Raises:
        PeerError: WRONG_SHAPE: either side does not fit the spec.
    """
    spec.check(local_D)
    spec.check(global_D)
    return Delta(local_D - global_D, spec.digest)
