"""Leave nothing behind: folders that go with the benchmark, and an end that unwinds."""

import os
import signal
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

_RUNTIME_FOLDER = "XDG_RUNTIME_DIR"


@contextmanager
def terminated_like_interrupted() -> Iterator[None]:
    """Let SIGTERM unwind like Ctrl-C, so that every process is ended either way."""

    def interrupt(_signal: int, _frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@contextmanager
def scratch_folders() -> Iterator[Path]:
    """Give a folder that goes with the benchmark, and so does where sites keep their boot keys.

    Boot keys lie in memory and survive the process by design; a benchmark's sites do not come back.
    """
    before = os.environ.get(_RUNTIME_FOLDER)
    memory = "/dev/shm" if Path("/dev/shm").is_dir() else None  # noqa: S108 - folders made by mkdtemp
    with (
        tempfile.TemporaryDirectory(prefix="tidegate-") as folder,
        tempfile.TemporaryDirectory(prefix="tidegate-", dir=memory) as boot_keys,
    ):
        os.environ[_RUNTIME_FOLDER] = boot_keys
        try:
            yield Path(folder)
        finally:
            os.environ.pop(_RUNTIME_FOLDER)
            if before is not None:
                os.environ[_RUNTIME_FOLDER] = before
