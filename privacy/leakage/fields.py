"""Say what a record's columns are, and make records up that an attack's success shows on.

An audit never needs real records. Pictures are smooth with edges, so that a likeness means
something; tokens and categories are uniform, so that chance is known; numbers lie between their
declared bounds, on a logarithmic scale where these are wide, as amounts do.

Shapes: N = records, H, W = pixels, L = tokens.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

import torch
from torch import Tensor
from torch.nn import functional

Batch = Mapping[str, Tensor]
"""Columns by name, each of shape (N, *shape of the column)."""

_MIN_SIDE = 8  # smaller squares of numbers are no pictures
_MAX_CHANNELS = 4
_MAX_CATEGORIES = 256  # whole numbers between closer bounds are categories
_WIDE = 1e3
_DECADES = 6.0
_OCTAVES = (2, 4, 8)
_SHAPES = 3
_CONTRAST = 2.2  # grey is then about 10 dB from a picture, as it is from photographs


class FieldKind(StrEnum):
    """What attacks a column calls for."""

    IMAGE = "image"
    TOKENS = "tokens"
    CATEGORY = "category"
    NUMBER = "number"


@dataclass(frozen=True)
class Field:
    """One column of a record, in the words of a job's ``[[columns]]``.

    Attributes:
        name: As the task's batch calls it.
        dtype: "float32" or "int64".
        shape: Of one record's value; () for a single number.
        low: Public lower bound, or None.
        high: Public upper bound, or None.
        levels: Number of categories, for whole numbers from 0 to levels - 1; else None.
    """

    name: str
    dtype: str = "float32"
    shape: tuple[int, ...] = ()
    low: float | None = None
    high: float | None = None
    levels: int | None = None

    @property
    def size(self) -> int:
        """Return how many cells it has."""
        return math.prod(self.shape)

    @property
    def is_whole(self) -> bool:
        """Say whether its values are whole numbers."""
        return self.dtype == "int64"

    @property
    def bounds(self) -> tuple[float, float]:
        """Return the declared bounds, 0 and 1 where there are none."""
        if self.levels is not None:
            return 0.0, self.levels - 1.0
        if self.low is None or self.high is None:
            return 0.0, 1.0
        return self.low, self.high

    @property
    def kind(self) -> FieldKind:
        """Return what it is."""
        if self._is_picture:
            return FieldKind.IMAGE
        if self.is_whole and self.levels is not None and self.size > 1:
            return FieldKind.TOKENS
        if self.levels is not None:
            return FieldKind.CATEGORY
        low, high = self.bounds
        few = self.low is not None and high - low < _MAX_CATEGORIES
        return FieldKind.CATEGORY if self.is_whole and few else FieldKind.NUMBER

    @property
    def categories(self) -> int:
        """Return how many values a category or token has."""
        low, high = self.bounds
        return int(high - low) + 1

    @property
    def channels_last(self) -> bool:
        """Say whether a picture's channels stand behind its rows and columns."""
        return len(self.shape) == 3 and self.shape[0] > _MAX_CHANNELS

    @property
    def _is_picture(self) -> bool:
        if len(self.shape) not in (2, 3) or (self.levels is not None and self.levels != 256):
            return False
        sides = self.shape[:2] if self.channels_last else self.shape[-2:]
        channels = self.size // math.prod(sides)
        return min(sides) >= _MIN_SIDE and channels <= _MAX_CHANNELS

    def from_unit(self, unit: Tensor) -> Tensor:
        """Place numbers of 0..1 between the bounds, float32; wide ones on a logarithmic scale."""
        low, high = self.bounds
        if self._is_wide:
            return low + (high - low) * 10.0 ** (_DECADES * (unit - 1.0))
        return low + (high - low) * unit

    def to_unit(self, values: Tensor) -> Tensor:
        """Invert `from_unit`."""
        low, high = self.bounds
        share = (values.to(torch.float32) - low) / (high - low)
        if self._is_wide:
            return (share.clamp_min(10.0**-_DECADES).log10() / _DECADES + 1.0).clamp(0.0, 1.0)
        return share

    @property
    def _is_wide(self) -> bool:
        low, high = self.bounds
        return self.kind is FieldKind.NUMBER and low >= 0 and high - low > _WIDE


def draw_records(
    fields: Sequence[Field],
    count: int,
    source: torch.Generator,
    binary: frozenset[str] = frozenset(),
) -> dict[str, Tensor]:
    """Make records up.

    Args:
        fields: The columns.
        count: N.
        source: Where randomness comes from, on the CPU; a fixed seed gives fixed records.
        binary: Columns of numbers that are either their lowest or their highest: targets.

    Returns:
        Columns by name, float32 or int64, each of shape (N, *shape).
    """
    return {field.name: _draw(field, count, source, binary) for field in fields}


def _draw(field: Field, count: int, source: torch.Generator, binary: frozenset[str]) -> Tensor:
    shape = (count, *field.shape)
    low, _ = field.bounds
    if field.kind is FieldKind.IMAGE:
        values = field.from_unit(_pictures(field, count, source))
    elif field.kind in (FieldKind.TOKENS, FieldKind.CATEGORY):
        values = low + torch.randint(field.categories, shape, generator=source)
    else:
        unit = torch.rand(shape, generator=source)
        values = field.from_unit(unit.round() if field.name in binary else unit)
    if field.is_whole:
        return values.round().to(torch.int64)
    return values.to(torch.float32)


def _pictures(field: Field, count: int, source: torch.Generator) -> Tensor:
    """Make pictures of a field's shape, each of high contrast, values 0 to 1."""
    height, width = field.shape[:2] if field.channels_last else field.shape[-2:]
    channels = field.size // (height * width)
    pictures = torch.zeros(count, channels, height, width)
    for side in _OCTAVES:
        coarse = torch.randn(count, channels, side, side, generator=source)
        pictures += functional.interpolate(
            coarse, (height, width), mode="bicubic", align_corners=False
        ) / math.sqrt(side)
    for _ in range(_SHAPES):
        pictures = _with_disc(pictures, source)
    flat = pictures.reshape(count, -1)
    centred = (flat - flat.mean(dim=1, keepdim=True)) / flat.std(dim=1, keepdim=True)
    pictures = torch.sigmoid(_CONTRAST * centred).reshape(pictures.shape)
    if field.channels_last:
        pictures = pictures.permute(0, 2, 3, 1)
    return pictures.reshape(count, *field.shape)


def _with_disc(pictures: Tensor, source: torch.Generator) -> Tensor:
    """Lay a disc of one colour, with a hard edge, over each picture."""
    count, channels, height, width = pictures.shape
    place = torch.rand(count, 3, generator=source)
    colour = 1.2 * torch.randn(count, channels, 1, 1, generator=source)
    rows = torch.arange(height).reshape(1, height, 1) / height - place[:, :1, None]
    columns = torch.arange(width).reshape(1, 1, width) / width - place[:, 1:2, None]
    radius = 0.1 + 0.2 * place[:, 2:3, None]
    inside = (rows.square() + columns.square() < radius.square()).unsqueeze(1)
    return torch.where(inside, colour, pictures)
