"""Keep what a site must never forget: pins, one-time bundles, attempts, slots, ledger.

Rules kept here (secure-aggregation.md, "Keys and bundles" and "Every step has one durable slot"):
- one transaction a step: slot, with the first one also the burnt serial and the attempt, at step 2
  also the charge, at step 4 (mode ``none``) also whose sum it is; with it generation g+1; then the
  mirror; only then may the caller let bytes leave;
- a slot is written once; the identical input finds it, a different one is refused;
- secrets lie wrapped under the boot key, bound to their place; without it they are void.
Not kept here: jobs and held updates (`store_jobs.py`, `store_held.py`, in the same database), what
a charge costs (`budget.py`), what a step means (`privacy.secagg.site`).
One connection, used by one thread.
"""

import contextlib
import hashlib
import secrets
import sqlite3
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from edge_node.boot_key import BootKey
from edge_node.mirror import Mirror, MirrorState
from edge_node.store_held import HeldUpdates
from edge_node.store_jobs import JobStore
from edge_node.store_schema import (
    StepRecord,
    StoredAttempt,
    StoredBundle,
    StoredLedger,
    connect,
    find_pin,
    make_private_folder,
    read_ledgers,
)
from privacy.errors import PeerError, Reason, UsageError
from privacy.secagg.encoding import hash_of
from tidegate.keys import write_private

_LARGE_UPDATE_BYTES = 4 << 20
"""A larger update lies in a file of its own, so that the database's log stays small."""
_FINGERPRINT_BYTES = 32


