"""Hold an attacker's guess at the records: free numbers, and the batch that they stand for.

Shapes: N = records, K = values of a category.
"""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional

from privacy.leakage.fields import Batch, Field, FieldKind
from privacy.leakage.soft_codes import SoftCodes

_SPREAD = {FieldKind.IMAGE: 0.25, FieldKind.NUMBER: 0.29}
"""What one unit of a free number is, as a share of the range: about a standard deviation."""


class Candidate:
    """Guesses at the unknown columns of N records; the others are taken as known."""

    def __init__(
        self,
        unknown: Sequence[Field],
        known: Batch,
        count: int,
        source: torch.Generator,
        device: torch.device,
    ) -> None:
        """Draw a first guess at random.

        Args:
            unknown: The columns to find.
            known: The columns that the attacker knows.
            count: N.
            source: Where randomness comes from, on the CPU.
            device: Where to compute.
        """
        self._unknown = tuple(unknown)
        self._known = dict(known)
        self.free: list[Tensor] = []
        for field in self._unknown:
            shape = (count, *field.shape)
            if field.kind not in _SPREAD:
                shape = (*shape, field.categories)
            drawn = torch.randn(shape, generator=source).to(device)
            self.free.append(drawn.requires_grad_())
        self.clamp()

    def start(self, place: int, unit: Tensor) -> None:
        """Begin at given shares of the range of one unknown column of numbers."""
        spread = _SPREAD[self._unknown[place].kind]
        with torch.no_grad():
            self.free[place].copy_((unit - 0.5) / spread)

    def batch(self) -> Batch:
        """Give the batch that the free numbers stand for, differentiable by them."""
        guessed = {}
        for field, free in zip(self._unknown, self.free, strict=True):
            if field.kind in _SPREAD:
                guessed[field.name] = field.from_unit(_unit(field, free))
            else:
                soft = functional.softmax(free, dim=-1)
                dtype = torch.int64 if field.is_whole else torch.float32
                guessed[field.name] = SoftCodes.of(soft, int(field.bounds[0]), dtype)
        return {**self._known, **guessed}

    def clamp(self) -> None:
        """Bring the free numbers of pictures and numbers back into their range."""
        with torch.no_grad():
            for field, free in zip(self._unknown, self.free, strict=True):
                if field.kind in _SPREAD:
                    free.clamp_(-0.5 / _SPREAD[field.kind], 0.5 / _SPREAD[field.kind])

    def guess(self) -> list[Tensor]:
        """Give each unknown column's guess: shares of the range, or a distribution over values."""
        with torch.no_grad():
            pairs = zip(self._unknown, self.free, strict=True)
            return [
                _unit(field, free) if field.kind in _SPREAD else functional.softmax(free, dim=-1)
                for field, free in pairs
            ]

    def roughness(self) -> Tensor:
        """Give the total variation of the pictures among the free numbers."""
        total = torch.zeros((), device=self.free[0].device)
        for field, free in zip(self._unknown, self.free, strict=True):
            if field.kind is FieldKind.IMAGE:
                rows, columns = (1, 2) if field.channels_last else (-2, -1)
                for axis in (rows, columns):
                    total = total + free.diff(dim=axis).abs().mean()
        return total


def _unit(field: Field, free: Tensor) -> Tensor:
    return 0.5 + _SPREAD[field.kind] * free
