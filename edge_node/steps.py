"""Make the steps of attempts durable: slot, burnt serial, charge and mirror, before bytes leave."""

import sqlite3
import time

from edge_node import log
from edge_node.bench import Bench
from edge_node.budget import Ledgers, PreparedCharge
from edge_node.bundles import pack_secrets
from edge_node.commands import CommitStep, StepCommitted, StepRefused, UpdateKey
from edge_node.rounds.contract import JobAtSite
from edge_node.store import Store
from edge_node.store_schema import StepRecord, StoredAttempt
from edge_node.upload import update_to_bytes
from privacy.accounting.chain import Occasion
from privacy.errors import PeerError, Reason
from privacy.noise import NoisedUpdate
from privacy.secagg.commands import Step
from privacy.secagg.encoding import hash_of


class StepWriter:
    """The shell's answer to `CommitStep`."""

    def __init__(self, store: Store, ledgers: Ledgers, bench: Bench) -> None:
        """Take where steps, charges and updates lie."""
        self._store = store
        self._ledgers = ledgers
        self._bench = bench

    def commit(self, command: CommitStep) -> StepCommitted | StepRefused:
        """Write one step, all or nothing.

        At step 2 the ledger is charged in the same transaction, and the update is used up: it
        belongs to this attempt from then on (privacy.md, "Ledger"). In record-local neither is so:
        the update was charged before it was made, and is private whatever becomes of it.
        """
        step = command.commit.step
        try:
            self._write(command)
        except PeerError as error:
            return StepRefused(command.ctx, step, error.reason, str(error.args[0]))
        except sqlite3.Error as error:
            log.warning("store cannot be written", why=error)
            message = "this site cannot write to its store"
            return StepRefused(command.ctx, step, Reason.INTERNAL, message)
        return StepCommitted(command.ctx, step)

    def charge_ahead(self, job: JobAtSite, key: UpdateKey) -> None:
        """Charge an update of mode record-local, durably, before its first local step is run.

        Never refunded: steps that ran have changed what the site keeps, even if the round drops. A
        crash after this loses the update, and the next one is charged anew.

        Raises:
            PeerError: BUDGET_EXHAUSTED: nothing was charged; INTERNAL: the store cannot be written,
                so no step may run.
        """
        charge = self._prepare(job, key, 0, local_steps_digest(job.job_id, key))
        try:
            self._store.charge(charge.row)
        except sqlite3.Error as error:
            log.warning("store cannot be written", why=error)
            raise PeerError(Reason.INTERNAL, "this site cannot write to its store") from error
        self._ledgers.accept(charge)

    def _write(self, command: CommitStep) -> None:
        commit = command.commit
        begin: StoredAttempt | None = None
        update: NoisedUpdate | None = None
        charge: PreparedCharge | None = None
        if commit.begins:
            begin = self._begin(command)
        if commit.step is Step.MASKED_UPDATE:
            update = self._update(command)
            self._check_paid(command)
            charge = self._charge(command) if commit.charge else None
        self._store.commit_step(
            StepRecord(
                ctx=command.ctx,
                step=int(commit.step),
                input_digest=commit.input_digest,
                slot=commit.slot,
                begin=begin,
                charge=None if charge is None else charge.row,
                update=None if update is None else update_to_bytes(update),
                sum_of=(command.job_id, command.survivors) if command.survivors else None,
                serves=command.serves,
            )
        )
        if charge is not None:
            self._ledgers.accept(charge)
        if update is not None:
            if not self._bench.jobs[command.job_id].job.charged_ahead:
                del self._bench.ready[command.job_id]
            self._bench.charged[command.ctx] = update
            self._bench.held.pop(command.job_id, None)
        if command.serves:
            log.info("earlier charge serves attempt", ctx=command.ctx, sent_before=command.serves)

    def _begin(self, command: CommitStep) -> StoredAttempt:
        serial, secrets = self._bench.joining[command.ctx]
        return StoredAttempt(
            ctx=command.ctx,
            job_id=command.job_id,
            round=command.key.round,
            attempt=command.attempt,
            facts=command.facts,
            secrets=pack_secrets(secrets),
            serial=serial,
        )

    def _update(self, command: CommitStep) -> NoisedUpdate:
        key, update = self._bench.ready.get(command.job_id, (None, None))
        if update is None or key != command.key:
            raise PeerError(
                Reason.STOPPED, "the update of this attempt was lost in a restart; nothing charged"
            )
        # After a restart a proof may lay an update ready while an attempt waits that was begun for
        # it before: that one knows of no permit, and a proved update is not charged again.
        _, secrets = self._bench.joining.get(command.ctx, (0, None))
        if secrets is None:
            raise PeerError(
                Reason.STOPPED, "this attempt was begun before a restart; nothing charged"
            )
        if update.surplus_seeds != secrets.surplus_seeds:
            raise PeerError(
                Reason.STOPPED, "the update was made anew since the roster came; nothing charged"
            )
        return update

    def _check_paid(self, command: CommitStep) -> None:
        """Let nothing leave that is neither charged now, nor held, nor charged ahead.

        Raises:
            PeerError: INTERNAL: a fault of our own; nothing is sent.
        """
        ctx, _ = self._bench.held.get(command.job_id, (b"", None))
        ahead = self._bench.jobs[command.job_id].job.charged_ahead
        if not (command.commit.charge or ahead or (command.serves and ctx == command.serves)):
            raise PeerError(Reason.INTERNAL, "no charge serves this update: nothing was sent")

    def _charge(self, command: CommitStep) -> PreparedCharge:
        job = self._bench.jobs[command.job_id].job
        return self._prepare(job, command.key, command.attempt, command.ctx.hex())

    def _prepare(self, job: JobAtSite, key: UpdateKey, attempt: int, digest: str) -> PreparedCharge:
        occasion = Occasion(
            job_id=job.job_id,
            round_number=key.round,
            attempt=attempt,
            context_digest=digest,
            tier=job.tier,
        )
        _, event = job.terms_for(key.purpose)
        return self._ledgers.prepare(job.dataset.dataset_id, event, occasion, round(time.time(), 3))


def local_steps_digest(job_id: str, key: UpdateKey) -> str:
    """Name what a charge ahead is for, where there is no attempt yet: hex, for the ledger."""
    return hash_of("local-steps", job_id, key.round, key.version, key.purpose).hex()
