"""What travels outside a site's session, as values: enrolment, transfers, the operator's requests.

``tidegate.convert`` makes them from bytes and checks every bound on the way.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class EnrolmentRequest:
    """Site to aggregator: redeem a token's secret for a certificate; both keys stay at the site."""

    secret: str = field(repr=False)
    csr_der: bytes
    signing_spki: bytes
    signing_proof: bytes


@dataclass(frozen=True)
class EnrolmentGrant:
    """Aggregator to site: the certificate and the trust roots, to be checked against the token."""

    site_id: str
    certificate_pem: bytes
    ca_pem: bytes
    operator_spki: bytes


@dataclass(frozen=True)
class UploadHeader:
    """Site to aggregator: the masked update of attempt ``ctx``, its size and digest.

    ``epsilon_spent`` is the site's ledger after this upload's charge (advisory; 0 where infinite).
    """

    ctx: bytes
    size: int
    sha256: bytes
    epsilon_spent: float = 0.0


@dataclass(frozen=True)
class UploadReceipt:
    """Aggregator to site: how much of an upload is held, and its digest once whole."""

    received: int
    sha256: bytes


@dataclass(frozen=True)
class DownloadRequest:
    """Site to aggregator: send the content of this digest, from an offset on."""

    sha256: bytes
    offset: int


@dataclass(frozen=True)
class Chunk:
    """A run of bytes of an upload or a download, and where it begins. ``size`` is of the whole."""

    offset: int
    data: bytes = field(repr=False)
    size: int | None = None


@dataclass(frozen=True)
class TokenRequest:
    """Operator to aggregator: make a token for a site, valid for this long."""

    site_id: str
    valid_s: int


@dataclass(frozen=True)
class TokenGrant:
    """Aggregator to operator: the secret, once, and what the token must say beside it."""

    secret: str = field(repr=False)
    expires_at_s: int
    enrolment_address: str
    site_address: str
    ca_pem: bytes


@dataclass(frozen=True)
class Revocation:
    """Operator to aggregator: cut a site off, and why."""

    site_id: str
    why: str


@dataclass(frozen=True)
class SealedManifest:
    """Operator to aggregator: manifest bytes and the operator's signature."""

    manifest: bytes
    signature: bytes


@dataclass(frozen=True)
class SubmitHeader:
    """Operator to aggregator: a job, and the sizes and digests of app and first model to follow.

    With ``dry_run`` the job is only checked, and its encoding plan comes back.
    """

    job_toml: bytes
    vector_spec: bytes
    app_size: int
    app_sha256: bytes
    model_size: int
    model_sha256: bytes
    dry_run: bool = False


@dataclass(frozen=True)
class StopRequest:
    """Operator to aggregator: stop a job, and why."""

    job_id: str
    why: str


@dataclass(frozen=True)
class SiteRecord:
    """Aggregator to operator: one site of the registry."""

    site_id: str
    node_fingerprint: bytes
    signing_spki: bytes
    state: str
    device: str
    last_seen_s: int
    bundles: int


@dataclass(frozen=True)
class SiteProgress:
    """Aggregator to operator: what one site did in a job; advisory, its own ledger counts."""

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
    group: int = 0


@dataclass(frozen=True)
class JobStatus:
    """Aggregator to operator: where a job stands.

    Attributes:
        tier: Who is trusted with the clip (privacy.md), shown beside every epsilon.
        person_sites: In how many sites one person's data may lie, by the sealed manifest; 0 where
            the job has no differential privacy.
        epsilon_one_site: Of this job's plan and every aborted attempt, for a person in one site.
        epsilon_person: The same for one in ``person_sites``; at most 10^9, which stands for no
            bound at all.
        groups: Into how many groups each cohort falls; 0 where it stays whole.
        wrap_rate: Estimated share of coordinates of the newest sum that wrapped around the ring.
    """

    job_id: str
    name: str
    state: str
    detail: str
    round: int
    rounds: int
    attempts_aborted: int
    submitted_at_s: int
    metrics: Mapping[str, float]
    sites: tuple[SiteProgress, ...]
    elapsed_s: float
    rounds_per_s: float
    delta_dp: float
    unit: str
    mode: str
    log: tuple[str, ...]
    tier: str = ""
    person_sites: int = 0
    epsilon_one_site: float = 0.0
    epsilon_person: float = 0.0
    groups: int = 0
    wrap_rate: float = 0.0


@dataclass(frozen=True)
class RoundRecord:
    """Aggregator to operator: one finished round as reports show it.

    Attributes:
        round: Its number.
        attempt: The attempt that succeeded; those before it were aborted.
        survivors: Sites in the sum.
        elapsed_s: Seconds of the job's running time when it was done.
        metrics: What was shown of it.
        groups: How many groups' sums were combined; 0 where there was one sum.
        wrap_rate: Estimated share of coordinates that wrapped around the ring.
    """

    round: int
    attempt: int
    survivors: int
    elapsed_s: float
    metrics: Mapping[str, float]
    groups: int = 0
    wrap_rate: float = 0.0


@dataclass(frozen=True)
class JobHistory:
    """Aggregator to operator: what a report needs of a job besides its status.

    Attributes:
        rounds: Finished rounds, oldest first, thinned to a curve's worth.
        vector_spec: Canonical bytes of the model's spec.
        encoding: Canonical bytes of the encoding plan.
        app_sha256: Digest of the app bundle.
        manifest_hash: Of the sealed manifest.
    """

    rounds: tuple[RoundRecord, ...]
    vector_spec: bytes
    encoding: bytes
    app_sha256: bytes
    manifest_hash: bytes
