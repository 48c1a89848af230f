"""The operator's listener: operator certificates only, every call checked anew.

Requests are bounded by ``tidegate.convert`` like a site's; refusals carry their reason's word in
the trailing metadata. The commands themselves are the coordinator's.
"""

import hashlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import wraps
from importlib.metadata import version
from typing import Any, TypeVar

from aggregator.coordinator import Coordinator
from aggregator.export import tier_of
from aggregator.grpc_calls import AbortableContext, peer_certificate, refuse
from aggregator.jobs import Job
from aggregator.log import LOGGER
from aggregator.person import state_person_epsilon
from aggregator.registry import EnrolledSite
from privacy.errors import PeerError, Reason, UsageError
from tidegate import convert, pki
from tidegate.jobfile import NoPrivacy
from tidegate.requests import JobStatus, SiteProgress, SiteRecord, SubmitHeader, TokenGrant
from tidegate.v1 import operator_pb2 as pb

_CHUNK_BYTES = 1 << 20
_Answer = TypeVar("_Answer")
_Call = Callable[[Any, Any, AbortableContext], Awaitable[_Answer]]


def _for_operators(call: _Call[_Answer]) -> _Call[_Answer]:
    """Let operators in only, and turn our errors into gRPC statuses."""

    @wraps(call)
    async def checked(
        service: "OperatorService", request: object, context: AbortableContext
    ) -> _Answer:
        try:
            check_operator(context)
            return await call(service, request, context)
        except (PeerError, UsageError) as error:
            await _refuse(context, error)
            raise

    return checked


def check_operator(context: AbortableContext) -> str:
    """Return the operator's name.

    Raises:
        PeerError: UNAUTHENTICATED, the certificate is not an operator's.
    """
    role, name = pki.role_of(peer_certificate(context))
    if role != "operator":
        raise PeerError(
            Reason.UNAUTHENTICATED, f"{role} {name} called; this listener takes operators only"
        )
    return name


