"""Frames of a site's session: ``SessionRequest`` and ``SessionResponse`` <-> values.

One function a message and direction, found in a table by the oneof's field or the value's type.
"""

import re
from collections.abc import Callable
from typing import Any

from privacy.errors import PeerError, Reason
from privacy.secagg.messages import (
    AbortRequest,
    AbortSignature,
    DealtShares,
    Fingerprint,
    GraphReveal,
    GraphReveals,
    RetryProof,
    Roster,
    ShareDelivery,
    SurvivorQuorum,
    SurvivorSet,
    SurvivorSignature,
    UnmaskShares,
)
from tidegate import appbundle, flower_config, jobfile, manifest
from tidegate.broadcast import MAX_ANNOUNCEMENT_BYTES, MAX_LOG_BYTES, Broadcast, ContentName
from tidegate.convert import bounds, retry, secagg
from tidegate.convert.bounds import Limits, malformed
from tidegate.messages import (
    TRAIN,
    AggregatorMessage,
    AttemptFailed,
    AttemptResult,
    BundleRequest,
    BundleStock,
    Hello,
    JobEnded,
    JobOffer,
    JobReply,
    NotReady,
    Ready,
    Refused,
    SiteMessage,
    TrainRequest,
    Welcome,
)
from tidegate.v1 import federation_pb2 as pb

MAX_BUNDLES = 256
MAX_JOBS = 64
MAX_SPEC_BYTES = 1 << 20
JOB_ENDS = frozenset({"finished", "failed", "stopped"})

_MAX_NAME_CHARS = 64
_MAX_TIMING_S = 1e9
_PURPOSE = re.compile(r"(train|evaluate)(\.[A-Za-z_][A-Za-z0-9_]{0,31})?")


def site_message_from_wire(
    message: pb.SessionRequest, sender: Fingerprint, limits: Limits = bounds.DEFAULT_LIMITS
) -> SiteMessage:
    """Take what a site sent on its session.

    Args:
        message: The frame as protobuf parsed it.
        sender: The fingerprint that the session's certificate is enrolled with; where a frame
            names its sender too, the two must agree.
        limits: From the sealed manifest.

    Raises:
        PeerError: A bound is broken; the message names the field.
    """
    kind = message.WhichOneof("message")
    take = _FROM_SITE.get(kind or "")
    if take is None or kind is None:
        raise PeerError(Reason.MALFORMED, "session: an empty or unknown message")
    return take(getattr(message, kind), sender, limits)


def aggregator_message_from_wire(
    message: pb.SessionResponse, limits: Limits = bounds.DEFAULT_LIMITS
) -> AggregatorMessage:
    """Take what the aggregator sent on a session.

    Raises:
        PeerError: A bound is broken; the message names the field.
    """
    kind = message.WhichOneof("message")
    take = _FROM_AGGREGATOR.get(kind or "")
    if take is None or kind is None:
        raise PeerError(Reason.MALFORMED, "session: an empty or unknown message")
    return take(getattr(message, kind), limits)


def site_message_to_wire(message: SiteMessage) -> pb.SessionRequest:
    """Give a site's message as a frame."""
    kind, give = _TO_AGGREGATOR[type(message)]
    frame: dict[str, Any] = {kind: give(message)}
    return pb.SessionRequest(**frame)


def aggregator_message_to_wire(message: AggregatorMessage) -> pb.SessionResponse:
    """Give the aggregator's message as a frame."""
    kind, give = _TO_SITE[type(message)]
    frame: dict[str, Any] = {kind: give(message)}
    return pb.SessionResponse(**frame)


# --- from a site ---------------------------------------------------------------------------------


def _hello(message: pb.Hello, _sender: Fingerprint, _limits: Limits) -> Hello:
    bounds.count(message.jobs, MAX_JOBS, "hello.jobs", least=0)
    jobs = tuple(bounds.slug(job_id, "hello.jobs") for job_id in message.jobs)
    if len(set(jobs)) != len(jobs):
        raise malformed("hello.jobs", "must not name a job twice")
    return Hello(
        protocol=bounds.text(message.protocol, "hello.protocol", _MAX_NAME_CHARS),
        instance_id=bounds.fixed(
            message.instance_id, bounds.INSTANCE_ID_BYTES, "hello.instance_id"
        ),
        device=bounds.text(message.device, "hello.device", _MAX_NAME_CHARS),
        jobs=jobs,
    )


