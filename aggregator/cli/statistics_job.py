"""Build a statistics job from a few options, and read what it published.

No code of an app runs for such a job, so none travels with it, and its first model is empty sums.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load

from aggregator.cli.submission import Submission
from aggregator.cli.toml_text import toml_text
from privacy.errors import PeerError, Reason, UsageError
from tidegate import appbundle
from tidegate.job_terms import statistics_layout
from tidegate.jobfile import MAX_BYTES, NONE, JobFile
from tidegate.schema import Column, Schema, read_schema
from tidegate.statistics_layout import StatisticsLayout
from tidegate.statistics_summary import Estimate, Summary, summarise
from tidegate.toml_table import Table
from tidegate.v1 import operator_pb2

MAX_MODEL_BYTES = 1 << 30


@dataclass(frozen=True)
class StatisticsRequest:
    """What the operator asks for.

    Attributes:
        dataset: As the sites call it.
        schema: The columns, with public bounds.
        mode: ``record-distributed`` or ``none``.
        epsilon: Of the one release; not used in mode none.
        delta_dp: Its delta.
        bins: Histogram bins of a column without levels.
        max_records: Public bound on the records of one site.
        target_sites: Sites that make a cohort.
    """

    dataset: str
    schema: Schema
    mode: str
    epsilon: float
    delta_dp: float
    bins: int
    max_records: int
    target_sites: int


def read_columns(path: Path) -> Schema:
    """Read the ``[[columns]]`` of a file, which may hold nothing else.

    Raises:
        UsageError: The file cannot be read, or a key is wrong or missing; says which.
    """
    try:
        raw = path.read_bytes()
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}") from error
    schema = read_schema(Table.parse(raw, str(path), ("columns",), MAX_BYTES))
    if schema is None:
        raise UsageError(f"{path} has no [[columns]]: name each with low and high, or levels")
    return schema


def statistics_submission(request: StatisticsRequest) -> Submission:
    """Write the job file and what travels with it.

    Raises:
        UsageError: A number is out of range; says which.
    """
    job_toml = _job_text(request).encode()
    job = JobFile.parse(job_toml, "the statistics job")
    spec = statistics_layout(job).model_spec
    model = bytes(4 * spec.length)
    return Submission(job, job_toml, spec.to_bytes(), appbundle.EMPTY, model)


def layout_of(job_toml: bytes) -> StatisticsLayout:
    """Give the layout of a submitted job.

    Raises:
        UsageError: It is no statistics job.
    """
    return statistics_layout(JobFile.parse(job_toml))


def read_summary(job_toml: bytes, chunks: Iterable[operator_pb2.ExportModelResponse]) -> Summary:
    """Read a finished job's model as it is streamed.

    Raises:
        PeerError: It is not the sums of the job's columns.
        UsageError: It is no statistics job.
    """
    layout = layout_of(job_toml)
    data = bytearray()
    for chunk in chunks:
        data += chunk.data
        if len(data) > MAX_MODEL_BYTES:
            raise PeerError(Reason.TOO_LARGE, "the sums are longer than any statistics job's")
    try:
        tensors = {name: np.asarray(array) for name, array in load(bytes(data)).items()}
    except (SafetensorError, ValueError, KeyError) as error:
        raise PeerError(Reason.MALFORMED, f"the model is no safetensors file: {error}") from error
    return summarise(layout, tensors)


def scaling_toml(summary: Summary, heading: str) -> str:
    """Write public bounds, means and standard deviations for an app to scale its inputs by.

    A column that the noise leaves too uncertain to scale by is left out.

    Args:
        summary: What a job published.
        heading: One line that says where the numbers are from.
    """
    columns = {
        column.name: {
            "low": column.low,
            "high": column.high,
            "mean": column.mean.value,
            "std": column.std.value,
        }
        for column in summary.columns
        if column.mean is not None and column.std is not None and _is_good(column.mean, column.std)
    }
    return f"# {heading}\n{toml_text({'columns': columns})}"


def _is_good(mean: Estimate, std: Estimate) -> bool:
    """Say whether a column can be scaled by these: both known to better than half its spread."""
    return max(mean.error, std.error) < std.value / 2  # false for NaN


def _job_text(request: StatisticsRequest) -> str:
    privacy: dict[str, Any] = {"mode": request.mode, "max_records": request.max_records}
    if request.mode != NONE:
        privacy |= {"epsilon": request.epsilon, "delta_dp": request.delta_dp}
    return toml_text(
        {
            "job": {"name": f"{request.dataset} statistics"[:64], "dataset": request.dataset},
            "statistics": {"bins": request.bins},
            "privacy": privacy,
            "round": {"target_sites": request.target_sites},
            "columns": [_column_table(column) for column in request.schema.columns],
        }
    )


def _column_table(column: Column) -> dict[str, Any]:
    table: dict[str, Any] = {"name": column.name, "dtype": column.dtype}
    if column.shape:
        table["shape"] = list(column.shape)
    if column.levels is not None:
        return table | {"levels": column.levels}
    return table | {"low": column.low, "high": column.high} if column.is_bounded else table
