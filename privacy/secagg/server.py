"""One attempt of SA-1 at the aggregator: a state machine without I/O."""

from dataclasses import dataclass

from privacy.secagg.commands import ServerCommand, ServerEvent
from privacy.secagg.keys import Suite
from privacy.secagg.messages import (
    AttemptContext,
    CohortPlan,
    Fingerprint,
    RetryVote,
    SignedBundle,
)


@dataclass(frozen=True)
class StepTimeouts:
    """Seconds from the start of each step until it goes on with those who answered."""

    share_keys_s: float = 30.0
    masked_update_s: float = 300.0
    consistency_s: float = 30.0
    unmask_s: float = 30.0


@dataclass(frozen=True)
class ServerConfig:
    """Everything that fixes one attempt at the aggregator.

    Attributes:
        suite: The manifest's suite.
        context: Names of the attempt; its number is durable before use.
        bundles: The cohort U1, already verified (``rules.check_bundle``), sorted by fingerprint.
        plan: The frozen plan; bases sorted by fingerprint, one for each bundle.
        pinned: SPKI (DER) by site.
        timeouts: See ``StepTimeouts``.
    """

    suite: Suite
    context: AttemptContext
    bundles: tuple[SignedBundle, ...]
    plan: CohortPlan
    pinned: dict[Fingerprint, bytes]
    timeouts: StepTimeouts = StepTimeouts()


class ServerAttempt:
    """Take a cohort from its roster to an unmasked sum, or to an abort that reveals nothing.

    Deterministic: replaying the journal of events gives the same commands. Begins with ``Start``.
    Each step ends when every live member has answered, or at its deadline.
    """

    def __init__(self, config: ServerConfig) -> None:
        """Check the cohort.

        Raises:
            UsageError: The cohort, the plan or the bundles break a rule that the sites would refuse.
        """
        raise NotImplementedError

    def handle(self, event: ServerEvent, now_s: float) -> list[ServerCommand]:
        """Take one event at a time (Unix seconds) and give the commands it leads to, in order.

        Raises:
            PeerError: The frame is dropped and nothing changes (wrong context, unknown sender, a
                step that is over, a second and different answer).
        """
        raise NotImplementedError

    def next_deadline_s(self) -> float | None:
        """Return when to send ``Tick`` if nothing comes, Unix seconds; None if never."""
        raise NotImplementedError

    @property
    def votes(self) -> tuple[RetryVote, ...]:
        """What was signed for the retry rule so far: aborts, and survivor sets with their sets."""
        raise NotImplementedError