def _bundle_stock(message: pb.BundleStock, sender: Fingerprint, limits: Limits) -> BundleStock:
    name = "bundles.bundles"
    bounds.count(message.bundles, MAX_BUNDLES, name)
    bundles = tuple(secagg.bundle_from_wire(entry, name, limits.suite) for entry in message.bundles)
    if any(signed.bundle.site != sender for signed in bundles):
        raise PeerError(Reason.UNAUTHENTICATED, f"{name}.site: is not the site of this session")
    if len({signed.bundle.serial for signed in bundles}) != len(bundles):
        raise malformed(f"{name}.serial", "must not come twice")
    return BundleStock(bundles)


def _job_reply(message: pb.JobReply, _sender: Fingerprint, _limits: Limits) -> JobReply:
    why = message.reason
    if not message.accepted:
        bounds.reason(why, "job_reply.reason")
    elif why:
        raise malformed("job_reply.reason", "must be empty where the job is accepted")
    return JobReply(
        job_id=bounds.slug(message.job_id, "job_reply.job_id"),
        accepted=message.accepted,
        reason=why,
        detail=bounds.text(message.detail, "job_reply.detail"),
    )


def _ready(message: pb.Ready, _sender: Fingerprint, _limits: Limits) -> Ready:
    return Ready(
        job_id=bounds.slug(message.job_id, "ready.job_id"),
        round=bounds.whole(message.round, 0, bounds.MAX_ROUND, "ready.round"),
        version=bounds.whole(message.version, 0, bounds.MAX_ROUND, "ready.version"),
        epsilon_spent=bounds.finite(
            message.epsilon_spent, bounds.MAX_EPSILON, "ready.epsilon_spent"
        ),
        train_s=bounds.finite(message.train_s, _MAX_TIMING_S, "ready.train_s"),
        exchange_s=bounds.finite(message.exchange_s, _MAX_TIMING_S, "ready.exchange_s"),
        wait_s=bounds.finite(message.wait_s, _MAX_TIMING_S, "ready.wait_s"),
    )


def _not_ready(message: pb.NotReady, _sender: Fingerprint, _limits: Limits) -> NotReady:
    spent = bounds.finite(message.epsilon_spent, bounds.MAX_EPSILON, "not_ready.epsilon_spent")
    return NotReady(
        job_id=bounds.slug(message.job_id, "not_ready.job_id"),
        round=bounds.whole(message.round, 0, bounds.MAX_ROUND, "not_ready.round"),
        reason=bounds.reason(message.reason, "not_ready.reason"),
        detail=bounds.text(message.detail, "not_ready.detail"),
        epsilon_spent=spent,
    )


def _attempt_failed(
    message: pb.AttemptFailed, _sender: Fingerprint, _limits: Limits
) -> AttemptFailed:
    return AttemptFailed(
        ctx=bounds.sha256(message.ctx, "attempt_failed.ctx"),
        reason=bounds.reason(message.reason, "attempt_failed.reason"),
        detail=bounds.text(message.detail, "attempt_failed.detail"),
    )


_FROM_SITE: dict[str, Callable[..., SiteMessage]] = {
    "hello": _hello,
    "bundles": _bundle_stock,
    "job_reply": _job_reply,
    "ready": _ready,
    "not_ready": _not_ready,
    "graph_reveal": lambda m, sender, _: secagg.graph_reveal_from_wire(m, sender),
    "dealt_shares": secagg.dealt_shares_from_wire,
    "survivor_signature": lambda m, sender, _: secagg.survivor_signature_from_wire(m, sender),
    "unmask_shares": secagg.unmask_shares_from_wire,
    "abort_signature": lambda m, sender, _: secagg.abort_signature_from_wire(m, sender),
    "attempt_failed": _attempt_failed,
}


# --- from the aggregator -------------------------------------------------------------------------


