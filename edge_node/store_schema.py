"""The file of a site's store: its tables, their rows as values, and how it is opened."""

import os
import sqlite3
from dataclasses import dataclass, field
from pathlib import Path

from privacy.errors import UsageError

SCHEMA_VERSION = 4
MANIFEST_PIN = "manifest"
"""Under which the sealed manifest is pinned."""

SCHEMA = """
CREATE TABLE meta (name TEXT PRIMARY KEY, value BLOB NOT NULL) STRICT;
CREATE TABLE pins (name TEXT PRIMARY KEY, value BLOB NOT NULL) STRICT;
-- A burnt bundle is a deleted row: its serial is never given out again.
CREATE TABLE bundles (
  serial INTEGER PRIMARY KEY,
  signed BLOB NOT NULL,
  seed BLOB NOT NULL
) STRICT;
CREATE TABLE attempts (
  ctx BLOB PRIMARY KEY,
  job_id TEXT NOT NULL,
  round INTEGER NOT NULL,
  attempt INTEGER NOT NULL,
  facts BLOB NOT NULL,
  bundle BLOB NOT NULL,
  secrets BLOB,
  state TEXT NOT NULL CHECK (state IN ('live', 'held', 'dead'))
) STRICT;
CREATE INDEX attempts_by_job ON attempts (job_id, round, attempt);
CREATE TABLE slots (
  ctx BLOB NOT NULL REFERENCES attempts (ctx) ON DELETE CASCADE,
  step INTEGER NOT NULL CHECK (step BETWEEN 0 AND 4),
  input_digest BLOB NOT NULL,
  slot BLOB NOT NULL,
  update_bytes BLOB,
  PRIMARY KEY (ctx, step)
) STRICT;
-- Attempts whose update was charged in an earlier one: whose ledger entry serves them.
CREATE TABLE retries (ctx BLOB PRIMARY KEY, charged BLOB NOT NULL) STRICT;
CREATE TABLE budgets (
  dataset_id TEXT PRIMARY KEY,
  budgets BLOB NOT NULL,
  head TEXT NOT NULL
) STRICT;
CREATE TABLE ledger (
  dataset_id TEXT NOT NULL REFERENCES budgets (dataset_id),
  sequence INTEGER NOT NULL,
  entry BLOB NOT NULL,
  PRIMARY KEY (dataset_id, sequence)
) STRICT;
CREATE TABLE jobs (
  job_id TEXT PRIMARY KEY,
  job_toml BLOB NOT NULL,
  app_sha256 BLOB NOT NULL,
  app_size INTEGER NOT NULL,
  vector_spec BLOB NOT NULL,
  encoding BLOB NOT NULL,
  evaluation_encoding BLOB NOT NULL,
  state TEXT NOT NULL
) STRICT;
-- U3 of the last sum of a job that this site released its shares for: fingerprints in a row. It
-- outlives the job: one that ends and is offered again must not shake the rule off.
CREATE TABLE last_sums (job_id TEXT PRIMARY KEY, survivors BLOB NOT NULL) STRICT;
-- What a Flower app remembers of a job: what the call for this update began with, and what it left;
-- the content, or the digest of the file that holds it (`app_states.py`).
CREATE TABLE app_states (
  job_id TEXT PRIMARY KEY,
  round INTEGER NOT NULL,
  version INTEGER NOT NULL,
  purpose TEXT NOT NULL,
  before BLOB NOT NULL,
  after BLOB NOT NULL
) STRICT;
CREATE TABLE apps (sha256 BLOB PRIMARY KEY, content BLOB NOT NULL) STRICT;
-- Verdicts of leakage audits; the newest one of a key counts (`leakage/records.py`).
CREATE TABLE leakage_audits (
  app_sha256 BLOB NOT NULL,
  plan_sha256 BLOB NOT NULL,
  schema_sha256 BLOB NOT NULL,
  version INTEGER NOT NULL,
  made_at_s REAL NOT NULL,
  verdict TEXT NOT NULL,
  job_name TEXT NOT NULL,
  dataset TEXT NOT NULL,
  seed INTEGER NOT NULL,
  summary BLOB NOT NULL
) STRICT;
"""


@dataclass(frozen=True)
class StoredBundle:
    """A one-time bundle as it was put into stock.

    Attributes:
        signed: The signed bundle's bytes, as the daemon encoded them.
        seed: What its secrets derive from, 32 bytes.
    """

    serial: int
    signed: bytes
    seed: bytes = field(repr=False)


@dataclass(frozen=True)
class StoredAttempt:
    """An attempt whose first slot was committed.

    Attributes:
        facts: Whatever the daemon needs to rebuild it, as the daemon encoded it.
        secrets: Bundle seed, self-mask seed, coefficient seed and surplus seeds, 32 bytes each.
        serial: The bundle that the first slot burns; 0 once it is burnt.
        bundle: That bundle as it was signed, once it is burnt.
    """

    ctx: bytes
    job_id: str
    round: int
    attempt: int
    facts: bytes
    secrets: bytes = field(repr=False)
    serial: int = 0
    bundle: bytes = b""