class OperatorService:
    """``OperatorService``, as ``add_OperatorServiceServicer_to_server`` takes it."""

    def __init__(self, coordinator: Coordinator, enrolment: str, sites: str) -> None:
        """Take the coordinator, and the addresses that tokens are to name."""
        self._coordinator = coordinator
        self._registry = coordinator.registry
        self._enrolment = enrolment
        self._sites = sites

    @_for_operators
    async def GetStatus(
        self, _request: pb.GetStatusRequest, _context: AbortableContext
    ) -> pb.GetStatusResponse:
        """Say what runs here."""
        sealed = self._registry.sealed
        return pb.GetStatusResponse(
            version=version("tidegate"),
            device=str(self._coordinator.device),
            consortium_id=self._coordinator.config.consortium_id,
            manifest_hash=sealed.manifest_hash if sealed else b"",
            sites_connected=len(tuple(self._coordinator.sessions.live())),
        )

    @_for_operators
    async def CreateToken(
        self, request: pb.CreateTokenRequest, _context: AbortableContext
    ) -> pb.CreateTokenResponse:
        """Make a one-time enrolment token."""
        wanted = convert.token_request_from_wire(request)
        secret, expires_at_s = self._registry.create_token(
            wanted.site_id, wanted.valid_s, time.time()
        )
        LOGGER.info("token made for site %s", wanted.site_id)
        grant = TokenGrant(
            secret=secret,
            expires_at_s=expires_at_s,
            enrolment_address=self._enrolment,
            site_address=self._sites,
            ca_pem=self._registry.ca_pem,
        )
        return convert.token_grant_to_wire(grant)

    @_for_operators
    async def ListSites(
        self, _request: pb.ListSitesRequest, _context: AbortableContext
    ) -> pb.ListSitesResponse:
        """List enrolled and invited sites."""
        sites = [convert.site_record_to_wire(self._site(site)) for site in self._registry.sites()]
        sites += [
            pb.Site(site_id=name, state="invited") for name in self._registry.invited(time.time())
        ]
        return pb.ListSitesResponse(sites=sites)

    @_for_operators
    async def RevokeSite(
        self, request: pb.RevokeSiteRequest, _context: AbortableContext
    ) -> pb.RevokeSiteResponse:
        """Cut a site off."""
        revocation = convert.revocation_from_wire(request)
        self._coordinator.revoke(revocation.site_id, revocation.why)
        return pb.RevokeSiteResponse()

    @_for_operators
    async def PutManifest(
        self, request: pb.PutManifestRequest, _context: AbortableContext
    ) -> pb.PutManifestResponse:
        """Take the sealed manifest."""
        sealed = convert.sealed_manifest_from_wire(request)
        kept = self._coordinator.put_manifest(sealed.manifest, sealed.signature)
        return pb.PutManifestResponse(manifest_hash=kept.manifest_hash)

    @_for_operators
    async def SubmitJob(
        self, requests: AsyncIterator[pb.SubmitJobRequest], _context: AbortableContext
    ) -> pb.SubmitJobResponse:
        """Take a job: header, then app bundle and initial model."""
        limits = self._registry.wire_limits
        header: SubmitHeader | None = None
        body = bytearray()
        async for request in requests:
            if header is None:
                header = convert.submit_header_from_wire(request, limits)
                self._check_sizes(header)
                continue
            body += convert.submit_data_from_wire(request, limits)
            if len(body) > header.app_size + header.model_size:
                raise PeerError(Reason.TOO_LARGE, "more bytes than the header states")
        if header is None:
            raise PeerError(Reason.MALFORMED, "a submission without a header")
        app, model = bytes(body[: header.app_size]), bytes(body[header.app_size :])
        _check_digest("app bundle", app, header.app_size, header.app_sha256)
        _check_digest("initial model", model, header.model_size, header.model_sha256)
        if header.dry_run:
            planned = await self._coordinator.forecast(header, app, model)
            return pb.SubmitJobResponse(encoding=planned.encoding)
        job = await self._coordinator.submit(header, app, model)
        return pb.SubmitJobResponse(job_id=job.job_id)

    @_for_operators
    async def ListJobs(
        self, _request: pb.ListJobsRequest, _context: AbortableContext
    ) -> pb.ListJobsResponse:
        """List all jobs."""
        return pb.ListJobsResponse(jobs=[self._job(job) for job in self._coordinator.jobs()])

    @_for_operators
    async def GetJob(
        self, request: pb.GetJobRequest, _context: AbortableContext
    ) -> pb.GetJobResponse:
        """Show one job."""
        job = self._coordinator.job(convert.job_id_from_wire(request))
        return pb.GetJobResponse(job=self._job(job), job_toml=job.job_toml)

    @_for_operators
    async def GetHistory(
        self, request: pb.GetHistoryRequest, _context: AbortableContext
    ) -> pb.GetHistoryResponse:
        """Show how a job went, round by round."""
        history = self._coordinator.history(convert.job_id_from_wire(request))
        return convert.job_history_to_wire(history)

    async def WatchJob(
        self, request: pb.WatchJobRequest, context: AbortableContext
    ) -> AsyncIterator[pb.WatchJobResponse]:
        """Push a job's progress until it ends."""
        try:
            check_operator(context)
            job_id = convert.job_id_from_wire(request)
            async for job in self._coordinator.watch(job_id):
                yield pb.WatchJobResponse(job=self._job(job))
        except (PeerError, UsageError) as error:
            await _refuse(context, error)

    @_for_operators
    async def StopJob(
        self, request: pb.StopJobRequest, _context: AbortableContext
    ) -> pb.StopJobResponse:
        """End a job."""
        stop = convert.stop_request_from_wire(request)
        self._coordinator.stop_job(stop.job_id, stop.why)
        return pb.StopJobResponse()

    async def ExportModel(
        self, request: pb.ExportModelRequest, context: AbortableContext
    ) -> AsyncIterator[pb.ExportModelResponse]:
        """Stream a job's newest model."""
        try:
            check_operator(context)
            data = self._coordinator.export(convert.job_id_from_wire(request))
        except (PeerError, UsageError) as error:
            await _refuse(context, error)
            return
        view = memoryview(data)
        for offset in range(0, len(data), _CHUNK_BYTES):
            part = bytes(view[offset : offset + _CHUNK_BYTES])
            yield pb.ExportModelResponse(size=len(data), data=part)

    def _check_sizes(self, header: SubmitHeader) -> None:
        limits = self._coordinator.config.limits
        if header.app_size > limits.max_app_bytes:
            raise PeerError(Reason.TOO_LARGE, f"the app may have {limits.max_app_bytes} bytes")
        if header.model_size > limits.max_model_bytes:
            raise PeerError(Reason.TOO_LARGE, f"a model may have {limits.max_model_bytes} bytes")

    def _site(self, site: EnrolledSite) -> SiteRecord:
        sessions = self._coordinator.sessions
        session = sessions.get(site.fingerprint)
        state = "revoked" if site.revoked else "connected" if session else "enrolled"
        return SiteRecord(
            site_id=site.site_id,
            node_fingerprint=site.node_fingerprint,
            signing_spki=site.signing_spki,
            state=state,
            device=session.hello.device if session else "",
            last_seen_s=int(sessions.last_seen_s.get(site.site_id, 0)),
            bundles=self._coordinator.bundles(site),
        )

    def _job(self, job: Job) -> pb.Job:
        progress, elapsed_s = self._coordinator.progress(job)
        privacy = job.file.privacy
        sealed = self._registry.sealed
        manifest = None if sealed is None else sealed.manifest
        person = state_person_epsilon(job, manifest, progress.attempts_repeated)
        status = JobStatus(
            job_id=job.job_id,
            name=job.file.name,
            state=str(job.state),
            detail=job.detail or progress.stalled,
            round=progress.round,
            rounds=job.file.rounds,
            attempts_aborted=progress.attempts_aborted,
            submitted_at_s=int(job.submitted_at_s),
            metrics=progress.metrics,
            sites=tuple(
                SiteProgress(site_id=name, **vars(tally)) for name, tally in progress.sites.items()
            ),
            elapsed_s=elapsed_s,
            rounds_per_s=progress.rounds_per_s(),
            delta_dp=0.0 if isinstance(privacy, NoPrivacy) else privacy.delta_dp,
            unit=privacy.unit.kind,
            mode=privacy.mode,
            log=tuple(progress.log),
            tier=tier_of(job),
            person_sites=person.sites,
            epsilon_one_site=person.one_site,
            epsilon_person=person.all_sites,
            groups=0 if job.file.robust is None else job.file.robust.groups,
            wrap_rate=progress.wrap_rate,
        )
        return convert.job_status_to_wire(status)


def _check_digest(what: str, data: bytes, size: int, sha256: bytes) -> None:
    if len(data) != size or hashlib.sha256(data).digest() != sha256:
        raise PeerError(Reason.WRONG_DIGEST, f"the {what} is not what the header states")


async def _refuse(context: AbortableContext, error: PeerError | UsageError) -> None:
    LOGGER.info("operator call refused: %s", error)
    await refuse(context, error)