def _welcome(message: pb.Welcome, _limits: Limits) -> Welcome:
    """Take the manifest and its signature both, or neither (before sealing)."""
    least = 1 if message.manifest or message.manifest_signature else 0
    if least:
        bounds.signature(message.manifest_signature, "welcome.manifest_signature")
    return Welcome(
        protocol=bounds.text(message.protocol, "welcome.protocol", _MAX_NAME_CHARS),
        manifest=bounds.blob(message.manifest, manifest.MAX_BYTES, "welcome.manifest", least),
        manifest_signature=message.manifest_signature,
    )


def _bundle_request(message: pb.BundleRequest, _limits: Limits) -> BundleRequest:
    return BundleRequest(bounds.whole(message.count, 1, MAX_BUNDLES, "bundle_request.count"))


def _job_offer(message: pb.JobOffer, _limits: Limits) -> JobOffer:
    return JobOffer(
        job_id=bounds.slug(message.job_id, "job_offer.job_id"),
        job_toml=bounds.blob(message.job_toml, jobfile.MAX_BYTES, "job_offer.job_toml"),
        app_sha256=bounds.sha256(message.app_sha256, "job_offer.app_sha256"),
        app_size=bounds.whole(message.app_size, 1, appbundle.MAX_BYTES, "job_offer.app_size"),
        vector_spec=bounds.blob(message.vector_spec, MAX_SPEC_BYTES, "job_offer.vector_spec"),
        encoding=bounds.blob(message.encoding, secagg.MAX_PLAN_BYTES, "job_offer.encoding"),
        evaluation_encoding=bounds.blob(
            message.evaluation_encoding, secagg.MAX_PLAN_BYTES, "job_offer.evaluation_encoding", 0
        ),
    )


def _train_request(message: pb.TrainRequest, _limits: Limits) -> TrainRequest:
    broadcast = _broadcast(message.broadcast)
    announcement = bounds.blob(
        message.announcement, MAX_ANNOUNCEMENT_BYTES, "train_request.announcement", 0
    )
    if broadcast.announcement != (ContentName.of(announcement) if announcement else None):
        raise malformed("train_request.announcement", "must be the one that the broadcast names")
    return TrainRequest(
        job_id=bounds.slug(message.job_id, "train_request.job_id"),
        round=bounds.whole(message.round, 0, bounds.MAX_ROUND, "train_request.round"),
        broadcast=broadcast,
        chain_head=bounds.sha256(message.chain_head, "train_request.chain_head"),
        log=ContentName(
            bounds.sha256(message.log_sha256, "train_request.log_sha256"),
            bounds.whole(message.log_size, 1, MAX_LOG_BYTES, "train_request.log_size"),
        ),
        purpose=_purpose(message.purpose),
        config=_config(message.config),
        announcement=announcement,
    )


def _broadcast(raw: bytes) -> Broadcast:
    """Take a version's broadcast; its sizes are held against the job by whoever follows it."""
    try:
        return Broadcast.from_bytes(raw)
    except PeerError as error:
        raise PeerError(error.reason, f"train_request.broadcast: {error.args[0]}") from None


def _purpose(value: str) -> str:
    """Take what an update is for; training, the usual, is sent as nothing."""
    if not value:
        return TRAIN
    if value == TRAIN or _PURPOSE.fullmatch(value) is None:
        raise malformed(
            "train_request.purpose", "must be empty, 'evaluate', or 'train.' or 'evaluate.' NAME"
        )
    return value


def _config(value: bytes) -> bytes:
    """Take a Flower message's settings as they came, after reading them once."""
    if value:
        flower_config.decode(value, "train_request.config")
    return value


def _attempt_result(message: pb.AttemptResult, limits: Limits) -> AttemptResult:
    name = "attempt_result.survivors"
    return AttemptResult(
        ctx=bounds.sha256(message.ctx, "attempt_result.ctx"),
        transcript_hash=bounds.sha256(message.transcript_hash, "attempt_result.transcript_hash"),
        survivors=bounds.indices(message.survivors, limits.max_sites, name),
    )


def _job_ended(message: pb.JobEnded, _limits: Limits) -> JobEnded:
    if message.state not in JOB_ENDS:
        raise malformed("job_ended.state", f"must be one of {', '.join(sorted(JOB_ENDS))}")
    return JobEnded(
        job_id=bounds.slug(message.job_id, "job_ended.job_id"),
        state=message.state,
        detail=bounds.text(message.detail, "job_ended.detail"),
    )


