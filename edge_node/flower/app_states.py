"""Keep what a Flower app remembers (``Context.state``) over rounds and restarts.

For each job two states are kept: what the call for its newest update began with, and what it left.
Is the same update made again, because a crash lost it, the call begins where it began before: a
round moves the state once, however often it is tried. Small contents lie in the store itself, which
saves two syncs a round; larger ones are files named by their digest, whole and synced before the
row of the store that names them; what no row names is removed.

The bytes are the app's: nobody looks into them here.
"""

import asyncio
import hashlib
from dataclasses import dataclass, field
from pathlib import Path

from edge_node.commands import UpdateKey
from edge_node.store import Store
from edge_node.store_schema import StoredState, make_private_folder
from privacy.errors import UsageError
from tidegate.keys import write_private

_SUFFIX = ".state"
_SMALL_BYTES = 1 << 16
# How a column of the store begins: with the content itself, or with the digest of a file.
_CONTENT, _DIGEST = b"=", b"#"


@dataclass(frozen=True)
class StateChange:
    """One call's effect on an app's state."""

    job_id: str
    key: UpdateKey
    before: bytes = field(repr=False)
    after: bytes = field(repr=False)


class AppStates:
    """The states of all jobs, in one private folder."""

    def __init__(self, folder: Path, store: Store) -> None:
        """Open the folder, and remove what no row of the store names.

        Args:
            folder: Made where there is none.
            store: Where the digests lie.

        Raises:
            UsageError: The folder is open to others.
        """
        make_private_folder(folder)
        self._folder = folder
        self._store = store
        for job_id in {path.name.partition("@")[0] for path in folder.iterdir()}:
            self._tidy(job_id)

    async def begin(self, job_id: str, key: UpdateKey) -> bytes:
        """Give the state that the call for an update begins with; empty before the first.

        Raises:
            UsageError: The file is missing or damaged.
        """
        row = self._store.jobs.app_state(job_id)
        if row is None:
            return b""
        again = (row.round, row.version, row.purpose) == (key.round, key.version, key.purpose)
        return await asyncio.to_thread(self._read, job_id, row.before if again else row.after)

    async def keep(self, change: StateChange) -> None:
        """Make a call's effect durable; only for an update that is kept too."""
        if change.before == change.after:  # the row that is there goes on to be true
            return
        digests = await asyncio.to_thread(self._write, change)
        key = change.key
        row = StoredState(key.round, key.version, key.purpose, *digests)
        self._store.jobs.put_app_state(change.job_id, row)
        self._tidy(change.job_id)

    def forget(self, job_id: str) -> None:
        """Remove the files of a job whose row is gone."""
        self._tidy(job_id)

    def _write(self, change: StateChange) -> tuple[bytes, bytes]:
        first, second = (self._put(change.job_id, state) for state in (change.before, change.after))
        return first, second

    def _put(self, job_id: str, content: bytes) -> bytes:
        if len(content) <= _SMALL_BYTES:
            return _CONTENT + content
        digest = hashlib.sha256(content).digest()
        path = self._path(job_id, digest)
        if not path.exists():
            write_private(path, content)
        return _DIGEST + digest

    def _read(self, job_id: str, kept: bytes) -> bytes:
        if kept.startswith(_CONTENT):
            return kept.removeprefix(_CONTENT)
        digest = kept.removeprefix(_DIGEST)
        path = self._path(job_id, digest)
        try:
            content = path.read_bytes()
        except OSError as error:
            raise UsageError(
                f"{path}: what the Flower app of job {job_id} remembers is lost: {error.strerror};"
                " restore it from the backup of the site's folder, or refuse the job"
            ) from error
        if hashlib.sha256(content).digest() != digest:
            raise UsageError(f"{path}: what the Flower app of job {job_id} remembers is damaged")
        return content

    def _tidy(self, job_id: str) -> None:
        row = self._store.jobs.app_state(job_id)
        kept = () if row is None else (row.before, row.after)
        named = {self._path(job_id, each[1:]) for each in kept if each.startswith(_DIGEST)}
        for path in self._folder.glob(f"{job_id}@*"):
            if path not in named:
                path.unlink()

    def _path(self, job_id: str, digest: bytes) -> Path:
        return self._folder / f"{job_id}@{digest.hex()}{_SUFFIX}"
