"""Look at a job offer and, if the site agrees, get everything ready to work on it.

In this order, so that nothing of the job runs before it is allowed: read the job and derive its
encoding anew, ask the policy, open the data set and the budget, fetch the app by its digest, start
the confined trainer. Any failure refuses the job; why in detail stays in the site's own log where
it could hold data.
"""

import asyncio
import shutil
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

from edge_node.budget import Ledgers, charge_tier, check_unit
from edge_node.commands import AcceptedJob
from edge_node.config import SiteConfig
from edge_node.data import Dataset
from edge_node.data.check import check_schema, check_users, job_schema
from edge_node.data.dataset import rowless
from edge_node.data.fingerprints import remember
from edge_node.data.loading import load_dataset
from edge_node.log import info, warning
from edge_node.policy import JobFacts, Policy, judge
from edge_node.rounds.choice import make_round
from edge_node.rounds.contract import EvaluationTerms, JobAtSite, LocalRound
from edge_node.rounds.flower import FlowerSite
from edge_node.store_schema import StoredJob
from privacy.errors import PeerError, Reason, UsageError
from privacy.pipeline import EncodingPlan
from privacy.planning import CohortRules, check_encoding, check_evaluation, step_event
from privacy.spec import VectorSpec
from tidegate import appbundle
from tidegate.confine.sandbox import SandboxReport
from tidegate.job_terms import privacy_terms, update_spec
from tidegate.jobfile import FlowerApp, JobFile, NoPrivacy, Statistics
from tidegate.manifest import Manifest

Fetch = Callable[[bytes, int], Awaitable[bytes]]
"""Fetch content by SHA-256 and size."""

_STEP_TIMEOUT_S = 600.0


@dataclass(frozen=True)
class _Reading:
    """An offer, read and checked on paper."""

    job_file: JobFile
    spec: VectorSpec
    plan: EncodingPlan
    epsilon: float
    rules: CohortRules
    evaluation: EncodingPlan | None


class OfferDesk:
    """Where offers are judged and jobs made ready."""

    def __init__(
        self, config: SiteConfig, policy: Policy, ledgers: Ledgers, flower: FlowerSite
    ) -> None:
        """Take the site's settings, its rules and its ledgers, and what Flower apps are told."""
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
        reading = _read(offer, manifest)
        self._judge(offer, reading, sandboxed=True)
        dataset = await self._open_dataset(reading.job_file)
        most = _most_records(reading)
        if most and len(dataset) > most:
            raise PeerError(Reason.POLICY, "the data set is larger than the job's max_records")
        await asyncio.to_thread(_check_dataset, dataset, reading.job_file)
        unit = reading.job_file.privacy.unit
        await asyncio.to_thread(check_unit, self._policy, dataset, unit)
        event = step_event(reading.plan, reading.rules)
        whole = step_event(reading.plan, reading.rules, reading.job_file.rounds)
        self._ledgers.ensure(self._policy, dataset.dataset_id, whole)
        self._ledgers.look_ahead(dataset.dataset_id, event)
        folder = await self._unpack(offer, reading.job_file, fetch)
        tier = charge_tier(reading.job_file, offer.app_sha256)
        job = JobAtSite(
            offer.job_id,
            reading.job_file,
            reading.plan,
            reading.spec,
            event,
            tier,
            dataset,
            _evaluation_terms(reading),
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
            exchanges=privacy_terms(reading.job_file).exchanges,
        ), local

    async def _start(self, local: LocalRound, offer: StoredJob, reading: _Reading) -> None:
        try:
            report = await local.start()
            if report is None:  # nothing of the job's own code runs
                return
            self._judge(offer, reading, sandboxed=not report.missing)
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

    def _judge(self, offer: StoredJob, reading: _Reading, *, sandboxed: bool) -> None:
        job_file = reading.job_file
        terms = privacy_terms(job_file)
        judge(
            self._policy,
            JobFacts(
                mode=job_file.privacy.mode,
                dataset=job_file.dataset,
                dataset_known=job_file.dataset in self._config.datasets,
                app_sha256=offer.app_sha256.hex(),
                epsilon=reading.epsilon,
                delta_dp=terms.delta_dp,
                noise_multiplier=reading.plan.noise_multiplier,
                sandboxed=sandboxed,
                runs_app=job_file.runs_app,
                is_statistics=isinstance(job_file.work, Statistics),
                declares_dp=job_file.declares_dp,
            ),
        )

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


def _read(offer: StoredJob, manifest: Manifest) -> _Reading:
    """Read an offer, every byte of which the aggregator chose.

    Raises:
        PeerError: It is not a job that this version can run, whatever is wrong with it.
    """
    try:
        return _derive(offer, manifest)
    except ArithmeticError as error:
        # Numbers may each be in range and their product not: a bad offer never stops the daemon.
        raise PeerError(Reason.MALFORMED, "the job's numbers are out of all proportion") from error


def _derive(offer: StoredJob, manifest: Manifest) -> _Reading:
    """Derive the plan anew from job and manifest; it must be the one offered, number by number."""
    job_file = JobFile.parse_received(offer.job_toml)
    spec = VectorSpec.from_bytes(offer.vector_spec)
    rules = CohortRules(manifest.colluders, manifest.min_survivors, len(manifest.members))
    plan = EncodingPlan.from_bytes(offer.encoding)
    terms = privacy_terms(job_file)
    epsilon = check_encoding(plan, terms, update_spec(job_file, spec), rules)
    evaluation = None
    if bool(offer.evaluation_encoding) != bool(terms.evaluation_length):
        raise PeerError(
            Reason.MALFORMED, "an offer has an evaluation encoding exactly where the job evaluates"
        )
    if offer.evaluation_encoding:
        evaluation = EncodingPlan.from_bytes(offer.evaluation_encoding)
        check_evaluation(evaluation, terms, rules, plan)
    lengths = (each.length for each in (plan, evaluation) if each is not None)
    if max(lengths) > manifest.limits.max_vector_length:
        raise PeerError(Reason.TOO_LARGE, "the vector is longer than the manifest allows")
    return _Reading(job_file, spec, plan, epsilon, rules, evaluation)


def _evaluation_terms(reading: _Reading) -> EvaluationTerms | None:
    if reading.evaluation is None:
        return None
    return EvaluationTerms(reading.evaluation, step_event(reading.evaluation, reading.rules))


def _most_records(reading: _Reading) -> int:
    """Give the job's public bound on this site's records; 0 where it states none."""
    privacy = reading.job_file.privacy
    return privacy.max_records if isinstance(privacy, NoPrivacy) else reading.plan.n_max


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


def _check_dataset(dataset: Dataset, job_file: JobFile) -> None:
    """Hold the data set against the job's columns and privacy unit."""
    if isinstance(job_file.work, FlowerApp):
        return
    check_schema(dataset, job_schema(job_file, dataset))
    unit = job_file.privacy.unit
    if unit.kind == "user":
        check_users(dataset, unit.column)


def _log_protections(report: SandboxReport) -> None:
    if report.missing:
        warning("trainer sandbox incomplete", missing=", ".join(report.missing))
    else:
        info("trainer sandbox in force")
