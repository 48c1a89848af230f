"""The tables of the aggregator's state, the same on SQLite and on PostgreSQL."""

from sqlalchemy import (
    BigInteger,
    Column,
    Float,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    PrimaryKeyConstraint,
    String,
    Table,
    Text,
)

METADATA = MetaData()

# SQLite numbers rows itself only in a column of exactly this type.
_ROW_NUMBER = BigInteger().with_variant(Integer, "sqlite")

SITES = Table(
    "sites",
    METADATA,
    Column("site_id", String(63), primary_key=True),
    Column("node_fingerprint", LargeBinary(32), nullable=False, unique=True),
    Column("signing_spki", LargeBinary(256), nullable=False, unique=True),
    Column("node_id", BigInteger, nullable=False, unique=True),
    Column("certificate_pem", LargeBinary, nullable=False),
    Column("enrolled_at_s", BigInteger, nullable=False),
    Column("revoked_at_s", BigInteger),
    Column("revoked_why", Text),
)

TOKENS = Table(
    "tokens",
    METADATA,
    Column("secret_sha256", LargeBinary(32), primary_key=True),
    Column("site_id", String(63), nullable=False),
    Column("expires_at_s", BigInteger, nullable=False),
    Column("used_at_s", BigInteger),
)

MANIFESTS = Table(
    "manifests",
    METADATA,
    Column("manifest_hash", LargeBinary(32), primary_key=True),
    Column("roster_epoch", BigInteger, nullable=False, unique=True),
    Column("manifest", LargeBinary, nullable=False),
    Column("signature", LargeBinary, nullable=False),
    Column("sealed_at_s", BigInteger, nullable=False),
)

JOBS = Table(
    "jobs",
    METADATA,
    Column("number", _ROW_NUMBER, primary_key=True),
    Column("job_id", String(64), nullable=False, unique=True),
    Column("name", String(63), nullable=False),
    Column("job_toml", LargeBinary, nullable=False),
    Column("vector_spec", LargeBinary, nullable=False),
    Column("encoding", LargeBinary, nullable=False),
    # Of a Flower app's evaluation; empty where the job has none.
    Column("evaluation_encoding", LargeBinary, nullable=False),
    Column("app_sha256", LargeBinary(32), nullable=False),
    Column("app", LargeBinary, nullable=False),
    Column("state", String(16), nullable=False),
    Column("detail", Text, nullable=False),
    Column("submitted_at_s", Float(53), nullable=False),
    Column("elapsed_s", Float(53), nullable=False),
    # What is shown about rounds and sites: JSON, written with each round.
    Column("progress", LargeBinary, nullable=False),
)

VERSIONS = Table(
    "versions",
    METADATA,
    Column("job_id", String(64), nullable=False),
    Column("version", BigInteger, nullable=False),
    Column("sha256", LargeBinary(32), nullable=False),
    Column("chain_head", LargeBinary(32), nullable=False),
    Column("transcript_hash", LargeBinary(32), nullable=False),
    # Its broadcast, as the chain has it.
    Column("broadcast", LargeBinary(512), nullable=False),
    PrimaryKeyConstraint("job_id", "version"),
)

# What late sites may fetch of the newest versions (``version_log``). NULL: there is none, or it
# lies in a file.
VERSION_LOG = Table(
    "version_log",
    METADATA,
    Column("job_id", String(64), nullable=False),
    Column("version", BigInteger, nullable=False),
    Column("packed", LargeBinary),
    Column("announcement", LargeBinary),
    Column("checkpoint", LargeBinary),
    PrimaryKeyConstraint("job_id", "version"),
)

# One row a job: its newest model version and what the strategy carries over to the next round.
CHECKPOINTS = Table(
    "checkpoints",
    METADATA,
    Column("job_id", String(64), primary_key=True),
    Column("version", BigInteger, nullable=False),
    # Small values lie here, durable with the transaction; NULL: they lie in the blob folder, under
    # their SHA-256.
    Column("model", LargeBinary),
    Column("strategy", LargeBinary),
    Column("strategy_sha256", LargeBinary(32), nullable=False),
    # Of the version: what its head is over, beside the model.
    Column("announcement", LargeBinary, nullable=False),
    # The number of the last finished exchange: beyond the version where evaluations were among
    # them, or where a ServerApp trained several times from one version.
    Column("exchange", BigInteger, nullable=False),
)

# What a job's own ServerApp asked for and heard, for as long as the job runs: from it the app's
# main is brought back to where it was (``server_app.store``).
CALLS = Table(
    "calls",
    METADATA,
    Column("job_id", String(64), nullable=False),
    Column("exchange", BigInteger, nullable=False),
    # Of purpose, settings and model, as first asked.
    Column("request_sha256", LargeBinary(32), nullable=False),
    # JSON: the nodes that main was told of, and the metrics of the reply; NULL while none came.
    Column("answer", LargeBinary),
    # The mean model of the reply, as in CHECKPOINTS; the digest is empty where there is none.
    Column("reply", LargeBinary),
    Column("reply_sha256", LargeBinary(32), nullable=False),
    PrimaryKeyConstraint("job_id", "exchange"),
)

JOURNAL = Table(
    "journal",
    METADATA,
    Column("seq", _ROW_NUMBER, primary_key=True),
    Column("at_s", Float(53), nullable=False),
    Column("job_id", String(64), nullable=False),
    Column("round", BigInteger, nullable=False),
    Column("attempt", BigInteger, nullable=False),
    Column("kind", String(32), nullable=False),
    Column("payload", LargeBinary, nullable=False),
    # A job may have a million rounds, and each asks for its last attempt.
    Index("journal_by_round", "job_id", "round"),
)
