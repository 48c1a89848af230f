"""What the state machines ask of the shells around them, and what the shells answer.

Each machine takes one event at a time (a wire message of ``messages.py`` or a local event from
here) and gives a list of commands, to be carried out **in order**. Nothing here does I/O.
"""

from dataclasses import dataclass, field
from enum import IntEnum, StrEnum

from privacy.errors import Reason
from privacy.secagg.messages import (
    AbortRequest,
    AbortSignature,
    DealtShares,
    Fingerprint,
    GraphReveal,
    GraphReveals,
    MaskTerm,
    Published,
    Roster,
    ShareDelivery,
    SurvivorQuorum,
    SurvivorSet,
    SurvivorSignature,
    UnmaskShares,
)
from privacy.secagg.transport import Encapsulation

SiteMessage = GraphReveal | DealtShares | SurvivorSignature | UnmaskShares | AbortSignature
"""What a site sends to the aggregator (the masked vector goes by ``MaskAndUpload``)."""

AggregatorMessage = (
    Roster | GraphReveals | ShareDelivery | SurvivorSet | SurvivorQuorum | AbortRequest | Published
)
"""What the aggregator sends to a site."""


class Step(IntEnum):
    """The steps of SA-1, by the number of their durable slot; sparse cohorts begin with REVEAL."""

    REVEAL = 0
    SHARE_KEYS = 1
    MASKED_UPDATE = 2
    CONSISTENCY = 3
    UNMASK = 4


class Purpose(StrEnum):
    """What a signature is for; the message to sign already carries label and context."""

    SHARE = "share"
    SURVIVORS = "u3"
    ABORT = "abort"


# --- local events: both machines -----------------------------------------------------------------


@dataclass(frozen=True)
class Tick:
    """Time has reached ``next_deadline_s()``."""


# --- local events: site --------------------------------------------------------------------------


@dataclass(frozen=True)
class Signed:
    """The pinned key has signed what ``Sign`` asked for."""

    purpose: Purpose
    signature: bytes


@dataclass(frozen=True)
class Committed:
    """The slot of this step (and the charge, if asked) is durable; the mirror is written too."""

    step: Step


@dataclass(frozen=True)
class CommitRefused:
    """The slot was not written and nothing was charged, e.g. because the budget is gone."""

    step: Step
    reason: Reason
    message: str


@dataclass(frozen=True)
class Encapsulated:
    """The shell has drawn what ``Encapsulate`` asked for: one secret a key, in its order."""

    drawn: tuple[Encapsulation, ...]


# --- commands: site ------------------------------------------------------------------------------


@dataclass(frozen=True)
class Sign:
    """Sign these bytes, as they are, with the pinned signing key; answer with ``Signed``."""

    purpose: Purpose
    message: bytes


@dataclass(frozen=True)
class Encapsulate:
    """Draw a fresh secret for each of these keys (``ShareTransport.encapsulate``).

    Answer with ``Encapsulated``. Asked for once in an attempt, before anything of it is durable,
    and only where the suite's transport draws.
    """

    public_keys: tuple[bytes, ...]


@dataclass(frozen=True)
class Commit:
    """Make one step durable before any byte of it leaves; answer with ``Committed``.

    One transaction: the slot under (ctx, step), which must not exist yet; where ``begins`` is set
    also bundle serial and attempt; where ``charge`` is set also the ledger's charge. Then the
    mirror.

    Attributes:
        step: Number of the slot.
        input_digest: 32 bytes; names the accepted input.
        slot: What determines the output; holds no secret in the clear.
        charge: Charge the privacy ledger in the same transaction (step 2, unless a retry permit).
        begins: It is the attempt's first slot, which holds the roster.
    """

    step: Step
    input_digest: bytes
    slot: bytes
    charge: bool = False
    begins: bool = False


@dataclass(frozen=True)
class Send:
    """Send a message to the aggregator. Asked twice, the bytes are the same."""

    message: SiteMessage


@dataclass(frozen=True)
class MaskAndUpload:
    """Mask the update with exactly these terms (``masking.mask``) and upload it, resumably."""

    terms: tuple[MaskTerm, ...] = field(repr=False)


@dataclass(frozen=True)
class Abort:
    """Stop masking and uploading: the attempt is dead. Feed the machine until ``Erase`` comes."""

    reason: Reason
    message: str


@dataclass(frozen=True)
class Erase:
    """Erase the attempt's secrets (bundle seed, self-mask seed, coefficients). Always the last."""


SiteLocalEvent = Tick | Signed | Encapsulated | Committed | CommitRefused
SiteEvent = AggregatorMessage | SiteLocalEvent
SiteCommand = Sign | Encapsulate | Commit | Send | MaskAndUpload | Abort | Erase


# --- local events: aggregator --------------------------------------------------------------------


@dataclass(frozen=True)
class Start:
    """Begin: give out the roster. The first event of an attempt."""


@dataclass(frozen=True)
class UploadCompleted:
    """A masked vector is spooled whole and its digest was checked."""

    sender: Fingerprint
    digest: bytes


@dataclass(frozen=True)
class SiteLost:
    """A site is gone (connection lost, refused, or caught sending bad frames)."""

    sender: Fingerprint
    reason: Reason


@dataclass(frozen=True)
class SiteBack:
    """A lost site is connected again: it gets its latest message again."""

    sender: Fingerprint


@dataclass(frozen=True)
class GiveUp:
    """The attempt is not wanted any more, for instance because too few groups are left."""

    reason: Reason
    message: str


# --- commands: aggregator ------------------------------------------------------------------------


@dataclass(frozen=True)
class SendTo:
    """Send a message to one site; a lost message is a lost site (``SiteLost``)."""

    site: Fingerprint
    message: AggregatorMessage


@dataclass(frozen=True)
class FoldUpload:
    """Add this site's spooled vector into the sum: it is in U3 from now on."""

    sender: Fingerprint


@dataclass(frozen=True)
class UnmaskSum:
    """Apply these terms, with their signs as they are, to the folded sum (``masking.unmask``).

    ``surplus_seeds``: by level, for each survivor that revealed any, what draws the parts of its
    noise to subtract (``privacy.noise.subtract_noise``).
    """

    terms: tuple[MaskTerm, ...] = field(repr=False)
    surplus_seeds: tuple[tuple[bytes, ...], ...] = field(default=(), repr=False)


@dataclass(frozen=True)
class Publish:
    """The unmasked sum is final. ``SendTo(Published)`` for every site follows it."""

    transcript_hash: bytes
    survivors: tuple[Fingerprint, ...]


@dataclass(frozen=True)
class Blame:
    """A site sent something that it cannot have sent honestly; it is out of this attempt."""

    site: Fingerprint
    reason: Reason
    message: str


@dataclass(frozen=True)
class Accusation:
    """A site aborted because of another's share. Nothing is proven: let neither meet soon again."""

    by: Fingerprint
    against: Fingerprint


@dataclass(frozen=True)
class AbortAttempt:
    """The attempt is over with nothing revealed; ``AbortRequest`` goes to every live site."""

    reason: Reason
    message: str
    culprits: tuple[Fingerprint, ...]


ServerLocalEvent = Start | Tick | UploadCompleted | SiteLost | SiteBack | GiveUp
ServerEvent = SiteMessage | ServerLocalEvent
ServerCommand = SendTo | FoldUpload | UnmaskSum | Publish | Blame | Accusation | AbortAttempt
