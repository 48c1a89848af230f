from tidegate.v1 import secagg_pb2 as _secagg_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class EnrolRequest(_message.Message):
    __slots__ = ("token", "csr_der", "signing_spki", "signing_proof")
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    CSR_DER_FIELD_NUMBER: _ClassVar[int]
    SIGNING_SPKI_FIELD_NUMBER: _ClassVar[int]
    SIGNING_PROOF_FIELD_NUMBER: _ClassVar[int]
    token: str
    csr_der: bytes
    signing_spki: bytes
    signing_proof: bytes
    def __init__(self, token: _Optional[str] = ..., csr_der: _Optional[bytes] = ..., signing_spki: _Optional[bytes] = ..., signing_proof: _Optional[bytes] = ...) -> None: ...

class EnrolResponse(_message.Message):
    __slots__ = ("site_id", "certificate_pem", "ca_pem", "operator_spki")
    SITE_ID_FIELD_NUMBER: _ClassVar[int]
    CERTIFICATE_PEM_FIELD_NUMBER: _ClassVar[int]
    CA_PEM_FIELD_NUMBER: _ClassVar[int]
    OPERATOR_SPKI_FIELD_NUMBER: _ClassVar[int]
    site_id: str
    certificate_pem: bytes
    ca_pem: bytes
    operator_spki: bytes
    def __init__(self, site_id: _Optional[str] = ..., certificate_pem: _Optional[bytes] = ..., ca_pem: _Optional[bytes] = ..., operator_spki: _Optional[bytes] = ...) -> None: ...

class SessionRequest(_message.Message):
    __slots__ = ("hello", "bundles", "job_reply", "ready", "not_ready", "dealt_shares", "survivor_signature", "unmask_shares", "abort_signature", "attempt_failed", "graph_reveal")
    HELLO_FIELD_NUMBER: _ClassVar[int]
    BUNDLES_FIELD_NUMBER: _ClassVar[int]
    JOB_REPLY_FIELD_NUMBER: _ClassVar[int]
    READY_FIELD_NUMBER: _ClassVar[int]
    NOT_READY_FIELD_NUMBER: _ClassVar[int]
    DEALT_SHARES_FIELD_NUMBER: _ClassVar[int]
    SURVIVOR_SIGNATURE_FIELD_NUMBER: _ClassVar[int]
    UNMASK_SHARES_FIELD_NUMBER: _ClassVar[int]
    ABORT_SIGNATURE_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FAILED_FIELD_NUMBER: _ClassVar[int]
    GRAPH_REVEAL_FIELD_NUMBER: _ClassVar[int]
    hello: Hello
    bundles: BundleStock
    job_reply: JobReply
    ready: Ready
    not_ready: NotReady
    dealt_shares: _secagg_pb2.DealtShares
    survivor_signature: _secagg_pb2.SurvivorSignature
    unmask_shares: _secagg_pb2.UnmaskShares
    abort_signature: _secagg_pb2.AbortSignature
    attempt_failed: AttemptFailed
    graph_reveal: _secagg_pb2.GraphReveal
    def __init__(self, hello: _Optional[_Union[Hello, _Mapping]] = ..., bundles: _Optional[_Union[BundleStock, _Mapping]] = ..., job_reply: _Optional[_Union[JobReply, _Mapping]] = ..., ready: _Optional[_Union[Ready, _Mapping]] = ..., not_ready: _Optional[_Union[NotReady, _Mapping]] = ..., dealt_shares: _Optional[_Union[_secagg_pb2.DealtShares, _Mapping]] = ..., survivor_signature: _Optional[_Union[_secagg_pb2.SurvivorSignature, _Mapping]] = ..., unmask_shares: _Optional[_Union[_secagg_pb2.UnmaskShares, _Mapping]] = ..., abort_signature: _Optional[_Union[_secagg_pb2.AbortSignature, _Mapping]] = ..., attempt_failed: _Optional[_Union[AttemptFailed, _Mapping]] = ..., graph_reveal: _Optional[_Union[_secagg_pb2.GraphReveal, _Mapping]] = ...) -> None: ...

