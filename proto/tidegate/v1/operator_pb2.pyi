from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class GetStatusRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class GetStatusResponse(_message.Message):
    __slots__ = ("version", "device", "consortium_id", "manifest_hash", "sites_connected")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    DEVICE_FIELD_NUMBER: _ClassVar[int]
    CONSORTIUM_ID_FIELD_NUMBER: _ClassVar[int]
    MANIFEST_HASH_FIELD_NUMBER: _ClassVar[int]
    SITES_CONNECTED_FIELD_NUMBER: _ClassVar[int]
    version: str
    device: str
    consortium_id: str
    manifest_hash: bytes
    sites_connected: int
    def __init__(self, version: _Optional[str] = ..., device: _Optional[str] = ..., consortium_id: _Optional[str] = ..., manifest_hash: _Optional[bytes] = ..., sites_connected: _Optional[int] = ...) -> None: ...

class CreateTokenRequest(_message.Message):
    __slots__ = ("site_id", "valid_s")
    SITE_ID_FIELD_NUMBER: _ClassVar[int]
    VALID_S_FIELD_NUMBER: _ClassVar[int]
    site_id: str
    valid_s: int
    def __init__(self, site_id: _Optional[str] = ..., valid_s: _Optional[int] = ...) -> None: ...

class CreateTokenResponse(_message.Message):
    __slots__ = ("secret", "expires_at_s", "enrolment_address", "site_address", "ca_pem")
    SECRET_FIELD_NUMBER: _ClassVar[int]
    EXPIRES_AT_S_FIELD_NUMBER: _ClassVar[int]
    ENROLMENT_ADDRESS_FIELD_NUMBER: _ClassVar[int]
    SITE_ADDRESS_FIELD_NUMBER: _ClassVar[int]
    CA_PEM_FIELD_NUMBER: _ClassVar[int]
    secret: str
    expires_at_s: int
    enrolment_address: str
    site_address: str
    ca_pem: bytes
    def __init__(self, secret: _Optional[str] = ..., expires_at_s: _Optional[int] = ..., enrolment_address: _Optional[str] = ..., site_address: _Optional[str] = ..., ca_pem: _Optional[bytes] = ...) -> None: ...

class ListSitesRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Site(_message.Message):
    __slots__ = ("site_id", "node_fingerprint", "signing_spki", "state", "device", "last_seen_s", "bundles")
    SITE_ID_FIELD_NUMBER: _ClassVar[int]
    NODE_FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    SIGNING_SPKI_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    DEVICE_FIELD_NUMBER: _ClassVar[int]
    LAST_SEEN_S_FIELD_NUMBER: _ClassVar[int]
    BUNDLES_FIELD_NUMBER: _ClassVar[int]
    site_id: str
    node_fingerprint: bytes
    signing_spki: bytes
    state: str
    device: str
    last_seen_s: int
    bundles: int
    def __init__(self, site_id: _Optional[str] = ..., node_fingerprint: _Optional[bytes] = ..., signing_spki: _Optional[bytes] = ..., state: _Optional[str] = ..., device: _Optional[str] = ..., last_seen_s: _Optional[int] = ..., bundles: _Optional[int] = ...) -> None: ...

class ListSitesResponse(_message.Message):
    __slots__ = ("sites",)
    SITES_FIELD_NUMBER: _ClassVar[int]
    sites: _containers.RepeatedCompositeFieldContainer[Site]
    def __init__(self, sites: _Optional[_Iterable[_Union[Site, _Mapping]]] = ...) -> None: ...

class RevokeSiteRequest(_message.Message):
    __slots__ = ("site_id", "why")
    SITE_ID_FIELD_NUMBER: _ClassVar[int]
    WHY_FIELD_NUMBER: _ClassVar[int]
    site_id: str
    why: str
    def __init__(self, site_id: _Optional[str] = ..., why: _Optional[str] = ...) -> None: ...

class RevokeSiteResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class PutManifestRequest(_message.Message):
    __slots__ = ("manifest", "signature")
    MANIFEST_FIELD_NUMBER: _ClassVar[int]
    SIGNATURE_FIELD_NUMBER: _ClassVar[int]
    manifest: bytes
    signature: bytes
    def __init__(self, manifest: _Optional[bytes] = ..., signature: _Optional[bytes] = ...) -> None: ...

class PutManifestResponse(_message.Message):
    __slots__ = ("manifest_hash",)
    MANIFEST_HASH_FIELD_NUMBER: _ClassVar[int]
    manifest_hash: bytes
    def __init__(self, manifest_hash: _Optional[bytes] = ...) -> None: ...

class SubmitJobRequest(_message.Message):
    __slots__ = ("header", "data")
    HEADER_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    header: SubmitJobHeader
    data: bytes
    def __init__(self, header: _Optional[_Union[SubmitJobHeader, _Mapping]] = ..., data: _Optional[bytes] = ...) -> None: ...

class SubmitJobHeader(_message.Message):
    __slots__ = ("job_toml", "vector_spec", "app_size", "app_sha256", "model_size", "model_sha256", "dry_run")
    JOB_TOML_FIELD_NUMBER: _ClassVar[int]
    VECTOR_SPEC_FIELD_NUMBER: _ClassVar[int]
    APP_SIZE_FIELD_NUMBER: _ClassVar[int]
    APP_SHA256_FIELD_NUMBER: _ClassVar[int]
    MODEL_SIZE_FIELD_NUMBER: _ClassVar[int]
    MODEL_SHA256_FIELD_NUMBER: _ClassVar[int]
    DRY_RUN_FIELD_NUMBER: _ClassVar[int]
    job_toml: bytes
    vector_spec: bytes
    app_size: int
    app_sha256: bytes
    model_size: int
    model_sha256: bytes
    dry_run: bool
    def __init__(self, job_toml: _Optional[bytes] = ..., vector_spec: _Optional[bytes] = ..., app_size: _Optional[int] = ..., app_sha256: _Optional[bytes] = ..., model_size: _Optional[int] = ..., model_sha256: _Optional[bytes] = ..., dry_run: _Optional[bool] = ...) -> None: ...

class SubmitJobResponse(_message.Message):
    __slots__ = ("job_id", "encoding")
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    ENCODING_FIELD_NUMBER: _ClassVar[int]
    job_id: str
    encoding: bytes
    def __init__(self, job_id: _Optional[str] = ..., encoding: _Optional[bytes] = ...) -> None: ...

class ListJobsRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ListJobsResponse(_message.Message):
    __slots__ = ("jobs",)
    JOBS_FIELD_NUMBER: _ClassVar[int]
    jobs: _containers.RepeatedCompositeFieldContainer[Job]
    def __init__(self, jobs: _Optional[_Iterable[_Union[Job, _Mapping]]] = ...) -> None: ...

