"""What a site and the aggregator say to each other, as values (see v1/federation.proto).

The frames of the secure exchange itself are in ``privacy.secagg.messages``. ``tidegate.convert``
is the only place that turns bytes into these, and checks every bound on the way.
"""

from dataclasses import dataclass, field

from privacy.secagg.messages import (
    AbortRequest,
    AbortSignature,
    DealtShares,
    GraphReveal,
    GraphReveals,
    RetryProof,
    Roster,
    ShareDelivery,
    SignedBundle,
    SurvivorQuorum,
    SurvivorSet,
    SurvivorSignature,
    UnmaskShares,
)
from tidegate.broadcast import Broadcast, ContentName

PROTOCOL = "tidegate/1.0"
TRAIN = "train"
EVALUATE = "evaluate"


def is_evaluation(purpose: str) -> bool:
    """Tell whether an update for this purpose is an evaluation's, by the word before the dot."""
    return purpose.partition(".")[0] == EVALUATE


@dataclass(frozen=True)
class Hello:
    """Site to aggregator, first on a session: who speaks which protocol, with which key stock."""

    protocol: str
    instance_id: bytes
    device: str
    jobs: tuple[str, ...]


@dataclass(frozen=True)
class Welcome:
    """Aggregator to site, the answer: the sealed manifest as signed, or empty before sealing."""

    protocol: str
    manifest: bytes
    manifest_signature: bytes


@dataclass(frozen=True)
class BundleRequest:
    """Aggregator to site: put this many further one-time bundles into stock."""

    count: int


@dataclass(frozen=True)
class BundleStock:
    """Site to aggregator: one-time bundles for attempts to come."""

    bundles: tuple[SignedBundle, ...]


@dataclass(frozen=True)
class JobOffer:
    """Aggregator to site: a job, whole enough for the site's policy to judge it."""

    job_id: str
    job_toml: bytes
    app_sha256: bytes
    app_size: int
    vector_spec: bytes
    encoding: bytes
    evaluation_encoding: bytes = b""


@dataclass(frozen=True)
class JobReply:
    """Site to aggregator: the policy's verdict on an offer."""

    job_id: str
    accepted: bool
    reason: str
    detail: str


@dataclass(frozen=True)
class TrainRequest:
    """Aggregator to site: make an update from this model version and say when ready.

    Attributes:
        round: The number of the exchange to follow: strictly increasing, whatever the purpose.
        broadcast: Of the version, which never falls.
        chain_head: The version chain up to and with it.
        log: Names the log of versions up to it, for a site that does not hold the one before.
        purpose: ``TRAIN`` or ``EVALUATE``; a Flower app's own action may follow a dot.
        config: A Flower message's settings (``tidegate.flower_config``); empty for other work.
        announcement: What the version says about the encoding of updates from it; empty where the
            job's plan says all.
    """

    job_id: str
    round: int
    broadcast: Broadcast
    chain_head: bytes
    log: ContentName
    purpose: str = TRAIN
    config: bytes = b""
    announcement: bytes = field(default=b"", repr=False)

    @property
    def version(self) -> int:
        """Return the model version."""
        return self.broadcast.version

    @property
    def announced(self) -> bytes:
        """Return what is announced for this purpose: evaluations go by a plan that says all."""
        return b"" if is_evaluation(self.purpose) else self.announcement


@dataclass(frozen=True)
class Ready:
    """Site to aggregator: an update lies ready; times in seconds since the last one, by kind."""

    job_id: str
    round: int
    version: int
    epsilon_spent: float
    train_s: float
    exchange_s: float
    wait_s: float


@dataclass(frozen=True)
class NotReady:
    """Site to aggregator: no update this round, and why."""

    job_id: str
    round: int
    reason: str
    detail: str
    epsilon_spent: float


@dataclass(frozen=True)
class AttemptFailed:
    """Site to aggregator: this site left the attempt, and why."""

    ctx: bytes
    reason: str
    detail: str


@dataclass(frozen=True)
class AttemptResult:
    """Aggregator to site: the attempt's transcript hash and who is in the sum, by index."""

    ctx: bytes
    transcript_hash: bytes
    survivors: tuple[int, ...]


@dataclass(frozen=True)
class JobEnded:
    """Aggregator to site: this job is over: finished, failed or stopped."""

    job_id: str
    state: str
    detail: str


@dataclass(frozen=True)
class Refused:
    """Aggregator to site: what you sent was refused, and why."""

    reason: str
    detail: str


SiteMessage = (
    Hello
    | BundleStock
    | JobReply
    | Ready
    | NotReady
    | GraphReveal
    | DealtShares
    | SurvivorSignature
    | UnmaskShares
    | AbortSignature
    | AttemptFailed
)
"""What a site may send on its session."""

AggregatorMessage = (
    Welcome
    | BundleRequest
    | JobOffer
    | TrainRequest
    | Roster
    | GraphReveals
    | ShareDelivery
    | SurvivorSet
    | SurvivorQuorum
    | AbortRequest
    | RetryProof
    | AttemptResult
    | JobEnded
    | Refused
)
"""What the aggregator may send on a session."""
