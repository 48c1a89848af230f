"""The operator's API: protobuf <-> ``tidegate.requests``, in both directions.

Operators are authenticated, yet their requests are bounded as any other: ids become file names and
log lines. What the aggregator answers ends on the operator's terminal and in a report, so it is
bounded too: no escape sequence, no NaN, no endless list.
"""

from collections.abc import Mapping
from typing import Any

from tidegate import appbundle, jobfile, manifest, tokens
from tidegate.convert import bounds
from tidegate.convert.bounds import DEFAULT_LIMITS, Limits, malformed
from tidegate.convert.secagg import MAX_PLAN_BYTES
from tidegate.convert.session import MAX_SPEC_BYTES
from tidegate.convert.transfer import MAX_PEM_BYTES, MAX_SPKI_BYTES
from tidegate.requests import (
    JobHistory,
    JobStatus,
    Revocation,
    RoundRecord,
    SealedManifest,
    SiteProgress,
    SiteRecord,
    StopRequest,
    SubmitHeader,
    TokenGrant,
    TokenRequest,
)
from tidegate.v1 import operator_pb2 as pb

_MAX_ADDRESS_CHARS = 264
_MAX_SECRET_CHARS = 128
_MAX_METRICS = 64
MAX_HISTORY = 1000
"""Most rounds of a job that a report is given: a curve needs no more points."""
_MAX_LOG_LINES = 10_000
_MAX_WORD_CHARS = 64
_MAX_NUMBER = 1e12
_FLOAT32_BYTES = 4


def job_id_from_wire(
    message: pb.GetJobRequest
    | pb.GetHistoryRequest
    | pb.WatchJobRequest
    | pb.ExportModelRequest
    | pb.SubmitJobResponse,
) -> str:
    """Take the job id of a message that holds nothing else of the peer's choice."""
    return bounds.slug(message.job_id, "job_id")


def stop_request_from_wire(message: pb.StopJobRequest) -> StopRequest:
    """Take a request to stop a job."""
    why = bounds.text(message.why, "stop_job.why")
    return StopRequest(bounds.slug(message.job_id, "stop_job.job_id"), why)


def token_request_from_wire(message: pb.CreateTokenRequest) -> TokenRequest:
    """Take a request for an enrolment token."""
    return TokenRequest(
        site_id=bounds.slug(message.site_id, "create_token.site_id"),
        valid_s=bounds.whole(message.valid_s, 1, tokens.MAX_VALID_S, "create_token.valid_s"),
    )


def token_grant_from_wire(message: pb.CreateTokenResponse) -> TokenGrant:
    """Take the aggregator's part of a token."""
    name = "create_token"
    return TokenGrant(
        secret=bounds.text(message.secret, f"{name}.secret", _MAX_SECRET_CHARS),
        expires_at_s=bounds.whole(
            message.expires_at_s, 1, bounds.MAX_TIME_S, f"{name}.expires_at_s"
        ),
        enrolment_address=bounds.text(
            message.enrolment_address, f"{name}.enrolment_address", _MAX_ADDRESS_CHARS
        ),
        site_address=bounds.text(message.site_address, f"{name}.site_address", _MAX_ADDRESS_CHARS),
        ca_pem=bounds.blob(message.ca_pem, MAX_PEM_BYTES, f"{name}.ca_pem"),
    )


def token_grant_to_wire(grant: TokenGrant) -> pb.CreateTokenResponse:
    """Give the aggregator's part of a token."""
    return pb.CreateTokenResponse(
        secret=grant.secret,
        expires_at_s=grant.expires_at_s,
        enrolment_address=grant.enrolment_address,
        site_address=grant.site_address,
        ca_pem=grant.ca_pem,
    )


def revocation_from_wire(message: pb.RevokeSiteRequest) -> Revocation:
    """Take a request to cut a site off."""
    why = bounds.text(message.why, "revoke_site.why")
    return Revocation(bounds.slug(message.site_id, "revoke_site.site_id"), why)


def sealed_manifest_from_wire(message: pb.PutManifestRequest) -> SealedManifest:
    """Take a sealed manifest; ``tidegate.manifest.parse_and_verify`` judges it."""
    return SealedManifest(
        manifest=bounds.blob(message.manifest, manifest.MAX_BYTES, "put_manifest.manifest"),
        signature=bounds.signature(message.signature, "put_manifest.signature"),
    )


