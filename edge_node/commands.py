"""What the participant asks of the shell around it, and what the shell tells it.

The participant takes one event at a time, a message of the aggregator or a local event from here,
and gives commands to be carried out **in order**. Nothing here does I/O.
"""

from dataclasses import dataclass, field

from privacy.errors import PeerError, Reason
from privacy.pipeline import EncodingPlan
from privacy.secagg.commands import Commit, Purpose, Step
from privacy.secagg.messages import (
    AbortRequest,
    Fingerprint,
    GraphReveals,
    MaskTerm,
    Roster,
    ShareDelivery,
    SignedBundle,
    SurvivorQuorum,
    SurvivorSet,
)
from privacy.secagg.site import SiteSecrets
from privacy.secagg.transport import Encapsulation
from tidegate.broadcast import Broadcast, ContentName
from tidegate.jobfile.job import MAX_ROUNDS
from tidegate.manifest import Manifest
from tidegate.messages import (
    TRAIN,
    AggregatorMessage,
    AttemptResult,
    JobOffer,
    SiteMessage,
    is_evaluation,
)


@dataclass(frozen=True)
class UpdateKey:
    """What an update is made for, and good for: one exchange, one model version, one purpose."""

    round: int
    version: int
    purpose: str = TRAIN


@dataclass(frozen=True)
class WantedVersion:
    """A version to train from, as the aggregator announced it: broadcast, chain head, log.

    ``announcement`` is the one that the broadcast names.
    """

    broadcast: Broadcast
    head: bytes
    log: ContentName
    announcement: bytes = field(default=b"", repr=False)


@dataclass(frozen=True)
class AcceptedJob:
    """A job that this site agreed to.

    Attributes:
        plan: The encoding as offered and checked.
        evaluation: That of evaluations; None where the job has none.
        exchanges: How many the job's epsilon is counted for: no request has a higher number.
        step_timeout_s: Seconds without progress after which the site leaves an attempt.
        previous_survivors: Who was in the job's last sum before a restart, as the store knows it.
    """

    job_id: str
    plan: EncodingPlan
    step_timeout_s: float = 600.0
    previous_survivors: frozenset[Fingerprint] | None = None
    evaluation: EncodingPlan | None = None
    exchanges: int = MAX_ROUNDS

    def plan_for(self, purpose: str) -> EncodingPlan:
        """Give the encoding of updates for a purpose.

        Raises:
            PeerError: POLICY: the job has no evaluation.
        """
        if not is_evaluation(purpose):
            return self.plan
        if self.evaluation is None:
            raise PeerError(Reason.POLICY, "the job declares no evaluation, so none is made")
        return self.evaluation


# --- local events --------------------------------------------------------------------------------


@dataclass(frozen=True)
class Connected:
    """A session is open."""


@dataclass(frozen=True)
class Disconnected:
    """The session is gone; the shell dials again."""


@dataclass(frozen=True)
class JobJudged:
    """The shell has looked at an offer: accepted, or refused with a reason and a sentence."""

    job_id: str
    accepted: AcceptedJob | None
    reason: str = ""
    detail: str = ""


@dataclass(frozen=True)
class Trained:
    """An update lies ready: what it was made for, and the epsilon spent so far."""

    job_id: str
    key: UpdateKey
    epsilon_spent: float


@dataclass(frozen=True)
class TrainFailed:
    """There is no update: the budget is gone, the app failed, the model did not arrive."""

    job_id: str
    key: UpdateKey
    reason: Reason
    detail: str
    epsilon_spent: float


@dataclass(frozen=True)
class RosterArrived:
    """A roster with what the shell adds: the own bundle from stock and the attempt's secrets.

    Attributes:
        own_bundle: None when the roster holds no bundle that lies in this site's stock.
        secrets: The bundle's seed, two fresh seeds, the ready update's; None likewise.
        last_accepted: (round, attempt) of the last roster accepted for the job, durable.
    """

    roster: Roster
    own_bundle: SignedBundle | None
    secrets: SiteSecrets | None = field(repr=False)
    last_accepted: tuple[int, int]


@dataclass(frozen=True)
class AttemptSigned:
    """The pinned key has signed what ``SignStep`` asked for."""

    ctx: bytes
    purpose: Purpose
    signature: bytes


@dataclass(frozen=True)
class AttemptEncapsulated:
    """The secrets that ``EncapsulateStep`` asked for are drawn, one a key."""

    ctx: bytes
    drawn: tuple[Encapsulation, ...]


@dataclass(frozen=True)
class StepCommitted:
    """The slot, and the charge if one was asked, are durable; the mirror too."""

    ctx: bytes
    step: Step


@dataclass(frozen=True)
class StepRefused:
    """The slot was not written and nothing was charged."""

    ctx: bytes
    step: Step
    reason: Reason
    message: str