class Store:
    """The site's database with its mirror and boot key.

    Attributes:
        generation: Durable steps so far.
        store_id: Names the database, for its mirror.
        instance_id: Names the boot key under which secrets lie.
        jobs: The accepted jobs.
        held: Updates charged in attempts that died.
    """

    def __init__(
        self, path: Path, mirror_path: Path, boot: BootKey, *, reconcile: bool = False
    ) -> None:
        """Open the store, making it where there is none.

        Args:
            path: The database.
            mirror_path: Its mirror, outside the backup.
            boot: This boot's key.
            reconcile: Take a database that its mirror contradicts; `edge_node.reconcile` alone
                does that, to make up for what is missing.

        Raises:
            UsageError: It is open to others, of another version, or older than its mirror.
        """
        make_private_folder(path.parent)
        self._boot = boot
        self._updates = path.parent / "updates"
        make_private_folder(self._updates)
        self._large_updates = any(self._updates.iterdir())
        self._db = connect(path)
        self.jobs = JobStore(self._db, self._transaction)
        self.held = HeldUpdates(self._db, boot)
        self.generation = 0
        self._heads: dict[str, str] = {}
        self._mirror = Mirror(mirror_path)
        try:
            self._start(reconcile=reconcile)
        except BaseException:
            self.close()
            raise

    def _start(self, *, reconcile: bool) -> None:
        known = hashlib.sha256(b"tidegate/boot-check/1" + self._boot.key).digest()
        if self._meta("store_id") is None:
            with self._transaction():
                self._set_meta("store_id", secrets.token_bytes(16))
                self._set_meta("generation", (0).to_bytes(8, "big"))
                self._set_meta("next_serial", (1).to_bytes(8, "big"))
        self._drop_stray_updates()
        self.store_id = self._need("store_id")
        self.generation = int.from_bytes(self._need("generation"), "big")
        self._heads = dict(self._db.execute("SELECT dataset_id, head FROM budgets").fetchall())
        if not reconcile:
            self._mirror.check(self._mirrored())
        if self._boot.fresh or self._meta("boot_check") != known:
            self.void_secrets()
            with self._transaction():
                self._set_meta("boot_check", known)
        self.instance_id = self._need("instance_id")
        if not reconcile:
            self._write_mirror()

    def _drop_stray_updates(self) -> None:
        """Remove files that a kill left without a slot: half written, or not yet unlinked."""
        rows = self._db.execute("SELECT ctx FROM slots WHERE step = 2").fetchall()
        kept = {self._update_path(ctx) for (ctx,) in rows}
        for path in self._updates.iterdir():
            if path not in kept:
                path.unlink()

    def missing_steps(self) -> int:
        """Give how many durable steps the mirror has seen beyond this database; 0 if none."""
        state = self._mirror.read()
        if state is None or state.store_id != self.store_id:
            return 0
        return max(0, state.generation - self.generation)

    def reconcile(self, charges: Iterable[tuple[str, int, bytes, str]]) -> None:
        """Make up for missing steps: charge, void all secrets, go beyond the mirror's generation.

        Args:
            charges: Ledger rows as in `StepRecord.charge`, in order.
        """
        self.void_secrets()
        state = self._mirror.read()
        with self._transaction():
            for row in charges:
                self._charge(row)
            self.generation = max(self.generation, 0 if state is None else state.generation)
            self._next_generation()
        self._write_mirror()

    def close(self) -> None:
        """Close database and mirror."""
        self._db.close()
        self._mirror.close()

    # --- pins and identity -----------------------------------------------------------------------

    def pin(self, name: str, value: bytes) -> None:
        """Pin a value for good.

        Raises:
            PeerError: EQUIVOCATION: another value is pinned under that name.
        """
        pinned = self.pinned(name)
        if pinned is None:
            with self._transaction():
                self._db.execute("INSERT INTO pins VALUES (?, ?)", (name, value))
        elif pinned != value:
            raise PeerError(
                Reason.EQUIVOCATION,
                f"another {name} than the one this site pinned ({pinned[:8].hex()}…): refused",
            )

    def pinned(self, name: str) -> bytes | None:
        """Give a pinned value."""
        return find_pin(self._db, name)

    def void_secrets(self) -> None:
        """Void stock and live attempts and take a new instance id: the boot key is a new one."""
        with self._transaction():
            self._db.execute("DELETE FROM bundles")
            self._db.execute("UPDATE attempts SET secrets = NULL, state = 'dead'")
            self._db.execute("DELETE FROM slots")
            self._set_meta("instance_id", secrets.token_bytes(16))
        for path in self._updates.iterdir():
            path.unlink()
        self.instance_id = self._need("instance_id")

    # --- bundles ---------------------------------------------------------------------------------

    def reserve_serials(self, count: int) -> range:
        """Give serials that no bundle of this identity ever had, durably."""
        first = int.from_bytes(self._need("next_serial"), "big")
        with self._transaction():
            self._set_meta("next_serial", (first + count).to_bytes(8, "big"))
        return range(first, first + count)

    def add_bundles(self, bundles: Iterable[StoredBundle], most: int) -> None:
        """Put bundles into stock; only then may their public halves leave.

        Args:
            bundles: New ones.
            most: How many the stock may hold; the oldest beyond are forgotten.
        """
        rows = [
            (b.serial, b.signed, self._boot.wrap(b.seed, hash_of("bundle-seed", b.serial)))
            for b in bundles
        ]
        with self._transaction():
            self._db.executemany("INSERT INTO bundles VALUES (?, ?, ?)", rows)
            self._db.execute(
                "DELETE FROM bundles WHERE serial <= (SELECT serial FROM bundles"
                " ORDER BY serial DESC LIMIT 1 OFFSET ?)",
                (most,),
            )

    def bundle(self, serial: int) -> StoredBundle | None:
        """Give a bundle of the stock; None if it is unknown or burnt."""
        row = self._db.execute(
            "SELECT signed, seed FROM bundles WHERE serial = ?", (serial,)
        ).fetchone()
        if row is None:
            return None
        return StoredBundle(
            serial, bytes(row[0]), self._boot.unwrap(row[1], hash_of("bundle-seed", serial))
        )

    # --- attempts and slots ----------------------------------------------------------------------

    def commit_step(self, record: StepRecord) -> None:
        """Make a step durable, then its generation in the mirror.

        Raises:
            PeerError: REPLAY: the serial is burnt or unknown; EQUIVOCATION: the slot holds another
                input.
        """
        with self._transaction():
            self._insert(record)
            self._next_generation()
        self._write_mirror()
        if record.serves and self._large_updates:
            self._update_path(record.serves).unlink(missing_ok=True)

    def charge(self, row: tuple[str, int, bytes, str]) -> None:
        """Make a charge durable that no step of an attempt carries, then the mirror.

        Args:
            row: As in `StepRecord.charge`.
        """
        with self._transaction():
            self._charge(row)
            self._next_generation()
        self._write_mirror()

    def _insert(self, record: StepRecord) -> None:
        if record.begin is not None:
            self._begin(record.begin)
        sealed = self._boot.wrap(record.slot, hash_of("slot", record.ctx, record.step))
        kept = None
        if record.update is not None:
            kept = self._boot.wrap(record.update, hash_of("update", record.ctx))
            if len(kept) > _LARGE_UPDATE_BYTES:
                # The file is whole and synced before the row that relies on it.
                write_private(self._update_path(record.ctx), kept)
                self._large_updates, kept = True, None
        try:
            self._db.execute(
                "INSERT INTO slots VALUES (?, ?, ?, ?, ?)",
                (record.ctx, record.step, record.input_digest, sealed, kept),
            )
        except sqlite3.IntegrityError as error:
            raise PeerError(
                Reason.EQUIVOCATION, f"step {record.step} of this attempt is already decided"
            ) from error
        if record.update is not None:
            self.held.serve(record.ctx, record.serves)
        if record.charge is not None:
            self._charge(record.charge)
        if record.sum_of is not None:
            job_id, survivors = record.sum_of
            row = (job_id, b"".join(survivors))
            self._db.execute("INSERT OR REPLACE INTO last_sums VALUES (?, ?)", row)

    def _charge(self, row: tuple[str, int, bytes, str]) -> None:
        dataset_id, sequence, entry, head = row
        self._db.execute("INSERT INTO ledger VALUES (?, ?, ?)", (dataset_id, sequence, entry))
        self._db.execute("UPDATE budgets SET head = ? WHERE dataset_id = ?", (head, dataset_id))
        self._heads[dataset_id] = head

    def _begin(self, begun: StoredAttempt) -> None:
        burnt = self._db.execute(
            "DELETE FROM bundles WHERE serial = ? RETURNING signed", (begun.serial,)
        ).fetchone()
        if burnt is None:
            raise PeerError(Reason.REPLAY, f"bundle {begun.serial} is burnt or not of this stock")
        if (begun.round, begun.attempt) <= self.last_accepted(begun.job_id):
            raise PeerError(
                Reason.REPLAY,
                f"round {begun.round} attempt {begun.attempt} is not after the last one",
            )
        sealed = self._boot.wrap(begun.secrets, hash_of("attempt", begun.ctx))
        # One row a job is enough for the order of attempts.
        self._db.execute(
            "DELETE FROM attempts WHERE job_id = ? AND state = 'dead'", (begun.job_id,)
        )
        names = (begun.ctx, begun.job_id, begun.round, begun.attempt)
        self._db.execute(
            "INSERT INTO attempts VALUES (?, ?, ?, ?, ?, ?, ?, 'live')",
            (*names, begun.facts, burnt[0], sealed),
        )

    def erase(self, ctx: bytes) -> None:
        """Erase an attempt's secrets, slots and update: published, aborted or timed out.

        No fsync: after a crash the attempt would come back as it was, still under the boot key.
        """
        self._db.execute("PRAGMA synchronous = NORMAL")
        try:
            with self._transaction():
                self._db.execute(
                    "UPDATE attempts SET secrets = NULL, state = 'dead' WHERE ctx = ?", (ctx,)
                )
                self._db.execute("DELETE FROM slots WHERE ctx = ?", (ctx,))
        finally:
            self._db.execute("PRAGMA synchronous = FULL")
        if self._large_updates:
            self._update_path(ctx).unlink(missing_ok=True)

    def hold(self, ctx: bytes, seeds: bytes) -> None:
        """Erase an attempt's secrets and hold its update (`HeldUpdates.hold`); no fsync either."""
        self._db.execute("PRAGMA synchronous = NORMAL")
        try:
            with self._transaction():
                held = self.held.hold(ctx, seeds)
        finally:
            self._db.execute("PRAGMA synchronous = FULL")
        if not held:
            self.erase(ctx)

    def live_attempts(self) -> list[StoredAttempt]:
        """Give the attempts that a crash interrupted, oldest first."""
        return self._attempts("live")

    def held_attempts(self) -> list[StoredAttempt]:
        """Give the attempts whose update is held; of their secrets the update's seeds alone."""
        return self._attempts("held")

    def _attempts(self, state: str) -> list[StoredAttempt]:
        rows = self._db.execute(
            "SELECT ctx, job_id, round, attempt, facts, bundle, secrets FROM attempts"
            " WHERE state = ? ORDER BY rowid",
            (state,),
        ).fetchall()
        return [self._attempt(*row) for row in rows]

    def slots(self, ctx: bytes) -> Mapping[int, bytes]:
        """Give an attempt's slots by step."""
        rows = self._db.execute("SELECT step, slot FROM slots WHERE ctx = ?", (ctx,)).fetchall()
        return {step: self._boot.unwrap(slot, hash_of("slot", ctx, step)) for step, slot in rows}

    def update_of(self, ctx: bytes) -> bytes | None:
        """Give the update kept with step 2, as it was before masking and reduction."""
        row = self._db.execute(
            "SELECT update_bytes FROM slots WHERE ctx = ? AND step = 2", (ctx,)
        ).fetchone()
        if row is None:
            return None
        sealed = row[0]
        if sealed is None:
            try:
                sealed = self._update_path(ctx).read_bytes()
            except FileNotFoundError:
                return None
        return self._boot.unwrap(sealed, hash_of("update", ctx))

    def last_accepted(self, job_id: str) -> tuple[int, int]:
        """Give (round, attempt) of the last attempt accepted for a job; (-1, -1) before any."""
        row = self._db.execute(
            "SELECT round, attempt FROM attempts WHERE job_id = ?"
            " ORDER BY round DESC, attempt DESC LIMIT 1",
            (job_id,),
        ).fetchone()
        return (-1, -1) if row is None else (row[0], row[1])

    def last_sum(self, job_id: str) -> frozenset[bytes] | None:
        """Give the members of the job's last sum that may have been opened; None before any."""
        row = self._db.execute(
            "SELECT survivors FROM last_sums WHERE job_id = ?", (job_id,)
        ).fetchone()
        if row is None:
            return None
        size = _FINGERPRINT_BYTES
        return frozenset(row[0][begin : begin + size] for begin in range(0, len(row[0]), size))

    # --- ledger ----------------------------------------------------------------------------------

    def add_budget(self, dataset_id: str, budgets: bytes, genesis: str) -> None:
        """Keep a data set's budgets (canonical JSON) and genesis hash, in place of uncharged ones.

        Raises:
            UsageError: The data set's ledger has entries: its budgets are fixed for good.
        """
        row = (dataset_id, budgets, genesis)
        with self._transaction():
            charged = "SELECT 1 FROM ledger WHERE dataset_id = ? LIMIT 1"
            if self._db.execute(charged, (dataset_id,)).fetchone():
                raise UsageError(f"the budgets of data set id {dataset_id!r} were charged")
            self._db.execute("INSERT OR REPLACE INTO budgets VALUES (?, ?, ?)", row)
            self._next_generation()
        self._heads[dataset_id] = genesis
        self._write_mirror()

    def ledgers(self) -> list[StoredLedger]:
        """Give every ledger with its entries, oldest first."""
        return read_ledgers(self._db)

    # --- inside ----------------------------------------------------------------------------------

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[None]:
        generation, heads = self.generation, dict(self._heads)
        self._db.execute("BEGIN IMMEDIATE")
        try:
            yield
            self._db.execute("COMMIT")
        except BaseException:
            if self._db.in_transaction:
                self._db.execute("ROLLBACK")
            self.generation, self._heads = generation, heads
            raise

    def _attempt(self, ctx: bytes, job_id: str, *rest: Any) -> StoredAttempt:
        number, attempt, facts, bundle, sealed = rest
        opened = self._boot.unwrap(sealed, hash_of("attempt", ctx))
        return StoredAttempt(ctx, job_id, number, attempt, facts, opened, bundle=bundle)

    def _next_generation(self) -> None:
        self.generation += 1
        self._set_meta("generation", self.generation.to_bytes(8, "big"))

    def _write_mirror(self) -> None:
        self._mirror.write(self._mirrored())

    def _mirrored(self) -> MirrorState:
        heads = _digest_of(tuple(sorted(self._heads.items())))
        return MirrorState(self.store_id, self.generation, heads)

    def _update_path(self, ctx: bytes) -> Path:
        return self._updates / f"{ctx.hex()}.update"

    def _meta(self, name: str) -> bytes | None:
        row = self._db.execute("SELECT value FROM meta WHERE name = ?", (name,)).fetchone()
        return None if row is None else bytes(row[0])

    def _need(self, name: str) -> bytes:
        value = self._meta(name)
        if value is None:
            raise UsageError(f"the database has lost its {name}; restore it, then reconcile")
        return value

    def _set_meta(self, name: str, value: bytes) -> None:
        self._db.execute("INSERT OR REPLACE INTO meta VALUES (?, ?)", (name, value))


@lru_cache(maxsize=1)
def _digest_of(heads: tuple[tuple[str, str], ...]) -> bytes:
    """Give the mirror's digest of the ledgers' heads, which three of four steps leave alone."""
    return hash_of("ledger-heads", *(part for pair in heads for part in pair))