def submit_header_from_wire(
    message: pb.SubmitJobRequest, limits: Limits = DEFAULT_LIMITS
) -> SubmitHeader:
    """Take the first message of a submission, which states all that follows."""
    if not message.HasField("header"):
        raise malformed("submit.header", "must come in the first message")
    if message.data:
        raise malformed("submit.header", "must come alone")
    header, name = message.header, "submit.header"
    most = _FLOAT32_BYTES * limits.max_vector_length
    return SubmitHeader(
        job_toml=bounds.blob(header.job_toml, jobfile.MAX_BYTES, f"{name}.job_toml"),
        vector_spec=bounds.blob(header.vector_spec, MAX_SPEC_BYTES, f"{name}.vector_spec"),
        app_size=bounds.whole(header.app_size, 1, appbundle.MAX_BYTES, f"{name}.app_size"),
        app_sha256=bounds.sha256(header.app_sha256, f"{name}.app_sha256"),
        model_size=bounds.whole(header.model_size, _FLOAT32_BYTES, most, f"{name}.model_size"),
        model_sha256=bounds.sha256(header.model_sha256, f"{name}.model_sha256"),
        dry_run=header.dry_run,
    )


def submit_header_to_wire(header: SubmitHeader) -> pb.SubmitJobRequest:
    """Give the first message of a submission."""
    return pb.SubmitJobRequest(header=pb.SubmitJobHeader(**vars(header)))


def dry_run_from_wire(message: pb.SubmitJobResponse) -> bytes:
    """Take the canonical bytes of the plan that a dry run gave."""
    return bounds.blob(message.encoding, MAX_PLAN_BYTES, "submit.encoding")


def submit_data_from_wire(message: pb.SubmitJobRequest, limits: Limits = DEFAULT_LIMITS) -> bytes:
    """Take a further message of a submission."""
    if message.HasField("header"):
        raise malformed("submit.header", "must come in the first message only")
    return bounds.blob(message.data, limits.max_message_bytes, "submit.data")


def site_record_from_wire(message: pb.Site) -> SiteRecord:
    """Take one site of the registry; its keys are empty until it has enrolled."""
    if message.node_fingerprint:
        bounds.sha256(message.node_fingerprint, "site.node_fingerprint")
    return SiteRecord(
        site_id=bounds.slug(message.site_id, "site.site_id"),
        node_fingerprint=message.node_fingerprint,
        signing_spki=bounds.blob(message.signing_spki, MAX_SPKI_BYTES, "site.signing_spki", 0),
        state=bounds.text(message.state, "site.state", _MAX_WORD_CHARS),
        device=bounds.text(message.device, "site.device", _MAX_WORD_CHARS),
        last_seen_s=bounds.whole(message.last_seen_s, 0, bounds.MAX_TIME_S, "site.last_seen_s"),
        bundles=message.bundles,
    )


def job_status_from_wire(message: pb.Job) -> JobStatus:
    """Take where a job stands."""
    bounds.count(message.sites, DEFAULT_LIMITS.max_sites, "job.sites", least=0)
    bounds.count(message.log, _MAX_LOG_LINES, "job.log", least=0)
    submitted_at_s = bounds.whole(
        message.submitted_at_s, 0, bounds.MAX_TIME_S, "job.submitted_at_s"
    )
    return JobStatus(
        job_id=bounds.slug(message.job_id, "job.job_id"),
        name=bounds.text(message.name, "job.name", _MAX_WORD_CHARS),
        state=bounds.text(message.state, "job.state", _MAX_WORD_CHARS),
        detail=bounds.text(message.detail, "job.detail"),
        round=message.round,
        rounds=message.rounds,
        attempts_aborted=message.attempts_aborted,
        submitted_at_s=submitted_at_s,
        metrics=_metrics(message.metrics, "job.metrics"),
        sites=tuple(_site_progress(site) for site in message.sites),
        elapsed_s=bounds.finite(message.elapsed_s, _MAX_NUMBER, "job.elapsed_s"),
        rounds_per_s=bounds.finite(message.rounds_per_s, _MAX_NUMBER, "job.rounds_per_s"),
        delta_dp=bounds.finite(message.delta_dp, 1.0, "job.delta_dp"),
        unit=bounds.text(message.unit, "job.unit", _MAX_WORD_CHARS),
        mode=bounds.text(message.mode, "job.mode", _MAX_WORD_CHARS),
        log=tuple(bounds.text(line, "job.log") for line in message.log),
        tier=bounds.text(message.tier, "job.tier", 2 * _MAX_WORD_CHARS),
        person_sites=message.person_sites,
        epsilon_one_site=bounds.finite(
            message.epsilon_one_site, bounds.MAX_EPSILON, "job.epsilon_one_site"
        ),
        epsilon_person=bounds.finite(
            message.epsilon_person, bounds.MAX_EPSILON, "job.epsilon_person"
        ),
        groups=message.groups,
        wrap_rate=bounds.finite(message.wrap_rate, 1.0, "job.wrap_rate"),
    )


