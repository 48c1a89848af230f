"""Try to cut honest sites off from the others on the sparse graph, and see what stops it.

    python -m benchmarks.anonymity [--sites 1000] [--rings 20] [--json FILE]

A hostile aggregator with c colluders knows the ring and chooses who is left out of U2: all honest
sites of two runs of k/2 positions around an arc, so that no mask is left between the arc and the
rest. It must keep T survivors, and t holders of the shares of everybody in U2. Every arc is tried
(each ``--stride``-th start and length); "isolated" is the fewest honest sites whose sum it would
learn alone. That is with the least t of the rule and no windows. With the checks t is raised for c,
which alone leaves such an arc without holders, and each site counts U3 in every window.
"""

import argparse
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median

import numpy as np
import numpy.typing as npt
from rich.table import Table

from benchmarks.figures import console, write_json
from privacy.secagg.graph import STANDARD
from privacy.secagg.rules import Thresholds, thresholds

Flags = npt.NDArray[np.bool_]
_PERCENT = (1, 5, 10, 20)
_LONGEST_ARC = 160


@dataclass(frozen=True)
class Cell:
    """What the aggregator achieves for one c over all rings: fewest honest sites, None for none."""

    colluders: int
    window: int
    rings: int
    cut_without_check: int
    isolated_least: int | None
    isolated_median: float | None
    cut_with_check: int
    drops_least: int | None


def windows(flags: Flags, width: int) -> npt.NDArray[np.int64]:
    """Count the flags in each ``width`` ring positions in a row, from each position on."""
    sums = np.concatenate(([0], np.cumsum(np.concatenate((flags, flags[: width - 1])))))
    counts: npt.NDArray[np.int64] = sums[width:] - sums[:-width]
    return counts


def best_cut(
    honest: Flags, limits: Thresholds, stride: int, *, check: bool
) -> tuple[int, int] | None:
    """Return the fewest honest sites of an arc that can be cut off, and the drops it takes.

    Args:
        honest: By ring position.
        limits: Of the cohort.
        stride: Between the starts, and the lengths, that are tried.
        check: Whether t is raised for c, and the sites check their windows.
    """
    n, reach = limits.n, limits.degree // 2
    shares = limits.shares if check else STANDARD.shares
    doubled = np.arange(2 * n) % n
    best: tuple[int, int] | None = None
    for length in range(1, _LONGEST_ARC, stride):
        for start in range(0, n, stride):
            inside = int(honest[doubled[start : start + length]].sum())
            if not inside or (best is not None and inside >= best[0]):
                continue
            present = np.ones(n, dtype=np.bool_)
            before = doubled[(start - reach) % n :][:reach]
            after = doubled[start + length :][:reach]
            for block in (before, after):
                present[block] &= ~honest[block]
            drops = n - int(present.sum())
            # Left out of U2 already, so that nobody needs their shares.
            covered = np.roll(windows(present, limits.degree + 1), reach)[present]
            if n - drops < limits.floor or covered.min() < shares:
                continue
            if check and windows(present, reach).min() < limits.window:
                continue
            best = (inside, drops)
    return best


def measure(sites: int, colluders: int, rings: int, stride: int) -> Cell:
    """Attack many rings with one number of colluders."""
    limits = thresholds(sites, colluders, colluders + 3)
    free, checked = [], 0
    for seed in range(rings):
        honest = np.ones(sites, dtype=np.bool_)
        honest[np.random.default_rng(seed).permutation(sites)[:colluders]] = False
        cut = best_cut(honest, limits, stride, check=False)
        if cut is not None:
            free.append(cut)
        checked += best_cut(honest, limits, stride, check=True) is not None
    isolated = [inside for inside, _ in free]
    return Cell(
        colluders=colluders,
        window=limits.window,
        rings=rings,
        cut_without_check=len(free),
        isolated_least=min(isolated, default=None),
        isolated_median=median(isolated) if isolated else None,
        cut_with_check=checked,
        drops_least=min((drops for _, drops in free), default=None),
    )


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--sites", type=int, default=1000)
    parser.add_argument("--rings", type=int, default=20)
    parser.add_argument("--stride", type=int, default=4)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args(arguments)
    if options.sites <= 2 * _LONGEST_ARC or options.rings < 1 or options.stride < 1:
        parser.error(f"needs more than {2 * _LONGEST_ARC} sites, one ring and a stride of one")
    return options


def main() -> None:
    """Print the table, and write it where asked."""
    options = parse()
    table = Table(title=f"{options.sites} sites, {options.rings} rings for each c")
    for name in ("c", "window asks", "rings cut", "honest isolated", "drops", "cut with check"):
        table.add_column(name, justify="right")
    cells = []
    for percent in _PERCENT:
        cell = measure(options.sites, options.sites * percent // 100, options.rings, options.stride)
        cells.append(cell)
        isolated = f"{cell.isolated_least} (median {cell.isolated_median})"
        table.add_row(
            str(cell.colluders),
            str(cell.window),
            str(cell.cut_without_check),
            isolated if cell.cut_without_check else "-",
            str(cell.drops_least or "-"),
            str(cell.cut_with_check),
        )
    console().print(table)
    write_json(options.json, {"sites": options.sites, "cells": [asdict(cell) for cell in cells]})


if __name__ == "__main__":
    main()