class SessionResponse(_message.Message):
    __slots__ = ("welcome", "bundle_request", "job_offer", "train_request", "roster", "share_delivery", "survivor_set", "survivor_quorum", "abort_request", "attempt_result", "job_ended", "refused", "graph_reveals", "retry_proof")
    WELCOME_FIELD_NUMBER: _ClassVar[int]
    BUNDLE_REQUEST_FIELD_NUMBER: _ClassVar[int]
    JOB_OFFER_FIELD_NUMBER: _ClassVar[int]
    TRAIN_REQUEST_FIELD_NUMBER: _ClassVar[int]
    ROSTER_FIELD_NUMBER: _ClassVar[int]
    SHARE_DELIVERY_FIELD_NUMBER: _ClassVar[int]
    SURVIVOR_SET_FIELD_NUMBER: _ClassVar[int]
    SURVIVOR_QUORUM_FIELD_NUMBER: _ClassVar[int]
    ABORT_REQUEST_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_RESULT_FIELD_NUMBER: _ClassVar[int]
    JOB_ENDED_FIELD_NUMBER: _ClassVar[int]
    REFUSED_FIELD_NUMBER: _ClassVar[int]
    GRAPH_REVEALS_FIELD_NUMBER: _ClassVar[int]
    RETRY_PROOF_FIELD_NUMBER: _ClassVar[int]
    welcome: Welcome
    bundle_request: BundleRequest
    job_offer: JobOffer
    train_request: TrainRequest
    roster: _secagg_pb2.Roster
    share_delivery: _secagg_pb2.ShareDelivery
    survivor_set: _secagg_pb2.SurvivorSet
    survivor_quorum: _secagg_pb2.SurvivorQuorum
    abort_request: _secagg_pb2.AbortRequest
    attempt_result: AttemptResult
    job_ended: JobEnded
    refused: Refused
    graph_reveals: _secagg_pb2.GraphReveals
    retry_proof: _secagg_pb2.RetryProof
    def __init__(self, welcome: _Optional[_Union[Welcome, _Mapping]] = ..., bundle_request: _Optional[_Union[BundleRequest, _Mapping]] = ..., job_offer: _Optional[_Union[JobOffer, _Mapping]] = ..., train_request: _Optional[_Union[TrainRequest, _Mapping]] = ..., roster: _Optional[_Union[_secagg_pb2.Roster, _Mapping]] = ..., share_delivery: _Optional[_Union[_secagg_pb2.ShareDelivery, _Mapping]] = ..., survivor_set: _Optional[_Union[_secagg_pb2.SurvivorSet, _Mapping]] = ..., survivor_quorum: _Optional[_Union[_secagg_pb2.SurvivorQuorum, _Mapping]] = ..., abort_request: _Optional[_Union[_secagg_pb2.AbortRequest, _Mapping]] = ..., attempt_result: _Optional[_Union[AttemptResult, _Mapping]] = ..., job_ended: _Optional[_Union[JobEnded, _Mapping]] = ..., refused: _Optional[_Union[Refused, _Mapping]] = ..., graph_reveals: _Optional[_Union[_secagg_pb2.GraphReveals, _Mapping]] = ..., retry_proof: _Optional[_Union[_secagg_pb2.RetryProof, _Mapping]] = ...) -> None: ...

class Hello(_message.Message):
    __slots__ = ("protocol", "instance_id", "device", "jobs")
    PROTOCOL_FIELD_NUMBER: _ClassVar[int]
    INSTANCE_ID_FIELD_NUMBER: _ClassVar[int]
    DEVICE_FIELD_NUMBER: _ClassVar[int]
    JOBS_FIELD_NUMBER: _ClassVar[int]
    protocol: str
    instance_id: bytes
    device: str
    jobs: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, protocol: _Optional[str] = ..., instance_id: _Optional[bytes] = ..., device: _Optional[str] = ..., jobs: _Optional[_Iterable[str]] = ...) -> None: ...

class Welcome(_message.Message):
    __slots__ = ("protocol", "manifest", "manifest_signature")
    PROTOCOL_FIELD_NUMBER: _ClassVar[int]
    MANIFEST_FIELD_NUMBER: _ClassVar[int]
    MANIFEST_SIGNATURE_FIELD_NUMBER: _ClassVar[int]
    protocol: str
    manifest: bytes
    manifest_signature: bytes
    def __init__(self, protocol: _Optional[str] = ..., manifest: _Optional[bytes] = ..., manifest_signature: _Optional[bytes] = ...) -> None: ...

class BundleRequest(_message.Message):
    __slots__ = ("count",)
    COUNT_FIELD_NUMBER: _ClassVar[int]
    count: int
    def __init__(self, count: _Optional[int] = ...) -> None: ...

class BundleStock(_message.Message):
    __slots__ = ("bundles",)
    BUNDLES_FIELD_NUMBER: _ClassVar[int]
    bundles: _containers.RepeatedCompositeFieldContainer[_secagg_pb2.Bundle]
    def __init__(self, bundles: _Optional[_Iterable[_Union[_secagg_pb2.Bundle, _Mapping]]] = ...) -> None: ...

class JobOffer(_message.Message):
    __slots__ = ("job_id", "job_toml", "app_sha256", "app_size", "vector_spec", "encoding", "evaluation_encoding")
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    JOB_TOML_FIELD_NUMBER: _ClassVar[int]
    APP_SHA256_FIELD_NUMBER: _ClassVar[int]
    APP_SIZE_FIELD_NUMBER: _ClassVar[int]
    VECTOR_SPEC_FIELD_NUMBER: _ClassVar[int]
    ENCODING_FIELD_NUMBER: _ClassVar[int]
    EVALUATION_ENCODING_FIELD_NUMBER: _ClassVar[int]
    job_id: str
    job_toml: bytes
    app_sha256: bytes
    app_size: int
    vector_spec: bytes
    encoding: bytes
    evaluation_encoding: bytes
    def __init__(self, job_id: _Optional[str] = ..., job_toml: _Optional[bytes] = ..., app_sha256: _Optional[bytes] = ..., app_size: _Optional[int] = ..., vector_spec: _Optional[bytes] = ..., encoding: _Optional[bytes] = ..., evaluation_encoding: _Optional[bytes] = ...) -> None: ...