def _refused(message: pb.Refused, _limits: Limits) -> Refused:
    why = bounds.reason(message.reason, "refused.reason")
    return Refused(why, bounds.text(message.detail, "refused.detail"))


_FROM_AGGREGATOR: dict[str, Callable[..., AggregatorMessage]] = {
    "welcome": _welcome,
    "bundle_request": _bundle_request,
    "job_offer": _job_offer,
    "train_request": _train_request,
    "roster": secagg.roster_from_wire,
    "graph_reveals": secagg.graph_reveals_from_wire,
    "share_delivery": secagg.share_delivery_from_wire,
    "survivor_set": secagg.survivor_set_from_wire,
    "survivor_quorum": secagg.survivor_quorum_from_wire,
    "abort_request": lambda m, _: secagg.abort_request_from_wire(m),
    "retry_proof": retry.retry_proof_from_wire,
    "attempt_result": _attempt_result,
    "job_ended": _job_ended,
    "refused": _refused,
}


# --- to the wire ---------------------------------------------------------------------------------


def _fields(message: object) -> dict[str, Any]:
    """Give the fields of a frozen dataclass whose names are those of its protobuf message.

    Detail texts are made printable on the way, as the receiver refuses others.
    """
    fields = dict(vars(message))
    if "detail" in fields:
        fields["detail"] = bounds.printable(fields["detail"])
    return fields


def _train_fields(request: TrainRequest) -> dict[str, Any]:
    return {
        "job_id": request.job_id,
        "round": request.round,
        "broadcast": request.broadcast.raw,
        "chain_head": request.chain_head,
        "log_sha256": request.log.sha256,
        "log_size": request.log.size,
        "purpose": "" if request.purpose == TRAIN else request.purpose,
        "config": request.config,
        "announcement": request.announcement,
    }


_TO_AGGREGATOR: dict[type, tuple[str, Callable[..., Any]]] = {
    Hello: ("hello", lambda m: pb.Hello(**_fields(m))),
    BundleStock: (
        "bundles",
        lambda m: pb.BundleStock(bundles=map(secagg.bundle_to_wire, m.bundles)),
    ),
    JobReply: ("job_reply", lambda m: pb.JobReply(**_fields(m))),
    Ready: ("ready", lambda m: pb.Ready(**_fields(m))),
    NotReady: ("not_ready", lambda m: pb.NotReady(**_fields(m))),
    GraphReveal: ("graph_reveal", secagg.graph_reveal_to_wire),
    DealtShares: ("dealt_shares", secagg.dealt_shares_to_wire),
    SurvivorSignature: ("survivor_signature", secagg.survivor_signature_to_wire),
    UnmaskShares: ("unmask_shares", secagg.unmask_shares_to_wire),
    AbortSignature: ("abort_signature", secagg.abort_signature_to_wire),
    AttemptFailed: ("attempt_failed", lambda m: pb.AttemptFailed(**_fields(m))),
}

_TO_SITE: dict[type, tuple[str, Callable[..., Any]]] = {
    Welcome: ("welcome", lambda m: pb.Welcome(**_fields(m))),
    BundleRequest: ("bundle_request", lambda m: pb.BundleRequest(**_fields(m))),
    JobOffer: ("job_offer", lambda m: pb.JobOffer(**_fields(m))),
    TrainRequest: ("train_request", lambda m: pb.TrainRequest(**_train_fields(m))),
    Roster: ("roster", secagg.roster_to_wire),
    GraphReveals: ("graph_reveals", secagg.graph_reveals_to_wire),
    ShareDelivery: ("share_delivery", secagg.share_delivery_to_wire),
    SurvivorSet: ("survivor_set", secagg.survivor_set_to_wire),
    SurvivorQuorum: ("survivor_quorum", secagg.survivor_quorum_to_wire),
    AbortRequest: ("abort_request", secagg.abort_request_to_wire),
    RetryProof: ("retry_proof", retry.retry_proof_to_wire),
    AttemptResult: ("attempt_result", lambda m: pb.AttemptResult(**_fields(m))),
    JobEnded: ("job_ended", lambda m: pb.JobEnded(**_fields(m))),
    Refused: ("refused", lambda m: pb.Refused(**_fields(m))),
}
