"""Look at a job offer and, if the site agrees, get everything ready to work on it.

In this order, so that nothing of the job runs before it is allowed: read the job and derive its
encoding anew, ask the policy, open the data set and the budget, fetch the app by its digest, start
the confined trainer. Any failure refuses the job; why in detail stays in the site's own log where
it could hold data.
"""

import asyncio
import shutil
import time
import tomllib
from collections.abc import Awaitable, Callable
from pathlib import Path

from edge_node.acceptance import AskedJob, AuditOf, check_audit, check_records, judge_job
from edge_node.budget import Ledgers, charge_tier
from edge_node.commands import AcceptedJob
from edge_node.config import SiteConfig
from edge_node.data import Dataset
from edge_node.data.dataset import rowless
from edge_node.data.fingerprints import remember
from edge_node.data.loading import load_dataset
from edge_node.log import info, warning
from edge_node.offer_reading import JobReading, read_offer
from edge_node.policy import Policy
from edge_node.rounds.choice import make_round
from edge_node.rounds.contract import JobAtSite, LocalRound
from edge_node.rounds.flower import FlowerSite
from edge_node.store_schema import StoredJob
from privacy.errors import PeerError, Reason, UsageError
from tidegate import appbundle
from tidegate.confine.sandbox import SandboxReport
from tidegate.jobfile import FlowerApp, JobFile
from tidegate.manifest import Manifest

Fetch = Callable[[bytes, int], Awaitable[bytes]]
"""Fetch content by SHA-256 and size."""

_STEP_TIMEOUT_S = 600.0