class JobReply(_message.Message):
    __slots__ = ("job_id", "accepted", "reason", "detail")
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    ACCEPTED_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    DETAIL_FIELD_NUMBER: _ClassVar[int]
    job_id: str
    accepted: bool
    reason: str
    detail: str
    def __init__(self, job_id: _Optional[str] = ..., accepted: _Optional[bool] = ..., reason: _Optional[str] = ..., detail: _Optional[str] = ...) -> None: ...

class TrainRequest(_message.Message):
    __slots__ = ("job_id", "round", "broadcast", "chain_head", "log_sha256", "log_size", "purpose", "config", "announcement")
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    ROUND_FIELD_NUMBER: _ClassVar[int]
    BROADCAST_FIELD_NUMBER: _ClassVar[int]
    CHAIN_HEAD_FIELD_NUMBER: _ClassVar[int]
    LOG_SHA256_FIELD_NUMBER: _ClassVar[int]
    LOG_SIZE_FIELD_NUMBER: _ClassVar[int]
    PURPOSE_FIELD_NUMBER: _ClassVar[int]
    CONFIG_FIELD_NUMBER: _ClassVar[int]
    ANNOUNCEMENT_FIELD_NUMBER: _ClassVar[int]
    job_id: str
    round: int
    broadcast: bytes
    chain_head: bytes
    log_sha256: bytes
    log_size: int
    purpose: str
    config: bytes
    announcement: bytes
    def __init__(self, job_id: _Optional[str] = ..., round: _Optional[int] = ..., broadcast: _Optional[bytes] = ..., chain_head: _Optional[bytes] = ..., log_sha256: _Optional[bytes] = ..., log_size: _Optional[int] = ..., purpose: _Optional[str] = ..., config: _Optional[bytes] = ..., announcement: _Optional[bytes] = ...) -> None: ...

class Ready(_message.Message):
    __slots__ = ("job_id", "round", "version", "epsilon_spent", "train_s", "exchange_s", "wait_s")
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    ROUND_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    EPSILON_SPENT_FIELD_NUMBER: _ClassVar[int]
    TRAIN_S_FIELD_NUMBER: _ClassVar[int]
    EXCHANGE_S_FIELD_NUMBER: _ClassVar[int]
    WAIT_S_FIELD_NUMBER: _ClassVar[int]
    job_id: str
    round: int
    version: int
    epsilon_spent: float
    train_s: float
    exchange_s: float
    wait_s: float
    def __init__(self, job_id: _Optional[str] = ..., round: _Optional[int] = ..., version: _Optional[int] = ..., epsilon_spent: _Optional[float] = ..., train_s: _Optional[float] = ..., exchange_s: _Optional[float] = ..., wait_s: _Optional[float] = ...) -> None: ...

class NotReady(_message.Message):
    __slots__ = ("job_id", "round", "reason", "detail", "epsilon_spent")
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    ROUND_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    DETAIL_FIELD_NUMBER: _ClassVar[int]
    EPSILON_SPENT_FIELD_NUMBER: _ClassVar[int]
    job_id: str
    round: int
    reason: str
    detail: str
    epsilon_spent: float
    def __init__(self, job_id: _Optional[str] = ..., round: _Optional[int] = ..., reason: _Optional[str] = ..., detail: _Optional[str] = ..., epsilon_spent: _Optional[float] = ...) -> None: ...

class AttemptFailed(_message.Message):
    __slots__ = ("ctx", "reason", "detail")
    CTX_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    DETAIL_FIELD_NUMBER: _ClassVar[int]
    ctx: bytes
    reason: str
    detail: str
    def __init__(self, ctx: _Optional[bytes] = ..., reason: _Optional[str] = ..., detail: _Optional[str] = ...) -> None: ...

class AttemptResult(_message.Message):
    __slots__ = ("ctx", "transcript_hash", "survivors")
    CTX_FIELD_NUMBER: _ClassVar[int]
    TRANSCRIPT_HASH_FIELD_NUMBER: _ClassVar[int]
    SURVIVORS_FIELD_NUMBER: _ClassVar[int]
    ctx: bytes
    transcript_hash: bytes
    survivors: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, ctx: _Optional[bytes] = ..., transcript_hash: _Optional[bytes] = ..., survivors: _Optional[_Iterable[int]] = ...) -> None: ...

class JobEnded(_message.Message):
    __slots__ = ("job_id", "state", "detail")
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    DETAIL_FIELD_NUMBER: _ClassVar[int]
    job_id: str
    state: str
    detail: str
    def __init__(self, job_id: _Optional[str] = ..., state: _Optional[str] = ..., detail: _Optional[str] = ...) -> None: ...

class Refused(_message.Message):
    __slots__ = ("reason", "detail")
    REASON_FIELD_NUMBER: _ClassVar[int]
    DETAIL_FIELD_NUMBER: _ClassVar[int]
    reason: str
    detail: str
    def __init__(self, reason: _Optional[str] = ..., detail: _Optional[str] = ...) -> None: ...
