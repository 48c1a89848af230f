"""Keep the updates that were charged in an attempt which died, until they serve another or go.

A part of the store (`edge_node.store`): one database, one thread. A held update is the dead
attempt itself, in the state ``held``: its slots stay, of its secrets only the update's own seeds.
Holding is no durable step: a crash gives the attempt back as it was. Serving is part of step 2 of
the next attempt, in one transaction: a held update serves once, and never two attempts.
"""

import sqlite3

from edge_node.boot_key import BootKey
from privacy.errors import PeerError, Reason
from privacy.secagg.encoding import hash_of


class HeldUpdates:
    """The attempts in the state ``held``, at most one a job."""

    def __init__(self, db: sqlite3.Connection, boot: BootKey) -> None:
        """Take the store's connection and this boot's key."""
        self._db = db
        self._boot = boot

    def hold(self, ctx: bytes, seeds: bytes) -> bool:
        """Hold an attempt's update, within a transaction; an older one of its job goes.

        Args:
            ctx: The attempt, live until now.
            seeds: What stays of its secrets: the update's surplus seeds.

        Returns:
            False where it is not to be held: it was not charged, or its shares may have left.
        """
        steps = self._db.execute("SELECT step FROM slots WHERE ctx = ?", (ctx,)).fetchall()
        if (2,) not in steps or (4,) in steps:
            return False
        (job_id,) = self._db.execute("SELECT job_id FROM attempts WHERE ctx = ?", (ctx,)).fetchone()
        self._forget(job_id)
        sealed = self._boot.wrap(seeds, hash_of("attempt", ctx))
        self._db.execute(
            "UPDATE attempts SET secrets = ?, state = 'held' WHERE ctx = ?", (sealed, ctx)
        )
        return True

    def serve(self, ctx: bytes, held: bytes) -> None:
        """Bind a job's held update to another attempt, within the transaction of its step 2.

        Args:
            ctx: The attempt that the update goes into.
            held: The one that it was last sent in; empty where the update is another, and what is
                held goes.

        Raises:
            PeerError: STOPPED: no such update is held, so nothing was charged for this one.
        """
        (job_id,) = self._db.execute("SELECT job_id FROM attempts WHERE ctx = ?", (ctx,)).fetchone()
        if held:
            row = self._db.execute(
                "SELECT 1 FROM attempts WHERE ctx = ? AND job_id = ? AND state = 'held'",
                (held, job_id),
            ).fetchone()
            if row is None:
                raise PeerError(Reason.STOPPED, "the update is not held any more: nothing was sent")
            self._db.execute(
                "INSERT INTO retries VALUES (?, COALESCE((SELECT charged FROM retries"
                " WHERE ctx = ?), ?))",
                (ctx, held, held),
            )
        self._forget(job_id)

    def served(self) -> dict[bytes, bytes]:
        """Give the attempts that were sent without a charge, each with the one charged for it."""
        return dict(self._db.execute("SELECT ctx, charged FROM retries").fetchall())

    def _forget(self, job_id: str) -> None:
        of_job = "(SELECT ctx FROM attempts WHERE job_id = ? AND state = 'held')"
        self._db.execute(f"DELETE FROM slots WHERE ctx IN {of_job}", (job_id,))  # noqa: S608 - a constant
        self._db.execute(
            "UPDATE attempts SET secrets = NULL, state = 'dead'"
            " WHERE job_id = ? AND state = 'held'",
            (job_id,),
        )