class OfferDesk:
    """Where offers are judged and jobs made ready."""

    def __init__(
        self,
        config: SiteConfig,
        policy: Policy,
        ledgers: Ledgers,
        flower: FlowerSite,
        audit_of: AuditOf,
    ) -> None:
        """Put together what offers are judged by.

        Args:
            config: The site's settings.
            policy: Its rules.
            ledgers: Its budgets.
            flower: What Flower apps are told.
            audit_of: Gives the newest leakage audit of what a job sends.
        """
        self._audit_of = audit_of
        self._flower = flower
        self._config = config
        self._policy = policy
        self._ledgers = ledgers
        self._datasets: dict[str, Dataset] = {}
        self._opening = asyncio.Lock()

    async def accept(
        self, offer: StoredJob, manifest: Manifest, fetch: Fetch, *, again: bool = False
    ) -> tuple[AcceptedJob, LocalRound]:
        """Judge an offer and make the job ready.

        Args:
            offer: As received.
            manifest: As pinned.
            fetch: Brings the app bundle.
            again: The job was accepted before a restart: the trainer is left to start beside the
                session, so that the site is back at once.

        Raises:
            PeerError: The job is refused; the reason and the sentence may go to the aggregator.
        """
        reading = read_offer(offer, manifest)
        judge_job(self._policy, self._config, reading, offer.app_sha256, sandboxed=True)
        dataset = await self._open_dataset(reading.job_file)
        await asyncio.to_thread(check_records, self._policy, dataset, reading)
        asked = AskedJob(offer.job_id, offer.app_sha256, reading, manifest)
        check_audit(self._policy, asked, dataset, self._audit_of, time.time())
        self._ledgers.ensure(self._policy, dataset.dataset_id, reading.whole)
        self._ledgers.look_ahead(dataset.dataset_id, reading.event)
        folder = await self._unpack(offer, reading.job_file, fetch)
        _check_named(folder, reading.job_file)
        tier = charge_tier(reading.job_file, offer.app_sha256)
        job = JobAtSite(
            offer.job_id,
            reading.job_file,
            reading.plan,
            reading.spec,
            reading.event,
            tier,
            dataset,
            reading.evaluation_terms,
        )
        local = make_round(job, self._config, folder, self._flower)
        if not again:
            await self._start(local, offer, reading)
        timeout_s = max(_STEP_TIMEOUT_S, 2 * reading.job_file.round.deadline_s)
        return AcceptedJob(
            offer.job_id,
            reading.plan,
            timeout_s,
            evaluation=reading.evaluation,
            exchanges=reading.terms.exchanges,
        ), local

    async def _start(self, local: LocalRound, offer: StoredJob, reading: JobReading) -> None:
        try:
            report = await local.start()
            if report is None:  # nothing of the job's own code runs
                return
            sandboxed = not report.missing
            judge_job(self._policy, self._config, reading, offer.app_sha256, sandboxed=sandboxed)
        except BaseException:
            await local.stop()
            raise
        _log_protections(report)

    def clear(self) -> None:
        """Remove the unpacked apps of an earlier run."""
        shutil.rmtree(self._config.apps, ignore_errors=True)

    def forget(self, job_id: str) -> None:
        """Remove a job's unpacked app, and what a Flower app remembers."""
        shutil.rmtree(self._config.apps / job_id, ignore_errors=True)
        self._flower.states.forget(job_id)

    async def _open_dataset(self, job_file: JobFile) -> Dataset:
        name = job_file.dataset
        if isinstance(job_file.work, FlowerApp):  # it loads its own data, where it is shown any
            return rowless(name, self._config.datasets[name].id)
        async with self._opening:
            if name not in self._datasets:
                try:
                    self._datasets[name] = await asyncio.to_thread(_load, self._config, name)
                except UsageError as error:
                    warning("data set cannot be opened", dataset=name, why=error)
                    raise PeerError(
                        Reason.POLICY, f"this site cannot open its data set {name!r} now"
                    ) from error
            return self._datasets[name]

    async def _unpack(self, offer: StoredJob, job_file: JobFile, fetch: Fetch) -> Path:
        """Put the app, if the job runs one, into a folder outside the site's own."""
        folder = self._config.apps / offer.job_id
        if not job_file.runs_app:
            if offer.app_sha256 != appbundle.digest(appbundle.EMPTY):
                raise PeerError(Reason.MALFORMED, "such a job runs no app, and brings one")
            return folder
        bundle = await fetch(offer.app_sha256, offer.app_size)
        shutil.rmtree(folder, ignore_errors=True)
        self._config.apps.mkdir(mode=0o700, parents=True, exist_ok=True)
        appbundle.unpack(bundle, folder)
        return folder


def _check_named(folder: Path, job_file: JobFile) -> None:
    """Hold an offered job to the architecture that the app's own job.toml names.

    The job file comes by way of the aggregator, but the app's digest is one that the site reviewed.

    Raises:
        PeerError: WRONG_DIGEST: the offered job names another one, or none; MALFORMED: the app's
            job.toml cannot be read.
    """
    own = folder / "job.toml"
    if job_file.task is None or not own.is_file():
        return
    try:
        task = tomllib.loads(own.read_text("utf-8")).get("task", {})
    except ValueError as error:
        raise PeerError(Reason.MALFORMED, "the app's own job.toml cannot be read") from error
    named = task.get("architecture", "") if isinstance(task, dict) else ""
    if named and named != job_file.task.architecture:
        message = "the app's own job.toml names another architecture than the offered job"
        raise PeerError(Reason.WRONG_DIGEST, message)


def _load(config: SiteConfig, name: str) -> Dataset:
    """Open a declared data set, and warn where its content is not what it was."""
    plug = config.datasets[name].plug
    dataset = load_dataset(name, plug, config.path.parent, config.folder)
    since = remember(config.folder, dataset, time.time())
    if since:
        warning(
            "data set changed",
            dataset=name,
            since=since,
            budget=f"goes on under dataset_id {dataset.dataset_id!r}",
        )
    return dataset


def _log_protections(report: SandboxReport) -> None:
    if report.missing:
        warning("trainer sandbox incomplete", missing=", ".join(report.missing))
    else:
        info("trainer sandbox in force")