class Job(_message.Message):
    __slots__ = ("job_id", "name", "state", "detail", "round", "rounds", "attempts_aborted", "submitted_at_s", "metrics", "sites", "elapsed_s", "rounds_per_s", "delta_dp", "unit", "mode", "log", "tier", "person_sites", "epsilon_one_site", "epsilon_person", "groups", "wrap_rate")
    class MetricsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    DETAIL_FIELD_NUMBER: _ClassVar[int]
    ROUND_FIELD_NUMBER: _ClassVar[int]
    ROUNDS_FIELD_NUMBER: _ClassVar[int]
    ATTEMPTS_ABORTED_FIELD_NUMBER: _ClassVar[int]
    SUBMITTED_AT_S_FIELD_NUMBER: _ClassVar[int]
    METRICS_FIELD_NUMBER: _ClassVar[int]
    SITES_FIELD_NUMBER: _ClassVar[int]
    ELAPSED_S_FIELD_NUMBER: _ClassVar[int]
    ROUNDS_PER_S_FIELD_NUMBER: _ClassVar[int]
    DELTA_DP_FIELD_NUMBER: _ClassVar[int]
    UNIT_FIELD_NUMBER: _ClassVar[int]
    MODE_FIELD_NUMBER: _ClassVar[int]
    LOG_FIELD_NUMBER: _ClassVar[int]
    TIER_FIELD_NUMBER: _ClassVar[int]
    PERSON_SITES_FIELD_NUMBER: _ClassVar[int]
    EPSILON_ONE_SITE_FIELD_NUMBER: _ClassVar[int]
    EPSILON_PERSON_FIELD_NUMBER: _ClassVar[int]
    GROUPS_FIELD_NUMBER: _ClassVar[int]
    WRAP_RATE_FIELD_NUMBER: _ClassVar[int]
    job_id: str
    name: str
    state: str
    detail: str
    round: int
    rounds: int
    attempts_aborted: int
    submitted_at_s: int
    metrics: _containers.ScalarMap[str, float]
    sites: _containers.RepeatedCompositeFieldContainer[SiteProgress]
    elapsed_s: float
    rounds_per_s: float
    delta_dp: float
    unit: str
    mode: str
    log: _containers.RepeatedScalarFieldContainer[str]
    tier: str
    person_sites: int
    epsilon_one_site: float
    epsilon_person: float
    groups: int
    wrap_rate: float
    def __init__(self, job_id: _Optional[str] = ..., name: _Optional[str] = ..., state: _Optional[str] = ..., detail: _Optional[str] = ..., round: _Optional[int] = ..., rounds: _Optional[int] = ..., attempts_aborted: _Optional[int] = ..., submitted_at_s: _Optional[int] = ..., metrics: _Optional[_Mapping[str, float]] = ..., sites: _Optional[_Iterable[_Union[SiteProgress, _Mapping]]] = ..., elapsed_s: _Optional[float] = ..., rounds_per_s: _Optional[float] = ..., delta_dp: _Optional[float] = ..., unit: _Optional[str] = ..., mode: _Optional[str] = ..., log: _Optional[_Iterable[str]] = ..., tier: _Optional[str] = ..., person_sites: _Optional[int] = ..., epsilon_one_site: _Optional[float] = ..., epsilon_person: _Optional[float] = ..., groups: _Optional[int] = ..., wrap_rate: _Optional[float] = ...) -> None: ...

class SiteProgress(_message.Message):
    __slots__ = ("site_id", "state", "epsilon", "bytes_up", "bytes_down", "train_s", "exchange_s", "wait_s", "rounds_in", "dropped", "detail", "group")
    SITE_ID_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    EPSILON_FIELD_NUMBER: _ClassVar[int]
    BYTES_UP_FIELD_NUMBER: _ClassVar[int]
    BYTES_DOWN_FIELD_NUMBER: _ClassVar[int]
    TRAIN_S_FIELD_NUMBER: _ClassVar[int]
    EXCHANGE_S_FIELD_NUMBER: _ClassVar[int]
    WAIT_S_FIELD_NUMBER: _ClassVar[int]
    ROUNDS_IN_FIELD_NUMBER: _ClassVar[int]
    DROPPED_FIELD_NUMBER: _ClassVar[int]
    DETAIL_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    site_id: str
    state: str
    epsilon: float
    bytes_up: int
    bytes_down: int
    train_s: float
    exchange_s: float
    wait_s: float
    rounds_in: int
    dropped: int
    detail: str
    group: int
    def __init__(self, site_id: _Optional[str] = ..., state: _Optional[str] = ..., epsilon: _Optional[float] = ..., bytes_up: _Optional[int] = ..., bytes_down: _Optional[int] = ..., train_s: _Optional[float] = ..., exchange_s: _Optional[float] = ..., wait_s: _Optional[float] = ..., rounds_in: _Optional[int] = ..., dropped: _Optional[int] = ..., detail: _Optional[str] = ..., group: _Optional[int] = ...) -> None: ...