@dataclass(frozen=True)
class StepRecord:
    """One step to make durable.

    Attributes:
        begin: With the first slot: the attempt, whose serial is burnt with it.
        charge: (data-set id, sequence, canonical bytes, new head) of the ledger entry.
        update: The update's integers, kept from step 2 until released, or None.
        sum_of: At step 4: the job and the members of its sum, or None.
        serves: At step 2: the attempt whose held update this is; empty where it is charged now.
    """

    ctx: bytes
    step: int
    input_digest: bytes
    slot: bytes = field(repr=False)
    begin: StoredAttempt | None = None
    charge: tuple[str, int, bytes, str] | None = None
    update: bytes | None = field(default=None, repr=False)
    sum_of: tuple[str, tuple[bytes, ...]] | None = None
    serves: bytes = b""


@dataclass(frozen=True)
class StoredLedger:
    """A data set's ledger: its budgets (canonical JSON), its entries, and the newest one's hash."""

    dataset_id: str
    budgets: bytes
    head: str
    entries: tuple[bytes, ...]


@dataclass(frozen=True)
class StoredJob:
    """A job whose offer this site accepted; offer bytes as received."""

    job_id: str
    job_toml: bytes
    app_sha256: bytes
    app_size: int
    vector_spec: bytes
    encoding: bytes
    evaluation_encoding: bytes = b""


@dataclass(frozen=True)
class StoredState:
    """A Flower app's state as of its newest update.

    Attributes:
        before: What the call began with, as ``app_states`` writes it.
        after: What it left.
    """

    round: int
    version: int
    purpose: str
    before: bytes
    after: bytes


def connect(path: Path, *, read_only: bool = False) -> sqlite3.Connection:
    """Open a site's database, making it where there is none.

    Raises:
        UsageError: It is missing (when read only), open to others, damaged or of another version.
    """
    if read_only and not path.exists():
        raise UsageError(f"there is no database {path} yet: the first `edge-node run` makes it")
    if not path.exists():
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600))
    if path.stat().st_mode & 0o077:
        raise UsageError(f"{path} is open to others: run `chmod 600 {path}`")
    uri = f"{path.absolute().as_uri()}?mode={'ro' if read_only else 'rw'}"
    db = sqlite3.connect(uri, uri=True, isolation_level=None, timeout=5.0)
    try:
        db.execute("PRAGMA journal_mode = WAL") if not read_only else None
        for pragma in ("synchronous = FULL", "foreign_keys = ON", "temp_store = MEMORY"):
            db.execute(f"PRAGMA {pragma}")
        _check_version(db, path, read_only=read_only)
    except sqlite3.DatabaseError as error:
        db.close()
        raise UsageError(f"{path} cannot be used as a database: {error}") from error
    except UsageError:
        db.close()
        raise
    return db


def _check_version(db: sqlite3.Connection, path: Path, *, read_only: bool) -> None:
    (version,) = db.execute("PRAGMA user_version").fetchone()
    if version == 0 and not read_only:
        db.executescript(f"BEGIN;{SCHEMA}PRAGMA user_version = {SCHEMA_VERSION};COMMIT;")
    elif version != SCHEMA_VERSION:
        raise UsageError(
            f"{path} is a store of version {version}, this program knows {SCHEMA_VERSION}: use the"
            " program that wrote it"
        )


def find_pin(db: sqlite3.Connection, name: str) -> bytes | None:
    """Give a pinned value of a database; None where nothing is pinned under that name."""
    row = db.execute("SELECT value FROM pins WHERE name = ?", (name,)).fetchone()
    return None if row is None else bytes(row[0])


def read_ledgers(db: sqlite3.Connection) -> list[StoredLedger]:
    """Give every ledger of a database."""
    rows = db.execute("SELECT dataset_id, budgets, head FROM budgets ORDER BY dataset_id")
    return [
        StoredLedger(dataset_id, bytes(budgets), head, _entries(db, dataset_id))
        for dataset_id, budgets, head in rows.fetchall()
    ]


def _entries(db: sqlite3.Connection, dataset_id: str) -> tuple[bytes, ...]:
    rows = db.execute(
        "SELECT entry FROM ledger WHERE dataset_id = ? ORDER BY sequence", (dataset_id,)
    )
    return tuple(bytes(row[0]) for row in rows.fetchall())


def make_private_folder(folder: Path) -> None:
    """Make a folder that only its owner may enter, or check one.

    Raises:
        UsageError: It is open to others.
    """
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    if folder.stat().st_mode & 0o077:
        raise UsageError(f"{folder} is open to others: run `chmod 700 {folder}`")
