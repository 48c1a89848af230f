"""Made-up records are of the declared columns, and always the same."""

import pytest
import torch

from privacy.leakage.fields import Field, FieldKind, draw_records
from privacy.leakage.scores import psnr

FIELDS = {
    FieldKind.IMAGE: (
        Field("x", "float32", (3, 32, 32), 0.0, 255.0),
        Field("x", "float32", (28, 28)),
        Field("x", "float32", (32, 24, 3), -1.0, 1.0),
        Field("x", "int64", (1, 8, 8), levels=256),
    ),
    FieldKind.TOKENS: (Field("x", "int64", (24,), levels=30_522),),
    FieldKind.CATEGORY: (
        Field("x", "int64", (), levels=8),
        Field("x", "float32", (), levels=3),
        Field("x", "int64", (), -2.0, 5.0),
    ),
    FieldKind.NUMBER: (
        Field("x", "float32", (), 0.0, 1e6),
        Field("x"),
        Field("x", "float32", (64,), 0.0, 16.0),
        Field("x", "int64", (), 0.0, 1e6),
    ),
}


@pytest.mark.parametrize(("kind", "field"), [(k, f) for k, fs in FIELDS.items() for f in fs])
def test_a_column_is_what_its_declaration_says(kind, field):
    assert field.kind is kind
    drawn = draw_records((field,), 16, torch.Generator().manual_seed(3))[field.name]
    again = draw_records((field,), 16, torch.Generator().manual_seed(3))[field.name]
    low, high = field.bounds
    assert drawn.shape == (16, *field.shape)
    assert drawn.dtype is getattr(torch, field.dtype)
    assert low <= drawn.min()
    assert drawn.max() <= high
    assert torch.equal(drawn, again)


def test_numbers_come_back_from_their_place_between_the_bounds():
    unit = torch.linspace(0.01, 0.99, 50)
    for field in (Field("x", low=-3.0, high=9.0), Field("x", low=5.0, high=1e6)):
        torch.testing.assert_close(field.to_unit(field.from_unit(unit)), unit, atol=1e-4, rtol=0)


def test_amounts_with_wide_bounds_are_small_as_often_as_large():
    amounts = draw_records((Field("x", low=0.0, high=1e6),), 1000, torch.Generator())["x"]
    assert 0.3 < float((amounts < 1000).float().mean()) < 0.7


def test_made_up_pictures_are_far_from_grey_and_smooth():
    field = Field("x", "float32", (3, 32, 32), 0.0, 1.0)
    pictures = draw_records((field,), 64, torch.Generator().manual_seed(0))["x"]
    assert 8.5 < float(psnr(torch.full_like(pictures, 0.5), pictures).mean()) < 11.5
    steps = pictures.diff(dim=-1).abs().mean()
    assert float(steps) < 0.2 * float(pictures.std())


def test_targets_without_levels_are_drawn_as_zeros_and_ones():
    drawn = draw_records((Field("y"),), 64, torch.Generator(), frozenset({"y"}))["y"]
    assert set(drawn.tolist()) == {0.0, 1.0}
