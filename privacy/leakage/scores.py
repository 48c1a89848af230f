"""Measure how much of the originals a reconstruction shows, each matched with its best partner.

Shapes: N = records, C, H, W = channels and pixels, K = cells of a record.
"""

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.optimize import linear_sum_assignment
from torch import Tensor
from torch.nn import functional

_WINDOW = 7
_STABLE = (0.01**2, 0.03**2)  # of Wang et al. 2004, for values of 0..1
_MOST_DB = 100.0


def best_pairs(gain_NN: Tensor) -> Tensor:
    """Assign reconstructions to originals so that the total gain is largest.

    Args:
        gain_NN: Gain of reconstruction (row) for original (column).

    Returns:
        For each original, its reconstruction, shape (N,).
    """
    rows, columns = linear_sum_assignment(gain_NN.cpu().double().numpy(), maximize=True)
    chosen = np.empty(len(columns), dtype=np.int64)
    chosen[columns] = rows
    return torch.from_numpy(chosen)


def psnr(left: Tensor, right: Tensor) -> Tensor:
    """Give the peak signal-to-noise ratio of pictures of 0..1, dB, capped; shape (N,)."""
    error = (left.clamp(0, 1) - right).square().flatten(1).mean(dim=1)
    return -10 * error.clamp_min(10 ** (-_MOST_DB / 10)).log10()


def ssim(left: Tensor, right: Tensor) -> Tensor:
    """Give the structural similarity of pictures of 0..1, shape (N,).

    Wang, Bovik, Sheikh, Simoncelli 2004, with square windows of equal weights.

    Args:
        left: Shape (N, C, H, W).
        right: Same.
    """
    window = min(_WINDOW, *left.shape[-2:])

    def mean(values: Tensor) -> Tensor:
        return functional.avg_pool2d(values, window, 1)

    a, b = left.clamp(0, 1), right
    mean_a, mean_b = mean(a), mean(b)
    var_a, var_b = mean(a * a) - mean_a**2, mean(b * b) - mean_b**2
    cov = mean(a * b) - mean_a * mean_b
    low, wide = _STABLE
    top = (2 * mean_a * mean_b + low) * (2 * cov + wide)
    bottom = (mean_a**2 + mean_b**2 + low) * (var_a + var_b + wide)
    return (top / bottom).flatten(1).mean(dim=1)


def matched_pictures(found: Tensor, originals: Tensor) -> Tensor:
    """Order reconstructed pictures by the originals that they are most like.

    Args:
        found: Shape (N, C, H, W).
        originals: Same.
    """
    flat, true = found.clamp(0, 1).flatten(1), originals.flatten(1)
    error = torch.cdist(flat, true).square() / flat.shape[1]
    return found[best_pairs(-error)]


def matched_cells(right_NNK: NDArray[np.bool_]) -> NDArray[np.int64]:
    """Assign reconstructed rows to originals so that most cells are right, shape (N,)."""
    gain = torch.from_numpy(right_NNK.mean(axis=2))
    return best_pairs(gain).numpy()
