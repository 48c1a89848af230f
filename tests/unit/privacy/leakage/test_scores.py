"""Likeness is measured as published, and each reconstruction counts for its best partner."""

import numpy as np
import pytest
import torch

from privacy.leakage.scores import best_pairs, matched_cells, matched_pictures, psnr, ssim

PICTURES = torch.rand(5, 3, 12, 12, generator=torch.Generator().manual_seed(0))


def test_psnr_is_that_of_the_mean_squared_error():
    assert float(psnr(torch.full((1, 1, 8, 8), 0.6), torch.full((1, 1, 8, 8), 0.5))) == (
        pytest.approx(20.0, abs=1e-3)
    )
    assert float(psnr(PICTURES, PICTURES).min()) == pytest.approx(100.0)


def test_ssim_is_one_for_the_same_and_small_for_another_or_grey():
    torch.testing.assert_close(ssim(PICTURES, PICTURES), torch.ones(5))
    assert float(ssim(PICTURES.roll(1, 0), PICTURES).abs().max()) < 0.3
    assert float(ssim(torch.full_like(PICTURES, 0.5), PICTURES).abs().max()) < 0.1


def test_ssim_weighs_windows_as_wang_et_al_do():
    rng = np.random.default_rng(1)
    left, right = rng.random((2, 9, 9))
    values = []
    for row in range(3):
        for column in range(3):
            a, b = (p[row : row + 7, column : column + 7] for p in (left, right))
            cov = (a * b).mean() - a.mean() * b.mean()
            top = (2 * a.mean() * b.mean() + 1e-4) * (2 * cov + 9e-4)
            bottom = (a.mean() ** 2 + b.mean() ** 2 + 1e-4) * (a.var() + b.var() + 9e-4)
            values.append(top / bottom)
    both = [torch.from_numpy(p)[None, None] for p in (left, right)]
    assert float(ssim(*both)) == pytest.approx(float(np.mean(values)))


def test_reconstructions_are_put_beside_their_originals():
    order = torch.tensor([3, 0, 4, 1, 2])
    noisy = (PICTURES + 0.05 * torch.randn(PICTURES.shape, generator=torch.Generator()))[order]
    matched = matched_pictures(noisy, PICTURES)
    assert float(psnr(matched, PICTURES).min()) > 20


def test_pairs_have_the_largest_total_not_the_largest_single_gain():
    assert best_pairs(torch.tensor([[3.0, 2.0], [2.5, 0.0]])).tolist() == [1, 0]


def test_rows_are_matched_by_cells():
    right = np.zeros((2, 2, 3), dtype=np.bool_)
    right[0, 1] = True
    right[1, 0, :2] = True
    assert matched_cells(right).tolist() == [1, 0]
