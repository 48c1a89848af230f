"""Jobs as the store keeps them: what was submitted, where it stands, its newest model version.

A round costs two transactions: the attempt's number and cohort before the roster goes out, and the
new version with the strategy's state once the sum is decoded. After a crash a running job goes on
from the last committed version under a fresh attempt number.
"""

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property

from sqlalchemy import Connection, func, insert, select, update

from aggregator.broadcast import ModelVersion
from aggregator.checkpoints import Checkpoint, CommittedRound
from aggregator.store import JournalEntry, Store
from aggregator.tables import CHECKPOINTS, JOBS, JOURNAL, VERSIONS
from privacy.errors import PeerError, Reason
from privacy.pipeline import EncodingPlan
from privacy.spec import VectorSpec
from tidegate.broadcast import Broadcast
from tidegate.convert import MAX_HISTORY
from tidegate.jobfile import JobFile
from tidegate.messages import is_evaluation
from tidegate.replay import replays
from tidegate.requests import RoundRecord

ATTEMPT_OPENED = "attempt-opened"
ATTEMPT_ABORTED = "attempt-aborted"
ATTEMPT_UNUSED = "attempt-unused"
ROUND_COMMITTED = "round-committed"
JOB_STATE = "job-state"


class JobState(StrEnum):
    """Where a job stands, in the words of the operator API."""

    QUEUED = "queued"
    RUNNING = "running"
    FINISHED = "finished"
    FAILED = "failed"
    STOPPED = "stopped"

    @property
    def is_over(self) -> bool:
        """Whether it will not train any more."""
        return self not in (JobState.QUEUED, JobState.RUNNING)


@dataclass(frozen=True)
class Job:
    """One job as submitted, and its state.

    Attributes:
        job_id: Its name everywhere.
        job_toml: The job file, exactly as submitted.
        vector_spec: Canonical bytes of the model's spec.
        encoding: Canonical bytes of the encoding plan that was derived at submission.
        evaluation_encoding: The same for a Flower app's evaluation; empty where there is none.
        app: The app bundle.
        state: See ``JobState``.
        detail: Why it is in that state, for people.
        submitted_at_s: Unix seconds.
        elapsed_s: How long it has run, over all restarts.
        progress: JSON of ``progress.JobProgress``.
    """

    job_id: str
    job_toml: bytes
    vector_spec: bytes
    encoding: bytes
    app: bytes = field(repr=False)
    state: JobState = JobState.QUEUED
    detail: str = ""
    submitted_at_s: float = 0.0
    elapsed_s: float = 0.0
    progress: bytes = field(default=b"{}", repr=False)
    evaluation_encoding: bytes = b""

    @cached_property
    def file(self) -> JobFile:
        """The job file, read."""
        return JobFile.parse(self.job_toml)

    @cached_property
    def spec(self) -> VectorSpec:
        """The model's spec, read."""
        return VectorSpec.from_bytes(self.vector_spec)

    @cached_property
    def plan(self) -> EncodingPlan:
        """The encoding plan, read."""
        return EncodingPlan.from_bytes(self.encoding)

    @cached_property
    def evaluation_plan(self) -> EncodingPlan | None:
        """The plan of a Flower app's evaluation, read; None where the job has none."""
        raw = self.evaluation_encoding
        return EncodingPlan.from_bytes(raw) if raw else None

    def plan_for(self, purpose: str) -> EncodingPlan:
        """Return the plan by which an exchange of this purpose is encoded.

        Raises:
            PeerError: POLICY: the job declares no evaluation.
        """
        if not is_evaluation(purpose):
            return self.plan
        if self.evaluation_plan is None:
            message = "evaluation needs [[evaluation_metrics]] in the job file: name what to sum"
            raise PeerError(Reason.POLICY, message)
        return self.evaluation_plan

    @cached_property
    def replays(self) -> bool:
        """Whether sites are sent the sums that make versions, not the versions."""
        return replays(self.file, self.plan)

    @cached_property
    def app_sha256(self) -> bytes:
        """The app bundle's digest."""
        return hashlib.sha256(self.app).digest()


