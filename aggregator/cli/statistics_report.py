"""Show statistics as tables: each number with what the noise may have done to it."""

import math
from typing import Any

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from tidegate.jobfile import NONE, JobFile, RecordPrivacy
from tidegate.statistics_summary import ColumnSummary, Estimate, Summary

_DOUBTFUL = 0.1
"""A standard error above this share of a column's range is shown in yellow."""
_MOST_LEVELS = 20


def headline(summary: Summary, job: JobFile) -> Text:
    """Say how many records there are, and at which price."""
    text = Text()
    text.append(f"{job.dataset}: ", style="bold")
    text.append(f"{round(summary.records.value):,} records")
    text.append(f" ± {summary.records.error:,.1f}\n")
    if job.privacy.mode == NONE:
        text.append("NO DIFFERENTIAL PRIVACY: mode none", style="bold red")
    elif isinstance(job.privacy, RecordPrivacy):
        text.append(
            f"ε = {job.privacy.epsilon:g} per {job.privacy.unit.kind} at"
            f" δ = {job.privacy.delta_dp:g}, charged once at each site"
        )
    return text


def statistics_table(summary: Summary, job: JobFile) -> RenderableType:
    """Draw all columns; ± is one standard error of the noise."""
    parts: list[RenderableType] = [headline(summary, job)]
    bounded = [column for column in summary.columns if column.mean is not None]
    levelled = [column for column in summary.columns if column.mean is None]
    if bounded:
        parts += [_numbers(bounded), _quantiles(bounded)]
    if levelled:
        parts.append(_levels(levelled))
    parts.append(
        Text(
            "± one standard error of the noise alone, of a quantile that of its bin if larger;"
            " yellow: above a tenth of the column's range; -: nothing can be said",
            style="dim",
        )
    )
    return Group(*parts)


def as_json(summary: Summary) -> dict[str, Any]:
    """Give the numbers for programs; what cannot be said is null."""
    return {
        "records": _pair(summary.records),
        "noise_std": summary.noise_std,
        "columns": {column.name: _column(column) for column in summary.columns},
    }


def _column(column: ColumnSummary) -> dict[str, Any]:
    return {
        "low": column.low,
        "high": column.high,
        "missing": _pair(column.missing),
        "below": _pair(column.below),
        "above": _pair(column.above),
        "mean": None if column.mean is None else _pair(column.mean),
        "std": None if column.std is None else _pair(column.std),
        "quantiles": {f"{share:g}": _pair(value) for share, value in column.quantiles.items()},
        "histogram": list(column.histogram),
        "shares": [_pair(share) for share in column.shares],
    }


def _pair(estimate: Estimate) -> dict[str, float | None]:
    both = {"value": estimate.value, "error": estimate.error}
    return {name: number if math.isfinite(number) else None for name, number in both.items()}


def _numbers(columns: list[ColumnSummary]) -> Table:
    table = _table("column", "missing %", "outside %", "mean", "std")
    for column in columns:
        span = column.high - column.low
        numbers = [number for number in (column.mean, column.std) if number is not None]
        table.add_row(
            Text(column.name),
            _percent(column.missing),
            _percent(_both(column.below, column.above)),
            *(_number(number, span) for number in numbers),
        )
    return table


def _quantiles(columns: list[ColumnSummary]) -> Table:
    names = [f"{100 * share:g} %" for share in columns[0].quantiles]
    table = _table("column", "low", *names, "high")
    for column in columns:
        span = column.high - column.low
        within_bin = span / len(column.histogram) / math.sqrt(12)
        found = [
            Estimate(value.value, max(value.error, within_bin))
            for value in column.quantiles.values()
        ]
        table.add_row(
            Text(column.name),
            Text(f"{column.low:g}", "dim"),
            *(_number(value, span, between="\n") for value in found),
            Text(f"{column.high:g}", "dim"),
        )
    return table


def _levels(columns: list[ColumnSummary]) -> Table:
    table = _table("column", "missing %", "no level %", "level", "share %")
    for column in columns:
        first = (Text(column.name), _percent(column.missing), _percent(column.below))
        ranked = sorted(enumerate(column.shares), key=lambda pair: -pair[1].value)
        for level, share in sorted(ranked[:_MOST_LEVELS]):
            table.add_row(*first, str(level), _percent(share))
            first = (Text(), Text(), Text())
        if ranked[_MOST_LEVELS:]:
            table.add_row(*first, Text(f"{len(ranked) - _MOST_LEVELS} more", "dim"), "")
    return table


def _table(*names: str) -> Table:
    """Make a table that fits a narrow terminal: no lines between columns, numbers at the right."""
    table = Table(header_style="bold", box=box.SIMPLE_HEAD, pad_edge=False)
    table.padding = (0, 1, 0, 0)
    table.add_column(names[0], no_wrap=True, min_width=10)
    for name in names[1:]:
        table.add_column(name, justify="right", no_wrap=True)
    return table


def _both(below: Estimate, above: Estimate) -> Estimate:
    return Estimate(below.value + above.value, math.hypot(below.error, above.error))


def _number(estimate: Estimate, span: float, between: str = " ") -> Text:
    if not math.isfinite(estimate.value):
        return Text("-", style="dim")
    if estimate.error == 0:
        return Text(f"{estimate.value:.5g}")
    style = "yellow" if estimate.error > _DOUBTFUL * span else ""
    power = math.floor(math.log10(estimate.error))
    # One digit of the error, two where it starts with a 1, as physicists write it.
    digits = max(0, min(9, -power + (estimate.error < 2 * 10.0**power)))
    error = f"± {estimate.error:.{digits}f}"
    return Text.assemble((f"{estimate.value:,.{digits}f}{between}", style), (error, style or "dim"))


def _percent(share: Estimate) -> Text:
    return _number(Estimate(100 * share.value, 100 * share.error), 100.0)
