"""Count the store's durable steps in a file outside the backup, to notice a restored database.

secure-aggregation.md, "Keys and bundles": the transaction carries generation g+1, then g+1 goes to
the mirror, then bytes leave. A database that is older than its mirror was rolled back: it could
sign a second survivor set or forget a charge, so it refuses work until an administrator reconciles.
The mirror also holds a digest of the ledgers' heads, so an edited ledger of the right age shows.
"""

import hashlib
import hmac
import os
import struct
from dataclasses import dataclass
from pathlib import Path

from privacy.errors import UsageError

_RECONCILE = "this site does no work until an administrator has run `edge-node reconcile`"
_MAGIC = b"tgmirr1\0"
_BODY = struct.Struct(">8s16sQ32s")
_RECORD_BYTES = _BODY.size + 32
_SLOT_BYTES = 4096
"""Two records in turn, each in a block of its own: a torn write spoils at most the newer one."""


@dataclass(frozen=True)
class MirrorState:
    """What the mirror last recorded: store, generation, digest of the ledgers' heads."""

    store_id: bytes
    generation: int
    heads: bytes


class Mirror:
    """The mirror file of one store."""

    def __init__(self, path: Path) -> None:
        """Open or make the file.

        Raises:
            UsageError: It cannot be opened.
        """
        self.path = path
        try:
            self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
        except OSError as error:
            raise UsageError(f"cannot open the mirror file {path}: {error.strerror}") from error

    def read(self) -> MirrorState | None:
        """Give the newest whole record; None where there is none."""
        states = [self._read_slot(slot) for slot in (0, 1)]
        whole = [state for state in states if state is not None]
        return max(whole, key=lambda state: state.generation, default=None)

    def write(self, state: MirrorState) -> None:
        """Make a generation durable; the previous record stays whole until this one is."""
        body = _BODY.pack(_MAGIC, state.store_id, state.generation, state.heads)
        record = body + hashlib.sha256(body).digest()
        os.pwrite(self._descriptor, record, _SLOT_BYTES * (state.generation % 2))
        os.fdatasync(self._descriptor)

    def check(self, found: MirrorState) -> None:
        """Hold a database against what was recorded last; one that is ahead of it is in order.

        Raises:
            UsageError: It is another database, older than the mirror, or its ledger was edited.
        """
        state = self.read()
        if state is None:
            if found.generation:
                raise UsageError(
                    f"the mirror file {self.path} is missing or damaged, so this database"
                    f" may be a restored backup; {_RECONCILE}"
                )
            return
        if state.store_id != found.store_id:
            raise UsageError(
                f"the mirror file {self.path} belongs to another database: name another"
                f" store.mirror_file, or, if this one was restored, {_RECONCILE}"
            )
        if found.generation < state.generation:
            raise UsageError(
                f"the database is at step {found.generation}, its mirror at {state.generation}: it"
                f" was restored from an older copy; {_RECONCILE}"
            )
        if found.generation == state.generation and state.heads != found.heads:
            raise UsageError(
                f"the privacy ledger does not end where the mirror says: it was edited;"
                f" {_RECONCILE}"
            )

    def close(self) -> None:
        """Close the file."""
        os.close(self._descriptor)

    def _read_slot(self, slot: int) -> MirrorState | None:
        record = os.pread(self._descriptor, _RECORD_BYTES, _SLOT_BYTES * slot)
        body, check = record[: _BODY.size], record[_BODY.size :]
        if len(record) != _RECORD_BYTES:
            return None
        if not hmac.compare_digest(hashlib.sha256(body).digest(), check):
            return None
        magic, store_id, generation, heads = _BODY.unpack(body)
        return MirrorState(store_id, generation, heads) if magic == _MAGIC else None
