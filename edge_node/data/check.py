"""Hold a site's data set against the schema that a job declares.

What is sent names columns and kinds only. Whether a column's *values* fit is one bit about them, so
every way in which they may not fit is said with the same words; which it was, and how often, stays
in the site's own log. Values outside a job's bounds do not refuse it: training scales with the
bounds, and their share is logged here.
"""

from dataclasses import dataclass
from difflib import get_close_matches

import numpy as np

from edge_node.data.dataset import Dataset
from edge_node.data.facts import ColumnFacts
from edge_node.data.source import TEXT
from edge_node.log import info, warning
from privacy.errors import PeerError, Reason, UsageError
from tidegate.jobfile import JobFile
from tidegate.schema import FLOAT, INTEGER, MAX_INTEGER, Column, Schema

_SHOWN = 8
_SCAN_ROWS = 1 << 18


@dataclass(frozen=True)
class Mismatch:
    """Why one column is not what a job declares.

    Attributes:
        column: Its name.
        said: What may be sent: names and kinds.
        seen: The same, as the administrator may read it.
    """

    column: str
    said: str
    seen: str


def job_schema(job_file: JobFile, dataset: Dataset) -> Schema:
    """Give the schema of a job's rows: its own, or all the data set's single numbers."""
    return job_file.schema or dataset.scalars


def check_schema(dataset: Dataset, schema: Schema) -> None:
    """Refuse a schema that the data set does not meet; log what is outside its bounds.

    Raises:
        PeerError: POLICY; names every such column in words that may be sent.
    """
    found = compare(dataset, schema)
    for mismatch in found:
        warning("column does not fit the job", dataset=dataset.name, why=mismatch.seen)
    if found:
        more = f"; and {len(found) - _SHOWN} more" if len(found) > _SHOWN else ""
        said = "; ".join(mismatch.said for mismatch in found[:_SHOWN])
        raise PeerError(
            Reason.POLICY, f"data set {dataset.name!r} does not fit the job's columns: {said}{more}"
        )
    for name, share in shares_outside(dataset, schema).items():
        info("values outside the job's bounds", dataset=dataset.name, column=name, share=share)


def check_users(dataset: Dataset, column: str) -> None:
    """Refuse a job whose users this data set cannot tell apart.

    Raises:
        PeerError: POLICY.
    """
    try:
        dataset.groups(column)
    except UsageError as error:
        warning("users cannot be told apart", dataset=dataset.name, why=error)
        raise PeerError(
            Reason.POLICY,
            f"data set {dataset.name!r} offers no column {column!r} that tells users apart",
        ) from error


def compare(dataset: Dataset, schema: Schema) -> tuple[Mismatch, ...]:
    """Find every column that is not what a schema declares, in its order."""
    found = (_compare(dataset, column) for column in schema.columns)
    return tuple(mismatch for mismatch in found if mismatch is not None)


def _compare(dataset: Dataset, column: Column) -> Mismatch | None:
    name = column.name
    if name not in dataset.schema.places:
        return _missing(dataset, name)
    shape = dataset.schema[name].shape
    if shape != column.shape:
        said = f"{name!r} has shape {list(shape)}, not {list(column.shape)}"
        return Mismatch(name, said, said)
    faults = _faults(column, dataset.facts[name])
    if not faults:
        return None
    said = f"{name!r} is not {_described(column)} throughout"
    return Mismatch(name, said, f"{said}: {', '.join(faults)}")


def _missing(dataset: Dataset, name: str) -> Mismatch:
    if name in dataset.users:
        said = f"{name!r} tells users apart and is not offered as numbers"
        return Mismatch(name, said, f"{said}: take it out of users, into columns, if it should be")
    if name in dataset.left_out:
        kind = dataset.left_out[name]
        said = f"{name!r} is not offered as numbers"
        mend = "; give its texts in categories" if kind == TEXT else ""
        return Mismatch(name, said, f"{said}: the source has {kind}{mend}")
    near = get_close_matches(name, dataset.schema.names, n=1)
    said = f"there is no {name!r}" + (f" (nearest: {near[0]!r})" if near else "")
    return Mismatch(name, said, f"{said}; there are {', '.join(dataset.schema.names[:40])}")


def _described(column: Column) -> str:
    if column.levels is not None:
        return f"{column.dtype} from 0 to {column.levels - 1}"
    return f"{column.dtype} up to 2^24" if column.dtype == INTEGER else FLOAT


def _faults(column: Column, facts: ColumnFacts) -> list[str]:
    """Say what about the values is not as declared, for the site alone."""
    faults = []
    whole = column.dtype == INTEGER or column.levels is not None
    if whole and not facts.is_whole:
        faults.append("some are not whole numbers")
    if column.dtype == INTEGER and facts.missing:
        faults.append(f"{facts.missing} are missing")
    if whole and facts.infinite:
        faults.append(f"{facts.infinite} are infinite")
    low, high = facts.low or 0.0, facts.high or 0.0
    if column.levels is not None and (low < 0 or high > column.levels - 1):
        faults.append(f"they go from {low:g} to {high:g}")
    elif column.dtype == INTEGER and max(abs(low), abs(high)) > MAX_INTEGER:
        faults.append(f"they go from {low:g} to {high:g}, beyond what float32 holds exactly")
    return faults


def shares_outside(dataset: Dataset, schema: Schema) -> dict[str, float]:
    """Find which share of a column's known values lies outside a job's bounds, where any does."""
    shares = {}
    for column in schema.columns:
        place, facts = dataset.schema.places.get(column.name), dataset.facts.get(column.name)
        if place is None or facts is None or facts.low is None or facts.high is None:
            continue
        if column.low is None or column.high is None or column.levels is not None:
            continue
        if facts.low >= column.low and facts.high <= column.high:
            continue
        known = outside = 0
        for begin in range(0, len(dataset), _SCAN_ROWS):
            values = dataset.table_NW[begin : begin + _SCAN_ROWS, place]
            known += int(np.count_nonzero(~np.isnan(values)))
            outside += int(np.count_nonzero((values < column.low) | (values > column.high)))
        shares[column.name] = outside / known
    return shares
