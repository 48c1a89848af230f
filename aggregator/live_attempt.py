"""One attempt's side of the loop: made durable, its uploads folded, given up or handed on.

``privacy.secagg.server.ServerAttempt`` decides; here is what its commands do.
"""

from concurrent.futures import Executor, Future
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import torch

from aggregator.broadcast import ModelVersion
from aggregator.bundle_stock import BundleStock
from aggregator.fold import Fold
from aggregator.jobs import Job, JobStore
from aggregator.registry import SealedManifest
from aggregator.sessions import Sessions
from aggregator.shelf import ContentShelf
from aggregator.spool import Spool
from privacy.errors import UsageError
from privacy.planning import encoding_for_version
from privacy.secagg.graph import GraphRule
from privacy.secagg.keys import suite_named
from privacy.secagg.messages import (
    AttemptContext,
    BaseVersion,
    CohortPlan,
    Fingerprint,
    MaskTerm,
)
from privacy.secagg.server import ServerAttempt, ServerConfig, StepTimeouts
from tidegate.messages import is_evaluation

_FOLD_INLINE_BYTES = 1 << 18
"""Smaller uploads are folded on the loop: a thread would cost more than the work."""


@dataclass(frozen=True)
class Surroundings:
    """What a running job uses of the process."""

    sessions: Sessions
    stock: BundleStock
    spool: Spool
    shelf: ContentShelf
    jobs: JobStore
    sealed: SealedManifest
    timeouts: StepTimeouts
    device: torch.device
    fold_thread: Executor
    kept_folder: Path | None
    graph_rule: GraphRule

    @cached_property
    def members(self) -> dict[Fingerprint, str]:
        """The sealed manifest's site ids by fingerprint."""
        return {member.fingerprint(): member.site_id for member in self.sealed.manifest.members}

    @cached_property
    def pinned(self) -> dict[Fingerprint, bytes]:
        """The pinned signing keys, SPKI (DER) by fingerprint."""
        return self.sealed.manifest.pinned()


@dataclass(eq=False)
class LiveAttempt:
    """The running attempt's side of the loop.

    Attributes:
        number: From 1, per round.
        ctx: Names it.
        members: Site ids by fingerprint, sorted by it; the index of SA-1 is the rank from 1.
        fold: Its accumulator.
        folding: Folds that a thread is still at.
        terms: What takes the masks off, once known.
        surplus_seeds: Of the noise that goes with them, by survivor and level; see ``UnmaskSum``.
    """

    number: int
    ctx: bytes
    members: dict[Fingerprint, str]
    fold: Fold
    folding: list["Future[None]"] = field(default_factory=list)
    terms: tuple[MaskTerm, ...] = field(default=(), repr=False)
    surplus_seeds: tuple[tuple[bytes, ...], ...] = field(default=(), repr=False)

    def indices(self, sites: tuple[Fingerprint, ...]) -> tuple[int, ...]:
        """Return the indices of sites in the roster."""
        return tuple(i for i, site in enumerate(self.members, 1) if site in sites)

    def add(self, sender: Fingerprint, around: Surroundings) -> None:
        """Fold a site's upload, here or in the thread for large ones."""
        upload = around.spool.whole(self.ctx, self.members[sender])
        if upload is None:
            raise RuntimeError("an upload to fold is not whole")
        if upload.size <= _FOLD_INLINE_BYTES:
            self.fold.add(upload)
        else:
            self.folding.append(around.fold_thread.submit(self.fold.add, upload))

    def give_up(self, spool: Spool) -> None:
        """Drop everything that arrived."""
        for folding in self.folding:
            folding.cancel()
        spool.discard(self.ctx)


@dataclass(frozen=True)
class AttemptPlace:
    """Which attempt of a job it is.

    Attributes:
        round: Its exchange's number.
        attempt: Its own from 1; no two attempts of a round share one, groups or not (ADR 14).
        purpose: What the exchange is for.
        group: From 1; 0 where the cohort is not in groups.
    """

    round: int
    attempt: int
    purpose: str
    group: int = 0


def open_attempt(
    around: Surroundings,
    job: Job,
    model: ModelVersion,
    where: AttemptPlace,
    cohort: tuple[Fingerprint, ...],
    now_s: float,
) -> tuple[LiveAttempt, ServerAttempt]:
    """Draw key bundles, make number and cohort durable, and only then give the attempt.

    Args:
        around: See ``Surroundings``.
        job: The job.
        model: The version that the cohort trained from.
        where: See ``AttemptPlace``.
        cohort: Sorted fingerprints.
        now_s: Unix seconds.

    Raises:
        UsageError: This cohort breaks a rule that the sites would refuse.
    """
    manifest = around.sealed.manifest
    bundles = [around.stock.take(site, now_s) for site in cohort]
    drawn = tuple(signed for signed in bundles if signed is not None)
    if len(drawn) != len(cohort):
        raise UsageError("a site was counted ready without a key bundle")
    announced = b"" if is_evaluation(where.purpose) else model.announcement
    plan = encoding_for_version(job.plan_for(where.purpose), model.version, announced)
    context = AttemptContext(
        suite=manifest.suite,
        consortium_id=manifest.consortium_id,
        manifest_hash=around.sealed.manifest_hash,
        job_id=job.job_id,
        roster_epoch=manifest.roster_epoch,
        round=where.round,
        attempt=where.attempt,
    )
    frozen = CohortPlan(
        encoding=plan.to_bytes(),
        ring_bits=plan.bits,
        length=plan.length,
        colluders=manifest.colluders,
        min_survivors=manifest.min_survivors,
        dropout_percent=manifest.dropout_percent,
        chain_head=model.chain_head,
        bases=tuple(BaseVersion(signed.bundle.site, model.version) for signed in drawn),
    )
    config = ServerConfig(
        suite=suite_named(manifest.suite),
        context=context,
        bundles=drawn,
        plan=frozen,
        pinned=around.pinned,
        timeouts=around.timeouts,
        surplus_levels=plan.surplus_levels,
        graph_rule=around.graph_rule,
    )
    machine = ServerAttempt(config)
    serials = {around.members[signed.bundle.site]: signed.bundle.serial for signed in drawn}
    place = (where.round, where.attempt)
    around.jobs.open_attempt(job.job_id, place, serials, now_s, where.group)
    fold = Fold(plan.length, plan.bits, around.device)
    members = {signed.bundle.site: around.members[signed.bundle.site] for signed in drawn}
    attempt = LiveAttempt(where.attempt, context.digest(), members, fold)
    around.spool.expect(attempt.ctx, frozenset(serials), fold.packed_bytes)
    return attempt, machine
