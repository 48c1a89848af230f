"""What the round asks of the shell around it, and what the shell tells it.

The round takes one event at a time and gives commands, to be carried out **in order**. Nothing here
does I/O.
"""

from dataclasses import dataclass

from privacy.errors import Reason
from privacy.secagg.commands import ServerCommand, ServerEvent
from privacy.secagg.messages import AbortRequest, Fingerprint, RetryProof
from privacy.secagg.server import ServerAttempt

# --- events ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class SiteJoined:
    """A site that accepted the job is connected, and can be asked to train."""

    site: Fingerprint


@dataclass(frozen=True)
class SiteLeft:
    """A site is gone: connection lost, revoked, or caught sending bad frames."""

    site: Fingerprint
    reason: Reason


@dataclass(frozen=True)
class SiteReady:
    """A site has an update, and a key bundle of it is in stock."""

    site: Fingerprint


@dataclass(frozen=True)
class SiteNotReady:
    """A site has no update for this round.

    Attributes:
        site: Which one.
        why: In words, for people.
        final: It will not have one in any later round either (its budget is gone).
    """

    site: Fingerprint
    why: str
    final: bool = False


@dataclass(frozen=True)
class AttemptOpened:
    """Number and cohort of an attempt are durable; here is its machine."""

    attempt: int
    machine: ServerAttempt


@dataclass(frozen=True)
class Exchanged:
    """Something for a running attempt: a site's frame, or a completed upload."""

    attempt: int
    event: ServerEvent


@dataclass(frozen=True)
class DeadlinePassed:
    """Time has reached ``next_deadline_s()``."""


RoundEvent = (
    SiteJoined | SiteLeft | SiteReady | SiteNotReady | AttemptOpened | Exchanged | DeadlinePassed
)

# --- commands -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Train:
    """Ask these sites to train for this round."""

    sites: tuple[Fingerprint, ...]


@dataclass(frozen=True)
class Tell:
    """Send these to a site, before it is asked to train: an abort, a proof of the retry rule."""

    site: Fingerprint
    messages: tuple[AbortRequest | RetryProof, ...]


@dataclass(frozen=True)
class OpenAttempt:
    """Draw bundles, make number and cohort durable, then answer with ``AttemptOpened``.

    Attributes:
        attempt: Its number, which no other of the round has: neither a try before nor a group.
        cohort: Sorted fingerprints.
        group: From 1; 0 where the cohort is not in groups.
    """

    attempt: int
    cohort: tuple[Fingerprint, ...]
    group: int = 0


@dataclass(frozen=True)
class Exchange:
    """A command of a running attempt."""

    attempt: int
    command: ServerCommand


@dataclass(frozen=True)
class AttemptOver:
    """The attempt ended with nothing revealed; its uploads can go."""

    attempt: int
    reason: Reason
    message: str


@dataclass(frozen=True)
class AttemptUnused:
    """The attempt's sum is out, and the round goes on without it: too few groups opened."""

    attempt: int


@dataclass(frozen=True)
class SumOpened:
    """An attempt's sum is out; its sites are to hear of it.

    Attributes:
        attempt: Its number.
        transcript_hash: As SA-1 publishes it.
        survivors: Whose updates it holds.
    """

    attempt: int
    transcript_hash: bytes
    survivors: tuple[Fingerprint, ...]


@dataclass(frozen=True)
class RoundDone:
    """Enough sums are out, one for each group; ``SumOpened`` came for each of them.

    Attributes:
        opened: In the order of their attempts.
        cohort: Sites of the cohort, those of failed groups included.
    """

    opened: tuple[SumOpened, ...]
    cohort: int


@dataclass(frozen=True)
class RoundFailed:
    """The round was tried as often as the job allows."""

    reason: Reason
    message: str


RoundEnd = AttemptOver | AttemptUnused | SumOpened | RoundDone | RoundFailed
"""How an attempt, or the round, ended."""

RoundCommand = Train | Tell | OpenAttempt | Exchange | RoundEnd