class JobStore:
    """The jobs' part of the store."""

    def __init__(self, store: Store) -> None:
        """Use a store."""
        self._store = store

    def insert(
        self, job: Job, first: ModelVersion, also: Callable[[Connection], None] | None = None
    ) -> None:
        """Keep a submitted job and its version 0.

        Args:
            job: As admitted.
            first: Its version 0.
            also: Writes what else is to be durable with it.
        """
        model = self._store.put_blob(job.job_id, first.data)
        row = {
            "job_id": job.job_id,
            "name": job.file.name,
            "job_toml": job.job_toml,
            "vector_spec": job.vector_spec,
            "encoding": job.encoding,
            "evaluation_encoding": job.evaluation_encoding,
            "app_sha256": job.app_sha256,
            "app": job.app,
            "state": str(job.state),
            "detail": job.detail,
            "submitted_at_s": job.submitted_at_s,
            "elapsed_s": job.elapsed_s,
            "progress": job.progress,
        }
        checkpoint = {
            "job_id": job.job_id,
            "version": first.version,
            "model": model,
            "strategy": b"",
            "strategy_sha256": hashlib.sha256(b"").digest(),
            "announcement": first.announcement,
            "exchange": 0,
        }
        with self._store.transaction() as connection:
            connection.execute(insert(JOBS), row)
            connection.execute(insert(VERSIONS), _version_row(job.job_id, first, bytes(32)))
            connection.execute(insert(CHECKPOINTS), checkpoint)
            if also is not None:
                also(connection)

    def load_all(self) -> list[Job]:
        """Return all jobs in the order of submission."""
        with self._store.transaction() as connection:
            rows = connection.execute(select(JOBS).order_by(JOBS.c.number)).all()
        return [
            Job(
                job_id=row.job_id,
                job_toml=bytes(row.job_toml),
                vector_spec=bytes(row.vector_spec),
                encoding=bytes(row.encoding),
                evaluation_encoding=bytes(row.evaluation_encoding),
                app=bytes(row.app),
                state=JobState(row.state),
                detail=row.detail,
                submitted_at_s=row.submitted_at_s,
                elapsed_s=row.elapsed_s,
                progress=bytes(row.progress),
            )
            for row in rows
        ]

    def set_state(self, job: Job, now_s: float) -> None:
        """Keep a job's new state, detail, running time and progress."""
        entry = JournalEntry(
            job.job_id, 0, 0, JOB_STATE, _json({"state": str(job.state), "detail": job.detail})
        )
        change = {
            "state": str(job.state),
            "detail": job.detail,
            "elapsed_s": job.elapsed_s,
            "progress": job.progress,
        }
        with self._store.transaction() as connection:
            connection.execute(update(JOBS).where(JOBS.c.job_id == job.job_id), change)
            self._store.write_journal(connection, entry, now_s)

    def next_attempt(self, job_id: str, round_number: int) -> int:
        """Return a number that no attempt of this round has had, also before a crash."""
        query = select(func.max(JOURNAL.c.attempt)).where(
            JOURNAL.c.job_id == job_id,
            JOURNAL.c.round == round_number,
            JOURNAL.c.kind == ATTEMPT_OPENED,
        )
        with self._store.transaction() as connection:
            last = connection.execute(query).scalar()
        return int(last or 0) + 1

    def open_attempt(
        self,
        job_id: str,
        where: tuple[int, int],
        cohort: dict[str, int],
        now_s: float,
        group: int = 0,
    ) -> None:
        """Make an attempt's number and cohort durable, before anybody hears of them.

        Args:
            job_id: The job.
            where: Round and attempt.
            cohort: The serial of each site's bundle, by site id.
            now_s: Unix seconds.
            group: From 1; 0 where the round's cohort is not in groups.
        """
        facts: dict[str, object] = {"cohort": cohort, **({"group": group} if group else {})}
        entry = JournalEntry(job_id, *where, ATTEMPT_OPENED, _json(facts))
        with self._store.transaction() as connection:
            self._store.write_journal(connection, entry, now_s)

    def end_attempt(
        self, job_id: str, where: tuple[int, int], end: tuple[str, str], now_s: float
    ) -> None:
        """Note that an attempt gives nothing to its round.

        Args:
            job_id: The job.
            where: Round and attempt.
            end: ``ATTEMPT_ABORTED``, with nothing revealed, or ``ATTEMPT_UNUSED``; and why.
            now_s: Unix seconds.
        """
        kind, why = end
        entry = JournalEntry(job_id, *where, kind, _json({"why": why}))
        with self._store.transaction() as connection:
            self._store.write_journal(connection, entry, now_s)

    def commit_round(
        self,
        job_id: str,
        done: CommittedRound,
        now_s: float,
        also: Callable[[Connection], None] | None = None,
    ) -> None:
        """Make a finished exchange durable: version, strategy state, progress, journal at once.

        Args:
            job_id: The job.
            done: What it changes; the model may be the version that is there already.
            now_s: Unix seconds.
            also: Writes what else is to be durable with it.
        """
        model, strategy = done.checkpoint.model, done.checkpoint.strategy
        strategy_sha256 = hashlib.sha256(strategy).digest()
        row = {
            "version": model.version,
            "model": self._store.put_blob(job_id, model.data),
            "strategy": self._store.put_blob(job_id, strategy),
            "strategy_sha256": strategy_sha256,
            "announcement": model.announcement,
            "exchange": done.checkpoint.exchange,
        }
        entry = JournalEntry(
            job_id, done.checkpoint.exchange, done.attempt, ROUND_COMMITTED, _committed_facts(done)
        )
        change = {"elapsed_s": done.elapsed_s, "progress": done.progress}
        this = CHECKPOINTS.c.job_id == job_id
        with self._store.transaction() as connection:
            if row["model"] is None or row["strategy"] is None:
                self._doom_previous(connection, job_id, keep={model.sha256, strategy_sha256})
            if done.publishes:
                fresh = _version_row(job_id, model, done.transcript_hash)
                connection.execute(insert(VERSIONS), fresh)
            connection.execute(update(CHECKPOINTS).where(this), row)
            connection.execute(update(JOBS).where(JOBS.c.job_id == job_id), change)
            self._store.write_journal(connection, entry, now_s)
            if also is not None:
                also(connection)

    def publish(
        self,
        job_id: str,
        model: ModelVersion,
        also: Callable[[Connection], None] | None = None,
    ) -> None:
        """Make a version durable that no sum made: a ServerApp's, before any site hears of it."""
        row = {
            "version": model.version,
            "model": self._store.put_blob(job_id, model.data),
            "announcement": model.announcement,
        }
        this = CHECKPOINTS.c.job_id == job_id
        transcript_hash = self.last_transcript(job_id)
        with self._store.transaction() as connection:
            kept = select(CHECKPOINTS.c.strategy_sha256).where(this)
            strategy_sha256 = bytes(connection.execute(kept).scalar_one())
            self._doom_previous(connection, job_id, keep={model.sha256, strategy_sha256})
            connection.execute(insert(VERSIONS), _version_row(job_id, model, transcript_hash))
            connection.execute(update(CHECKPOINTS).where(this), row)
            if also is not None:
                also(connection)

    def write(self, also: Callable[[Connection], None]) -> None:
        """Make something durable in a transaction of its own."""
        with self._store.transaction() as connection:
            also(connection)

    def load_checkpoint(self, job_id: str) -> Checkpoint:
        """Return where a job goes on from.

        Raises:
            PeerError: UNKNOWN_JOB.
            UsageError: The stored bytes are damaged.
        """
        query = (
            select(CHECKPOINTS, VERSIONS.c.sha256, VERSIONS.c.chain_head, VERSIONS.c.broadcast)
            .join(
                VERSIONS,
                (VERSIONS.c.job_id == CHECKPOINTS.c.job_id)
                & (VERSIONS.c.version == CHECKPOINTS.c.version),
            )
            .where(CHECKPOINTS.c.job_id == job_id)
        )
        with self._store.transaction() as connection:
            row = connection.execute(query).first()
        if row is None:
            raise PeerError(Reason.UNKNOWN_JOB, f"no job {job_id!r}")
        sha256 = bytes(row.sha256)
        data = self._store.get_blob(job_id, row.model, sha256)
        broadcast = Broadcast.from_bytes(bytes(row.broadcast))
        head, announced = bytes(row.chain_head), bytes(row.announcement)
        model = ModelVersion(row.version, sha256, head, data, broadcast, announced)
        strategy = self._store.get_blob(job_id, row.strategy, bytes(row.strategy_sha256))
        return Checkpoint(model, strategy, row.exchange)

    def last_transcript(self, job_id: str) -> bytes:
        """Return the transcript hash of the newest version; zeros before the first round."""
        query = (
            select(VERSIONS.c.transcript_hash)
            .where(VERSIONS.c.job_id == job_id)
            .order_by(VERSIONS.c.version.desc())
            .limit(1)
        )
        with self._store.transaction() as connection:
            return bytes(connection.execute(query).scalar_one())

    def recent_metric_sums(self, job_id: str, rounds: int) -> list[Sequence[float]]:
        """Return the noised metric sums of the last rounds, oldest first."""
        entries = self._store.read_journal(job_id, ROUND_COMMITTED, rounds)
        return [json.loads(entry.payload)["metric_sums"] for entry in entries]

    def history(self, job_id: str) -> list[RoundRecord]:
        """Return the finished rounds, oldest first, thinned to at most ``MAX_HISTORY``."""
        query = (
            select(JOURNAL.c.round, JOURNAL.c.attempt, JOURNAL.c.payload)
            .where(JOURNAL.c.job_id == job_id, JOURNAL.c.kind == ROUND_COMMITTED)
            .order_by(JOURNAL.c.seq)
        )
        with self._store.transaction() as connection:
            total = connection.execute(
                select(func.count()).where(
                    JOURNAL.c.job_id == job_id, JOURNAL.c.kind == ROUND_COMMITTED
                )
            ).scalar_one()
            stride = -(-total // MAX_HISTORY) or 1
            kept = [
                row
                for number, row in enumerate(connection.execute(query))
                if number % stride == 0 or number == total - 1
            ]
        return [_round_record(row.round, row.attempt, bytes(row.payload)) for row in kept]

    def _doom_previous(self, connection: Connection, job_id: str, keep: set[bytes]) -> None:
        """Let the files of the version before go with this transaction."""
        query = (
            select(VERSIONS.c.sha256, CHECKPOINTS.c.strategy_sha256)
            .join(CHECKPOINTS, VERSIONS.c.job_id == CHECKPOINTS.c.job_id)
            .where(VERSIONS.c.job_id == job_id, VERSIONS.c.version == CHECKPOINTS.c.version)
        )
        for digest in connection.execute(query).one():
            if bytes(digest) not in keep:
                self._store.doom_blob(job_id, bytes(digest))


def _version_row(job_id: str, model: ModelVersion, transcript_hash: bytes) -> dict[str, object]:
    return {
        "job_id": job_id,
        "version": model.version,
        "sha256": model.sha256,
        "chain_head": model.chain_head,
        "transcript_hash": transcript_hash,
        "broadcast": model.broadcast.raw,
    }


def _committed_facts(done: CommittedRound) -> bytes:
    facts: dict[str, object] = {
        "purpose": done.purpose,
        "version": done.checkpoint.model.version,
        "survivors": done.survivors,
        "transcript_hash": done.transcript_hash.hex(),
        "metric_sums": done.metric_sums,
        "metrics": dict(done.metrics),
        "elapsed_s": round(done.elapsed_s, 3),
        "wrap_rate": done.wrap_rate,
    }
    if len(done.groups) > 1:
        facts["groups"] = dict(done.groups)
    return _json(facts)


def _round_record(number: int, attempt: int, payload: bytes) -> RoundRecord:
    facts = json.loads(payload)
    return RoundRecord(
        number,
        attempt,
        len(facts["survivors"]),
        facts["elapsed_s"],
        facts["metrics"],
        groups=len(facts.get("groups", ())),
        wrap_rate=facts["wrap_rate"],
    )


def _json(values: dict[str, object]) -> bytes:
    return json.dumps(values, separators=(",", ":")).encode()
