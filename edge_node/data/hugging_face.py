"""Read a data set that Hugging Face ``datasets`` saved on disk, without any network."""

import os
from collections.abc import Iterator
from typing import Any

from edge_node.data.declared import Declared
from edge_node.data.parquet import arrow_block, arrow_source_columns
from edge_node.data.source import Block, Source, Wanted, brief, need, stamp_files
from privacy.errors import UsageError

_BROKEN = (AttributeError, LookupError, OSError, RuntimeError, TypeError, ValueError)


def open_hugging_face(declared: Declared) -> Source:
    """Open what ``save_to_disk`` wrote; of a dict of splits the one that ``split`` names.

    Raises:
        UsageError: Nothing of that kind is there, or the split is missing.
    """
    path = declared.path()
    os.environ.setdefault("HF_HUB_OFFLINE", "1")  # before the library is first imported
    os.environ.setdefault("HF_DATASETS_OFFLINE", "1")
    library, pyarrow = need("datasets"), need("pyarrow")
    broken = (*_BROKEN, pyarrow.ArrowException)
    try:
        found = library.load_from_disk(str(path), keep_in_memory=False)
    except broken as error:
        raise _broken(declared, error) from error
    rows = _split(declared, found)
    try:
        rows = rows.with_format("arrow")
        columns = arrow_source_columns(rows.features.arrow_schema, rows[:16])
    except broken as error:
        raise _broken(declared, error) from error

    def read(wanted: Wanted) -> Iterator[Block]:
        try:
            chosen = rows.select_columns([*wanted.numbers, *wanted.texts])
            for batch in chosen.iter(wanted.block_rows):
                yield arrow_block(batch, columns, wanted)
        except broken as error:
            raise _broken(declared, error) from error

    return Source(columns, read, lambda: stamp_files(sorted(path.rglob("*"))))


def _split(declared: Declared, found: Any) -> Any:
    splits = sorted(found) if isinstance(found, dict) else []
    if not splits and not declared.table.has("split"):
        return found
    if not splits:
        raise declared.table.bad("split", "must be absent: the data set has no splits")
    return found[declared.table.choice("split", splits)]


def _broken(declared: Declared, error: object) -> UsageError:
    path = declared.path()
    return UsageError(
        f"{declared.where}: {path} is no data set saved by save_to_disk: {brief(error)}"
    )
