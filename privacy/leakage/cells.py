"""State what attack A5 found, cell by cell: rows of a table, or of what the first layer sees.

Array suffixes: N = rows, K = cells of a row that were looked for.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from privacy.leakage.verdict import (
    MAX_SHOWN,
    Evidence,
    EvidenceKind,
    Exposure,
    Finding,
    Metric,
    judge_cells,
)

ATTACK = "A5"


@dataclass(frozen=True)
class Cells:
    """Originals beside what was found for each.

    Attributes:
        names: Of the cells of a row.
        originals_NK: As they were.
        found_NK: As the attack has them.
        right_NK: Which of them count as found.
    """

    names: tuple[str, ...]
    originals_NK: NDArray[np.float32]
    found_NK: NDArray[np.float32]
    right_NK: NDArray[np.bool_]


def cells_finding(
    title: str,
    exposure: Exposure,
    cells: Cells,
    blind: Sequence[NDArray[np.bool_]],
    place: str = "",
) -> Finding:
    """Judge the share of cells that were found against guesses that have seen no update.

    Args:
        title: Of the attack.
        exposure: What was attacked.
        cells: What came out; the best rows are shown.
        blind: For each round of guesses, which cells it had right, shape (N, K).
        place: Where the cells are, for the reason.
    """
    right_NK = cells.right_NK
    score = float(right_NK.mean())
    baseline = float(np.mean([guessed_NK.mean() for guessed_NK in blind]))
    exact = int(right_NK.all(axis=1).sum())
    by_chance = max(int(guessed_NK.all(axis=1).sum()) for guessed_NK in blind)
    order = right_NK.mean(axis=1).argsort()[::-1][:MAX_SHOWN]
    return Finding(
        attack=ATTACK,
        title=title,
        exposure=exposure,
        metric=Metric.CELLS,
        score=score,
        baseline=baseline,
        verdict=judge_cells(score, baseline, exact, by_chance),
        reason=f"{right_NK.sum()} of {right_NK.size} cells{place}, {exact} of {len(right_NK)}"
        f" rows whole (at most {by_chance} by chance)",
        details={"exact rows": float(exact), "records": float(len(right_NK))},
        evidence=Evidence(
            EvidenceKind.ROWS,
            cells.names,
            cells.originals_NK[order],
            cells.found_NK[order],
            right_NK[order],
        ),
    )
