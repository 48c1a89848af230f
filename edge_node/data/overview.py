"""Put together what `edge-node data check` says, for the administrator's eyes and no one else's."""

import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from edge_node.config import SiteConfig
from edge_node.data.check import check_users, compare, job_schema, shares_outside
from edge_node.data.dataset import Dataset
from edge_node.data.fingerprints import changed_since
from edge_node.data.loading import load_dataset
from edge_node.flower.data import check_readable
from edge_node.store_schema import make_private_folder
from privacy.errors import PeerError, UsageError
from tidegate.jobfile import JobFile
from tidegate.schema import Column


@dataclass(frozen=True)
class CheckedDataset:
    """One data set as it was found.

    Attributes:
        name: What jobs call it.
        failure: Why it cannot be opened; empty if it can, and the rest is empty if not.
        facts: One row of the printed table a column: name, kind, low, high, share missing, notes.
        left_out: Columns that no job gets, with their kind.
        users: Of each column that tells users apart, how many there are.
        changed_since: When another content was first seen; empty if this is the one last seen.
        mismatches: Why it does not fit the job that was asked about, column by column.
        outside: Share of known values outside that job's bounds, by column.
    """

    name: str
    dataset_id: str = ""
    failure: str = ""
    rows: int = 0
    facts: tuple[dict[str, Any], ...] = ()
    left_out: dict[str, str] | None = None
    users: dict[str, int] | None = None
    fingerprint: str = ""
    changed_since: str = ""
    mismatches: tuple[str, ...] = ()
    outside: dict[str, float] | None = None

    @property
    def is_good(self) -> bool:
        """Say whether it can be opened and fits."""
        return not self.failure and not self.mismatches


def check_datasets(
    config: SiteConfig, name: str | None, job_file: JobFile | None
) -> list[CheckedDataset]:
    """Open data sets and look at them; every value is read, nothing is kept.

    Args:
        config: The site's settings.
        name: The one to open; None for the job's, or for all where no job is given.
        job_file: A job whose columns they are held against.

    Raises:
        UsageError: The site declares no such data set, or the job is for another.
    """
    if name is None and job_file is not None:
        name = job_file.dataset
    if job_file is not None and job_file.dataset != name:
        raise UsageError(f"the job asks for data set {job_file.dataset!r}, not for {name!r}")
    if name is not None and name not in config.datasets:
        known = ", ".join(sorted(config.datasets)) or "none"
        raise UsageError(f"{config.path} declares no data set {name!r}; it has: {known}")
    make_private_folder(config.folder)
    names = [name] if name is not None else sorted(config.datasets)
    return [_check(config, one, job_file) for one in names]


def _check(config: SiteConfig, name: str, job_file: JobFile | None) -> CheckedDataset:
    declared = config.datasets[name]
    with tempfile.TemporaryDirectory(prefix="check-", dir=config.folder) as folder:
        try:
            if declared.flower is not None:
                check_readable(declared.flower, f"[datasets.{name}.flower]")
            if not declared.has_rows:  # Flower apps load their own data
                return CheckedDataset(name, declared.id)
            dataset = load_dataset(name, declared.plug, config.path.parent, Path(folder))
        except UsageError as error:
            return CheckedDataset(name, declared.id, failure=str(error))
        return _describe(config, dataset, job_file)


def _describe(config: SiteConfig, dataset: Dataset, job_file: JobFile | None) -> CheckedDataset:
    schema = job_schema(job_file, dataset) if job_file is not None else None
    return CheckedDataset(
        name=dataset.name,
        dataset_id=dataset.dataset_id,
        rows=len(dataset),
        facts=tuple(_facts(dataset, column) for column in dataset.schema.columns),
        left_out=dict(dataset.left_out),
        users={name: len(dataset.groups(name)) for name in dataset.users},
        fingerprint=dataset.fingerprint,
        changed_since=changed_since(config.folder, dataset),
        mismatches=_mismatches(dataset, job_file) if job_file is not None else (),
        outside=shares_outside(dataset, schema) if schema is not None else None,
    )


def _facts(dataset: Dataset, column: Column) -> dict[str, Any]:
    facts = dataset.facts[column.name]
    numbers = max(1, len(dataset) * column.size)
    return {
        "column": column.name,
        "kind": "whole" if facts.is_whole else "real",
        "shape": list(column.shape),
        "low": facts.low,
        "high": facts.high,
        "missing": facts.missing / numbers,
        "infinite": facts.infinite,
    }


def _mismatches(dataset: Dataset, job_file: JobFile) -> tuple[str, ...]:
    found = [mismatch.seen for mismatch in compare(dataset, job_schema(job_file, dataset))]
    unit = job_file.privacy.unit
    if unit.kind == "user":
        try:
            check_users(dataset, unit.column)
        except PeerError as error:
            found.append(str(error.args[0]))
    return tuple(found)