class GetJobRequest(_message.Message):
    __slots__ = ("job_id",)
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    job_id: str
    def __init__(self, job_id: _Optional[str] = ...) -> None: ...

class GetJobResponse(_message.Message):
    __slots__ = ("job", "job_toml")
    JOB_FIELD_NUMBER: _ClassVar[int]
    JOB_TOML_FIELD_NUMBER: _ClassVar[int]
    job: Job
    job_toml: bytes
    def __init__(self, job: _Optional[_Union[Job, _Mapping]] = ..., job_toml: _Optional[bytes] = ...) -> None: ...

class GetHistoryRequest(_message.Message):
    __slots__ = ("job_id",)
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    job_id: str
    def __init__(self, job_id: _Optional[str] = ...) -> None: ...

class RoundRecord(_message.Message):
    __slots__ = ("round", "attempt", "survivors", "elapsed_s", "metrics", "groups", "wrap_rate")
    class MetricsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    ROUND_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    SURVIVORS_FIELD_NUMBER: _ClassVar[int]
    ELAPSED_S_FIELD_NUMBER: _ClassVar[int]
    METRICS_FIELD_NUMBER: _ClassVar[int]
    GROUPS_FIELD_NUMBER: _ClassVar[int]
    WRAP_RATE_FIELD_NUMBER: _ClassVar[int]
    round: int
    attempt: int
    survivors: int
    elapsed_s: float
    metrics: _containers.ScalarMap[str, float]
    groups: int
    wrap_rate: float
    def __init__(self, round: _Optional[int] = ..., attempt: _Optional[int] = ..., survivors: _Optional[int] = ..., elapsed_s: _Optional[float] = ..., metrics: _Optional[_Mapping[str, float]] = ..., groups: _Optional[int] = ..., wrap_rate: _Optional[float] = ...) -> None: ...

class GetHistoryResponse(_message.Message):
    __slots__ = ("rounds", "vector_spec", "encoding", "app_sha256", "manifest_hash")
    ROUNDS_FIELD_NUMBER: _ClassVar[int]
    VECTOR_SPEC_FIELD_NUMBER: _ClassVar[int]
    ENCODING_FIELD_NUMBER: _ClassVar[int]
    APP_SHA256_FIELD_NUMBER: _ClassVar[int]
    MANIFEST_HASH_FIELD_NUMBER: _ClassVar[int]
    rounds: _containers.RepeatedCompositeFieldContainer[RoundRecord]
    vector_spec: bytes
    encoding: bytes
    app_sha256: bytes
    manifest_hash: bytes
    def __init__(self, rounds: _Optional[_Iterable[_Union[RoundRecord, _Mapping]]] = ..., vector_spec: _Optional[bytes] = ..., encoding: _Optional[bytes] = ..., app_sha256: _Optional[bytes] = ..., manifest_hash: _Optional[bytes] = ...) -> None: ...

class WatchJobRequest(_message.Message):
    __slots__ = ("job_id",)
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    job_id: str
    def __init__(self, job_id: _Optional[str] = ...) -> None: ...

class WatchJobResponse(_message.Message):
    __slots__ = ("job",)
    JOB_FIELD_NUMBER: _ClassVar[int]
    job: Job
    def __init__(self, job: _Optional[_Union[Job, _Mapping]] = ...) -> None: ...

class StopJobRequest(_message.Message):
    __slots__ = ("job_id", "why")
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    WHY_FIELD_NUMBER: _ClassVar[int]
    job_id: str
    why: str
    def __init__(self, job_id: _Optional[str] = ..., why: _Optional[str] = ...) -> None: ...

class StopJobResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ExportModelRequest(_message.Message):
    __slots__ = ("job_id",)
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    job_id: str
    def __init__(self, job_id: _Optional[str] = ...) -> None: ...

class ExportModelResponse(_message.Message):
    __slots__ = ("size", "data")
    SIZE_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    size: int
    data: bytes
    def __init__(self, size: _Optional[int] = ..., data: _Optional[bytes] = ...) -> None: ...
