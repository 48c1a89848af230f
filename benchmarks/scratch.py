"""Leave nothing behind: a folder that goes with the benchmark, however it ends."""

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from aggregator.cli.consortium import interrupted_by_signals


@contextmanager
def scratch_folder() -> Iterator[Path]:
    """Give a folder that is removed at the end; signals that end it unwind like Ctrl-C until then."""
    with (
        interrupted_by_signals(),
        tempfile.TemporaryDirectory(prefix="tidegate-benchmark-") as folder,
    ):
        yield Path(folder)
