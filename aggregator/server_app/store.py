"""Keep what a job's own ServerApp asked for and heard, so that its main can be re-run exactly.

A call is durable before any site hears of it, its answer before main does. After a crash main runs
anew from its start and is given the same answers to the same calls. The answers of a job take four
bytes a parameter and training round (``[limits] max_replay_bytes`` bounds them at submission) and
go when the job is over.
"""

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray
from sqlalchemy import Connection, delete, insert, select, update

from aggregator.secure_rounds import Instruction
from aggregator.store import Store
from aggregator.tables import CALLS
from privacy.secagg.encoding import hash_of

Vector = NDArray[np.float32]


@dataclass(frozen=True)
class Answer:
    """What main heard.

    Attributes:
        node_ids: The nodes that it was told of before the call.
        metrics: Of the reply.
        mean_D: The reply's model, shape (D,); None after an evaluation.
    """

    node_ids: tuple[int, ...]
    metrics: Mapping[str, float]
    mean_D: Vector | None = field(repr=False)


@dataclass(frozen=True)
class StoredCall:
    """One call of main's.

    Attributes:
        request: Digest of what it asked for.
        answer: None while the exchange was not finished.
    """

    request: bytes
    answer: Answer | None


def request_digest(instruction: Instruction, sent_D: Vector) -> bytes:
    """Name what main asks for; whom it asks is not part of it, as sites come and go."""
    model = hashlib.sha256(sent_D.tobytes()).digest()
    return hash_of("server-app-call", instruction.purpose, model, instruction.config)


class CallStore:
    """The calls of all jobs that run by their own ServerApp."""

    def __init__(self, store: Store) -> None:
        """Use a store."""
        self._store = store

    def load(self, job_id: str, exchange: int) -> StoredCall | None:
        """Return a call, None where main has not made it yet.

        Raises:
            UsageError: The stored bytes are damaged.
        """
        query = select(CALLS).where(CALLS.c.job_id == job_id, CALLS.c.exchange == exchange)
        with self._store.transaction() as connection:
            row = connection.execute(query).first()
        if row is None:
            return None
        if row.answer is None:
            return StoredCall(bytes(row.request_sha256), None)
        heard = json.loads(row.answer)
        mean_D = None
        if row.reply_sha256:
            data = self._store.get_blob(_owner(job_id), row.reply, bytes(row.reply_sha256))
            mean_D = np.frombuffer(data, "<f4")
        answer = Answer(tuple(heard["node_ids"]), heard["metrics"], mean_D)
        return StoredCall(bytes(row.request_sha256), answer)

    def begin(self, job_id: str, exchange: int, request: bytes) -> Callable[[Connection], None]:
        """Give what makes a call durable within a transaction."""
        row = {
            "job_id": job_id,
            "exchange": exchange,
            "request_sha256": request,
            "answer": None,
            "reply": None,
            "reply_sha256": b"",
        }

        def note(connection: Connection) -> None:
            connection.execute(insert(CALLS), row)

        return note

    def finish(self, job_id: str, exchange: int, answer: Answer) -> Callable[[Connection], None]:
        """Give what makes a call's answer durable within a transaction."""
        heard = {"node_ids": answer.node_ids, "metrics": dict(answer.metrics)}
        row: dict[str, object] = {"answer": json.dumps(heard, separators=(",", ":")).encode()}
        if answer.mean_D is not None:
            data = np.ascontiguousarray(answer.mean_D, dtype="<f4").tobytes()
            row["reply"] = self._store.put_blob(_owner(job_id), data)
            row["reply_sha256"] = hashlib.sha256(data).digest()
        this = (CALLS.c.job_id == job_id) & (CALLS.c.exchange == exchange)

        def note(connection: Connection) -> None:
            connection.execute(update(CALLS).where(this), row)

        return note

    def forget(self, job_id: str) -> None:
        """Drop the calls of a job that is over."""
        this = CALLS.c.job_id == job_id
        with self._store.transaction() as connection:
            rows = connection.execute(select(CALLS.c.reply, CALLS.c.reply_sha256).where(this))
            for row in rows.all():
                if row.reply is None and row.reply_sha256:
                    self._store.doom_blob(_owner(job_id), bytes(row.reply_sha256))
            connection.execute(delete(CALLS).where(this))

    def forget_all_but(self, running: Iterable[str]) -> None:
        """Drop what jobs left that ended while a call was under way."""
        with self._store.transaction() as connection:
            known = set(connection.execute(select(CALLS.c.job_id).distinct()).scalars())
        for job_id in known.difference(running):
            self.forget(job_id)


def _owner(job_id: str) -> str:
    """Keep replies apart from model versions, which may have the same bytes and go earlier."""
    return f"{job_id}-reply"