@dataclass(frozen=True)
class UploadFailed:
    """The masked update was refused by the aggregator; the attempt goes on without it."""

    ctx: bytes
    reason: Reason
    message: str


@dataclass(frozen=True)
class TimePassed:
    """Time has reached ``next_deadline_s()``."""


LocalEvent = (
    Connected
    | Disconnected
    | JobJudged
    | Trained
    | TrainFailed
    | RosterArrived
    | AttemptSigned
    | AttemptEncapsulated
    | StepCommitted
    | StepRefused
    | UploadFailed
    | TimePassed
)
ParticipantEvent = AggregatorMessage | LocalEvent
AttemptEvent = (
    AttemptSigned
    | AttemptEncapsulated
    | StepCommitted
    | StepRefused
    | UploadFailed
    | GraphReveals
    | ShareDelivery
    | SurvivorSet
    | SurvivorQuorum
    | AbortRequest
    | AttemptResult
)
"""What is for one attempt, named by its ctx."""


# --- commands ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class SendMessage:
    """Send a message on the session; without one it is dropped (states are sent anew)."""

    message: SiteMessage


@dataclass(frozen=True)
class PinManifest:
    """Pin the sealed manifest, durably; what follows in the list relies on it."""

    raw: bytes
    signature: bytes
    manifest: Manifest


@dataclass(frozen=True)
class RefillBundles:
    """Make one-time bundles, put them into stock, then send them; in the background."""

    count: int


@dataclass(frozen=True)
class ConsiderJob:
    """Check an offer against policy, plan, budget and app; answer with ``JobJudged``."""

    offer: JobOffer


@dataclass(frozen=True)
class Train:
    """Come to this model version and make an update from it; answer ``Trained``/``TrainFailed``."""

    job_id: str
    key: UpdateKey
    wanted: WantedVersion
    config: bytes = b""


@dataclass(frozen=True)
class SignStep:
    """Sign these bytes with the pinned key; answer with ``AttemptSigned``."""

    ctx: bytes
    purpose: Purpose
    message: bytes


@dataclass(frozen=True)
class EncapsulateStep:
    """Draw a secret for each of these keys of a suite; answer with ``AttemptEncapsulated``."""

    ctx: bytes
    suite: str
    public_keys: tuple[bytes, ...]


@dataclass(frozen=True)
class CommitStep:
    """Make a step durable; answer with ``StepCommitted`` or ``StepRefused``.

    Attributes:
        facts: With the first slot: what ``Exchange.restore`` needs after a crash.
        survivors: At step 4 in mode ``none``: U3 of the sum that may be opened from then on; kept
            with the job, so that a restart does not forget it.
        serves: At step 2 of a retry: the attempt that the held update was last sent in, whose
            charge serves this one from now on; empty otherwise.
    """

    ctx: bytes
    job_id: str
    key: UpdateKey
    attempt: int
    commit: Commit
    facts: bytes = b""
    survivors: tuple[Fingerprint, ...] = ()
    serves: bytes = b""


@dataclass(frozen=True)
class UploadUpdate:
    """Mask the job's update with exactly these terms and upload it, resumably."""

    ctx: bytes
    job_id: str
    ring_bits: int
    terms: tuple[MaskTerm, ...] = field(repr=False)


@dataclass(frozen=True)
class StopUpload:
    """Stop masking and uploading for an attempt that is dead."""

    ctx: bytes


@dataclass(frozen=True)
class EraseAttempt:
    """Erase an attempt's secrets, everywhere."""

    ctx: bytes


@dataclass(frozen=True)
class HoldUpdate:
    """Erase an attempt's secrets as ``EraseAttempt`` does, but keep its charged update.

    It is held, wrapped, with the attempt's slots, until a proof frees it or ``DropUpdate`` comes.
    """

    ctx: bytes
    job_id: str


@dataclass(frozen=True)
class RecallUpdate:
    """Lay the held update ready again, as what it was made for: a proof has freed it."""

    job_id: str
    key: UpdateKey


@dataclass(frozen=True)
class DropUpdate:
    """Forget the job's updates, ready or held: released, or of no use any more."""

    job_id: str


@dataclass(frozen=True)
class SettleUpdate:
    """The update is in a published sum: what it said leaves the job's residual."""

    job_id: str
    key: UpdateKey


@dataclass(frozen=True)
class FinishJob:
    """Stop the job's trainer and close its books."""

    job_id: str
    state: str


@dataclass(frozen=True)
class Note:
    """Write a line to the log: what happened, and facts."""

    event: str
    facts: dict[str, object]
    warning: bool = False


ParticipantCommand = (
    SendMessage
    | PinManifest
    | RefillBundles
    | ConsiderJob
    | Train
    | SignStep
    | EncapsulateStep
    | CommitStep
    | UploadUpdate
    | StopUpload
    | EraseAttempt
    | HoldUpdate
    | RecallUpdate
    | DropUpdate
    | SettleUpdate
    | FinishJob
    | Note
)