def site_record_to_wire(site: SiteRecord) -> pb.Site:
    """Give one site of the registry."""
    return pb.Site(**vars(site))


def job_status_to_wire(job: JobStatus) -> pb.Job:
    """Give where a job stands, cut to what the receiver takes.

    Sites choose some of its words and numbers: none of them may keep the operator from seeing it.
    """
    fields: dict[str, Any] = vars(job) | {
        "detail": bounds.printable(job.detail),
        "metrics": _showable(job.metrics),
        "sites": [_site_progress_to_wire(site) for site in job.sites],
        "log": [bounds.printable(line) for line in job.log],
    }
    return pb.Job(**fields)


def job_history_from_wire(message: pb.GetHistoryResponse) -> JobHistory:
    """Take a job's history."""
    bounds.count(message.rounds, MAX_HISTORY + 1, "history.rounds", least=0)
    return JobHistory(
        rounds=tuple(
            RoundRecord(
                entry.round,
                entry.attempt,
                entry.survivors,
                bounds.finite(entry.elapsed_s, _MAX_NUMBER, "history.elapsed_s"),
                _metrics(entry.metrics, "history.metrics"),
                entry.groups,
                bounds.finite(entry.wrap_rate, 1.0, "history.wrap_rate"),
            )
            for entry in message.rounds
        ),
        vector_spec=bounds.blob(message.vector_spec, MAX_SPEC_BYTES, "history.vector_spec"),
        encoding=bounds.blob(message.encoding, MAX_PLAN_BYTES, "history.encoding"),
        app_sha256=bounds.sha256(message.app_sha256, "history.app_sha256"),
        manifest_hash=bounds.blob(message.manifest_hash, 32, "history.manifest_hash", 0),
    )


def job_history_to_wire(history: JobHistory) -> pb.GetHistoryResponse:
    """Give a job's history."""
    return pb.GetHistoryResponse(
        rounds=[
            pb.RoundRecord(
                round=entry.round,
                attempt=entry.attempt,
                survivors=entry.survivors,
                elapsed_s=entry.elapsed_s,
                metrics=_showable(entry.metrics),
                groups=entry.groups,
                wrap_rate=entry.wrap_rate,
            )
            for entry in history.rounds
        ],
        vector_spec=history.vector_spec,
        encoding=history.encoding,
        app_sha256=history.app_sha256,
        manifest_hash=history.manifest_hash,
    )


def _metrics(metrics: Mapping[str, float], name: str) -> dict[str, float]:
    bounds.count(metrics, _MAX_METRICS, name, least=0)
    return {
        bounds.text(key, name, _MAX_WORD_CHARS): bounds.finite(
            value, _MAX_NUMBER, name, -_MAX_NUMBER
        )
        for key, value in metrics.items()
    }


def _showable(metrics: Mapping[str, float]) -> dict[str, float]:
    """Keep the metrics that the receiver takes."""
    return {name: value for name, value in metrics.items() if abs(value) <= _MAX_NUMBER}


def _site_progress_to_wire(site: SiteProgress) -> pb.SiteProgress:
    bounded: dict[str, Any] = {
        name: min(getattr(site, name), _MAX_NUMBER)
        for name in ("epsilon", "train_s", "exchange_s", "wait_s")
    }
    bounded["detail"] = bounds.printable(site.detail)
    return pb.SiteProgress(**vars(site) | bounded)


def _site_progress(message: pb.SiteProgress) -> SiteProgress:
    name = "job.sites"
    return SiteProgress(
        site_id=bounds.slug(message.site_id, f"{name}.site_id"),
        state=bounds.text(message.state, f"{name}.state", _MAX_WORD_CHARS),
        epsilon=bounds.finite(message.epsilon, _MAX_NUMBER, f"{name}.epsilon"),
        bytes_up=message.bytes_up,
        bytes_down=message.bytes_down,
        train_s=bounds.finite(message.train_s, _MAX_NUMBER, f"{name}.train_s"),
        exchange_s=bounds.finite(message.exchange_s, _MAX_NUMBER, f"{name}.exchange_s"),
        wait_s=bounds.finite(message.wait_s, _MAX_NUMBER, f"{name}.wait_s"),
        rounds_in=message.rounds_in,
        dropped=message.dropped,
        detail=bounds.text(message.detail, f"{name}.detail"),
        group=message.group,
    )
