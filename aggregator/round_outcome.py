"""What a finished round hands to the job's thread: one folded sum for each group that opened."""

from dataclasses import dataclass, field

from aggregator.live_attempt import LiveAttempt
from privacy.secagg.encoding import hash_of


@dataclass(frozen=True)
class OpenedAttempt:
    """An attempt whose sum is out.

    Attributes:
        attempt: Its accumulator and mask terms; folds may still be running.
        survivors: Site ids in the sum.
        transcript_hash: As published.
    """

    attempt: LiveAttempt
    survivors: tuple[str, ...]
    transcript_hash: bytes


@dataclass(frozen=True)
class RoundOutcome:
    """A finished round, for the job's thread.

    Attributes:
        opened: One where the cohort stayed whole, else one for each group that opened.
        cohort: Sites of the cohort, those of groups that failed included.
        progress: JSON as of this round.
        elapsed_s: The job's running time so far.
    """

    opened: tuple[OpenedAttempt, ...]
    cohort: int
    progress: bytes = field(repr=False)
    elapsed_s: float

    @property
    def survivors(self) -> tuple[str, ...]:
        """Return the site ids in any of the sums."""
        return tuple(name for one in self.opened for name in one.survivors)

    @property
    def transcript_hash(self) -> bytes:
        """Return the attempt's transcript hash, or one hash over those of the groups."""
        if len(self.opened) == 1:
            return self.opened[0].transcript_hash
        return hash_of("transcripts", *(one.transcript_hash for one in self.opened))
