"""Let one daemon at a time work in a site's folder: two could reveal both shares of one peer."""

import fcntl
import os
from pathlib import Path

from privacy.errors import UsageError


class FolderLock:
    """An exclusive lock that the system drops when the process ends, however it ends."""

    def __init__(self, folder: Path) -> None:
        """Take the lock.

        Raises:
            UsageError: Another process works in the folder.
        """
        path = folder / "lock"
        self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(self._descriptor)
            raise UsageError(
                f"another edge node works in {folder}: stop it first, or use another folder"
            ) from None

    def release(self) -> None:
        """Give the lock up."""
        os.close(self._descriptor)
