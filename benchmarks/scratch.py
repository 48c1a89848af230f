"""Leave nothing behind: a folder that goes with the benchmark, however it ends."""

import signal
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType


@contextmanager
def scratch_folder() -> Iterator[Path]:
    """Give a folder that is removed at the end; SIGTERM unwinds like Ctrl-C until then."""

    def interrupt(_signal: int, _frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        with tempfile.TemporaryDirectory(prefix="tidegate-benchmark-") as folder:
            yield Path(folder)
    finally:
        signal.signal(signal.SIGTERM, before)
