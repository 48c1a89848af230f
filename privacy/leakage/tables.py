"""A5: find rows whose unrolled update is the observed one, categories as softmax (TabLeak).

Vero et al., arXiv 2210.01785: categories are relaxed to distributions, numbers kept in their
bounds, several starts pooled by their median. A category is right when it is the very one; a number
when it is nearer than 0.319 deviations of its column, TabLeak's tolerance. The guess without data
draws rows from the declared schema; it is matched as well as the attack's rows are.

Shapes: N = records, K = cells of a row, R = starts.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from privacy.leakage.candidates import Candidate
from privacy.leakage.cells import ATTACK, Cells, cells_finding
from privacy.leakage.effort import Effort
from privacy.leakage.fields import Batch, Field, FieldKind
from privacy.leakage.matching import Found, Search, search
from privacy.leakage.release import Release
from privacy.leakage.scene import Scene
from privacy.leakage.scores import best_pairs, matched_cells
from privacy.leakage.verdict import (
    Finding,
    Metric,
    not_applicable,
)

TITLE = "Gradient matching of table rows, categories relaxed to softmax"
NEAR = 0.319 / 12**0.5
"""How near a number must come, as a share of its range: 0.319 deviations of a uniform column."""

_RATE = 0.06
_GUESSES = 32
_POOLED = 2.0  # times the best distance: farther starts are stuck, and would spoil the median


@dataclass(frozen=True)
class _Outcome:
    """Rows of one release: the originals, what was found for each, and what is right."""

    originals_NK: NDArray[np.float32]
    found_NK: NDArray[np.float32]
    right_NK: NDArray[np.bool_]


def attack_tables(
    releases: Sequence[Release], effort: Effort, source: torch.Generator
) -> list[Finding]:
    """Look for the rows behind each release; targets are taken as known.

    Args:
        releases: Independent victims of one exposure.
        effort: How hard to try.
        source: Where first guesses come from.
    """
    scene, exposure = releases[0].scene, releases[0].exposure
    unknown = unknown_columns(scene)
    if not unknown:
        reason = "no column but pictures, tokens and targets"
        return [not_applicable(ATTACK, TITLE, exposure, Metric.CELLS, reason)]
    outcomes = [_reconstruct(unknown, release, effort, source) for release in releases]
    guesses = [[_guess(unknown, r, source) for r in releases] for _ in range(_GUESSES)]
    blind = [np.concatenate([guess.right_NK for guess in trials]) for trials in guesses]
    cells = Cells(
        tuple(f.name if f.size == 1 else f"{f.name}[{i}]" for f in unknown for i in range(f.size)),
        np.concatenate([outcome.originals_NK for outcome in outcomes]),
        np.concatenate([outcome.found_NK for outcome in outcomes]),
        np.concatenate([outcome.right_NK for outcome in outcomes]),
    )
    return [cells_finding(TITLE, exposure, cells, blind)]


def unknown_columns(scene: Scene) -> list[Field]:
    """Give the columns that are looked for: numbers and categories that the model sees."""
    kinds = (FieldKind.NUMBER, FieldKind.CATEGORY)
    return [f for f in scene.fields if f.kind in kinds and f.name not in scene.targets]


def _reconstruct(
    unknown: Sequence[Field], release: Release, effort: Effort, source: torch.Generator
) -> _Outcome:
    names = {field.name for field in unknown}
    known = {name: values for name, values in release.batch.items() if name not in names}

    def make() -> Candidate:
        return Candidate(unknown, known, release.records, source, release.scene.device)

    how = Search(
        effort.iterations,
        effort.restarts,
        rate=_RATE,
        signed=False,
        decay=1.0,
        smoothness=0.0,
        follow_all=True,
    )
    medians = pooled(search(release, make, how))
    values = {}
    for field, guess in zip(unknown, medians, strict=True):
        if field.kind is FieldKind.CATEGORY:
            values[field.name] = guess.argmax(dim=-1) + field.bounds[0]
        else:
            values[field.name] = field.from_unit(guess)
    return _compared(unknown, values, release.batch)


def pooled(found: Sequence[Found]) -> list[Tensor]:
    """Take the median over starts that came near, rows brought into the order of the best one's."""
    best = found[0].guess
    found = [one for one in found if one.distance <= _POOLED * found[0].distance]
    reference = torch.cat([part.reshape(len(part), -1) for part in best], dim=1)
    aligned: list[list[Tensor]] = [[] for _ in best]
    for one in found:
        rows = torch.cat([part.reshape(len(part), -1) for part in one.guess], dim=1)
        pairs = best_pairs(-torch.cdist(rows, reference))
        for parts, part in zip(aligned, one.guess, strict=True):
            parts.append(part[pairs])
    return [torch.stack(parts).median(dim=0).values for parts in aligned]


def _guess(unknown: Sequence[Field], release: Release, source: torch.Generator) -> _Outcome:
    drawn = release.scene.draw(release.records, source)
    return _compared(unknown, drawn, release.batch)


def _compared(unknown: Sequence[Field], found: Batch, batch: Batch) -> _Outcome:
    """Match rows with originals, and say which cells are right."""
    right, originals, values = [], [], []
    for field in unknown:
        true, got = batch[field.name], found[field.name]
        true, got = (v.reshape(len(v), field.size).cpu() for v in (true, got))
        if field.kind is FieldKind.CATEGORY:
            right.append(got[:, None] == true[None])
        else:
            away = field.to_unit(got)[:, None] - field.to_unit(true)[None]
            right.append(away.abs() < NEAR)
        originals.append(true.float())
        values.append(got.float())
    right_NNK = torch.cat(right, dim=2).numpy()
    pairs = matched_cells(right_NNK)
    return _Outcome(
        torch.cat(originals, dim=1).numpy(),
        torch.cat(values, dim=1).numpy()[pairs],
        right_NNK[pairs, np.arange(len(pairs))],
    )
