"""Leave nothing behind: a folder that goes with the benchmark, however it ends."""

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from aggregator.cli.consortium import interrupted_by_signals


@contextmanager
def scratch_folder() -> Iterator[Path]:
    """Give a folder that is removed at the end, whether by signal, error or success."""
    with (
        interrupted_by_signals(),
        tempfile.TemporaryDirectory(prefix="tidegate-benchmark-") as folder,
    ):
        yield Path(folder)
