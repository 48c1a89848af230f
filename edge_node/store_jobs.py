"""Keep the jobs that a site accepted, their apps, and what a Flower app remembers of a job.

A part of the store (`edge_node.store`): one database, one thread. None of it is a durable step, so
the store's generation stays as it is; a job that ends takes the secrets of its attempts with it.
"""

import hashlib
import sqlite3
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import astuple

from edge_node.leakage.records import AuditRecord, newest_record
from edge_node.leakage.terms import AuditKey
from edge_node.store_schema import StoredJob, StoredState
from privacy.errors import PeerError, Reason

_MOST_UNAUDITED = 16
_JOB_COLUMNS = "job_id, job_toml, app_sha256, app_size, vector_spec, encoding, evaluation_encoding"


def find_job(db: sqlite3.Connection, job_id: str) -> StoredJob | None:
    """Give an accepted job of a database."""
    row = db.execute(
        f"SELECT {_JOB_COLUMNS} FROM jobs WHERE job_id = ?",  # noqa: S608 - a constant
        (job_id,),
    ).fetchone()
    return None if row is None else StoredJob(*row)


class JobStore:
    """Offers as they were accepted, until their jobs end and beyond."""

    def __init__(
        self, db: sqlite3.Connection, transaction: Callable[[], AbstractContextManager[None]]
    ) -> None:
        """Take the store's connection and its way to make changes whole."""
        self._db = db
        self._transaction = transaction

    def check(self, job: StoredJob) -> None:
        """Refuse an offer under the name of a job with other contents.

        Raises:
            PeerError: EQUIVOCATION.
        """
        known = self.find(job.job_id)
        if known is not None and known != job:
            raise PeerError(
                Reason.EQUIVOCATION, f"job {job.job_id} was offered before with other contents"
            )

    def put(self, job: StoredJob) -> None:
        """Keep an accepted offer.

        Raises:
            PeerError: EQUIVOCATION: the job is known with another offer.
        """
        self.check(job)
        with self._transaction():
            self._db.execute(
                "INSERT INTO jobs VALUES (?, ?, ?, ?, ?, ?, ?, 'accepted')"
                " ON CONFLICT (job_id) DO UPDATE SET state = 'accepted'",
                astuple(job),
            )

    def put_unaudited(self, job: StoredJob) -> None:
        """Keep an offer that lacks a leakage audit, so that the audit can be run; the newest few.

        Raises:
            PeerError: EQUIVOCATION: the job is known with another offer.
        """
        self.check(job)
        with self._transaction():
            self._db.execute(
                "INSERT OR IGNORE INTO jobs VALUES (?, ?, ?, ?, ?, ?, ?, 'unaudited')", astuple(job)
            )
            self._db.execute(
                "DELETE FROM jobs WHERE state = 'unaudited' AND rowid NOT IN (SELECT rowid"
                " FROM jobs WHERE state = 'unaudited' ORDER BY rowid DESC LIMIT ?)",
                (_MOST_UNAUDITED,),
            )

    def newest_audit(self, key: AuditKey) -> AuditRecord | None:
        """Give the newest leakage audit of what a job sends; None where there is none."""
        return newest_record(self._db, key)

    def find(self, job_id: str) -> StoredJob | None:
        """Give an accepted job."""
        return find_job(self._db, job_id)

    def unfinished(self) -> list[StoredJob]:
        """Give the accepted jobs that have not ended."""
        rows = self._db.execute(
            f"SELECT {_JOB_COLUMNS} FROM jobs"  # noqa: S608 - a constant
            " WHERE state = 'accepted' ORDER BY rowid"
        ).fetchall()
        return [StoredJob(*row) for row in rows]

    def put_app(self, sha256: bytes, content: bytes) -> None:
        """Keep an app bundle, so that a restart needs no aggregator."""
        with self._transaction():
            self._db.execute("INSERT OR IGNORE INTO apps VALUES (?, ?)", (sha256, content))

    def app(self, sha256: bytes) -> bytes | None:
        """Give a kept app bundle, its digest checked again."""
        row = self._db.execute("SELECT content FROM apps WHERE sha256 = ?", (sha256,)).fetchone()
        if row is None or hashlib.sha256(row[0]).digest() != sha256:
            return None
        return bytes(row[0])

    def put_app_state(self, job_id: str, state: StoredState) -> None:
        """Keep which contents are a Flower app's state; the files are whole and synced by now."""
        with self._transaction():
            self._db.execute(
                "INSERT OR REPLACE INTO app_states VALUES (?, ?, ?, ?, ?, ?)",
                (job_id, *astuple(state)),
            )

    def app_state(self, job_id: str) -> StoredState | None:
        """Give what a Flower app remembers of a job; None before its first update."""
        row = self._db.execute(
            "SELECT round, version, purpose, before, after FROM app_states WHERE job_id = ?",
            (job_id,),
        ).fetchone()
        return None if row is None else StoredState(*row)

    def end(self, job_id: str, state: str) -> None:
        """Mark a job as over, forget the secrets of its attempts and what its app remembers."""
        with self._transaction():
            self._db.execute("DELETE FROM app_states WHERE job_id = ?", (job_id,))
            self._db.execute("UPDATE jobs SET state = ? WHERE job_id = ?", (state, job_id))
            self._db.execute(
                "DELETE FROM apps WHERE sha256 NOT IN"
                " (SELECT app_sha256 FROM jobs WHERE state IN ('accepted', 'unaudited'))"
            )
            self._db.execute(
                "DELETE FROM slots WHERE ctx IN (SELECT ctx FROM attempts WHERE job_id = ?)",
                (job_id,),
            )
            self._db.execute(
                "UPDATE attempts SET secrets = NULL, state = 'dead' WHERE job_id = ?", (job_id,)
            )
