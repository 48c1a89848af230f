"""Read Parquet: one file, or a folder of files with the same columns, read in order of name."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from edge_node.data.arrow_columns import describe, to_keys, to_numbers
from edge_node.data.declared import Declared
from edge_node.data.source import Block, Source, SourceColumn, Wanted, brief, need, stamp_files
from privacy.errors import UsageError


def open_parquet(declared: Declared) -> Source:
    """Open a Parquet file or a folder of them.

    Raises:
        UsageError: It is damaged, empty, or the files do not have the same columns.
    """
    path = declared.path()
    paths = sorted(path.glob("*.parquet")) if path.is_dir() else [path]
    if not paths:
        raise UsageError(f"{declared.where}: the folder {path} has no .parquet file")
    pyarrow, parquet = need("pyarrow"), need("pyarrow.parquet")
    broken = (OSError, ValueError, KeyError, pyarrow.ArrowException)
    try:
        files = [parquet.ParquetFile(one, memory_map=True) for one in paths]
        columns = arrow_source_columns(files[0].schema_arrow, _first_rows(files))
    except broken as error:
        raise _broken(declared, path, error) from error
    for file, one in zip(files, paths, strict=True):
        if file.schema_arrow.names != files[0].schema_arrow.names:
            raise UsageError(f"{declared.where}: {one} has not the columns of {paths[0]}")

    def read(wanted: Wanted) -> Iterator[Block]:
        names = [*wanted.numbers, *wanted.texts]
        try:
            for file in files:
                for batch in file.iter_batches(wanted.block_rows, columns=names, use_threads=False):
                    yield arrow_block(batch, columns, wanted)
        except MemoryError:  # Arrow's is one of Arrow's errors, too
            raise
        except broken as error:
            raise _broken(declared, path, error) from error

    return Source(columns, read, lambda: stamp_files(paths))


def arrow_source_columns(schema: Any, first: Any) -> tuple[SourceColumn, ...]:
    """Describe the columns of Arrow data.

    Args:
        schema: Arrow's schema.
        first: A batch or table of some rows of it, perhaps none.
    """
    return tuple(describe(name, first.column(place)) for place, name in enumerate(schema.names))


def arrow_block(batch: Any, columns: Sequence[SourceColumn], wanted: Wanted) -> Block:
    """Turn a batch of Arrow rows into a block.

    Raises:
        ValueError: A column's lists have not the shape of the first; says which.
    """
    shapes = {column.name: column.shape for column in columns}
    block: dict[str, Any] = {}
    for name in wanted.numbers:
        try:
            block[name] = to_numbers(batch.column(name), shapes[name])
        except ValueError as error:
            raise ValueError(f"column {name!r}: {error}") from error
    for name in wanted.texts:
        block[name] = to_keys(batch.column(name))
    return block


def _first_rows(files: Sequence[Any]) -> Any:
    for file in files:
        for batch in file.iter_batches(16, use_threads=False):
            return batch
    return files[0].schema_arrow.empty_table()


def _broken(declared: Declared, path: Path, error: object) -> UsageError:
    return UsageError(f"{declared.where}: {path} cannot be read as Parquet: {brief(error)}")
