"""The Hadamard rotation as it is defined, in numpy, one stage of butterflies after the other."""

import numpy as np


def butterflies(values_d: np.ndarray, block: int) -> np.ndarray:
    """Rotate each block: distances 1, 2, 4, ... in that order, then one division by sqrt(block)."""
    blocks = values_d.reshape(-1, block).copy()
    distance = 1
    while distance < block:
        pairs = blocks.reshape(len(blocks), -1, 2, distance)
        first, second = pairs[:, :, 0].copy(), pairs[:, :, 1].copy()
        pairs[:, :, 0] = first + second
        pairs[:, :, 1] = first - second
        distance *= 2
    return (blocks / np.sqrt(float(block))).reshape(values_d.shape)
