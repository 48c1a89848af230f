"""The two roots of every error, by whose fault it is.

``PeerError``: the other side sent bad, late or hostile data. Drop it; the reason is the metric
label and the code on the wire. ``UsageError``: our bug or the operator's configuration. Stop and
say what is wrong, where, and the mend.
"""

from enum import StrEnum


class Reason(StrEnum):
    """Why something was refused: one word for logs, metrics, the wire and tests."""

    MALFORMED = "malformed"
    TOO_LARGE = "too-large"
    UNAUTHENTICATED = "unauthenticated"
    REVOKED = "revoked"
    BAD_SIGNATURE = "bad-signature"
    WRONG_CONTEXT = "wrong-context"
    EQUIVOCATION = "equivocation"
    REPLAY = "replay"
    BELOW_THRESHOLD = "below-threshold"
    POLICY = "policy"
    BUDGET_EXHAUSTED = "budget-exhausted"
    BAD_SHARE = "bad-share"
    NOT_FINITE = "not-finite"
    SUSPECT_MODEL = "suspect-model"
    WRONG_SHAPE = "wrong-shape"
    WRONG_DIGEST = "wrong-digest"
    RING_WRAP = "ring-wrap"
    TIMEOUT = "timeout"
    TRAINER_FAILED = "trainer-failed"
    UNKNOWN_JOB = "unknown-job"
    TOKEN_EXPIRED = "token-expired"  # noqa: S105 - a reason, no secret
    TOKEN_USED = "token-used"  # noqa: S105 - a reason, no secret
    TOKEN_UNKNOWN = "token-unknown"  # noqa: S105 - a reason, no secret
    STOPPED = "stopped"
    INTERNAL = "internal"


class TidegateError(Exception):
    """Root of what Tidegate raises on purpose."""


class PeerError(TidegateError):
    """Bad or late data from the other side: drop it, with a reason."""

    def __init__(self, reason: Reason, message: str) -> None:
        super().__init__(message)
        self.reason = reason

    def __str__(self) -> str:
        return f"{self.reason}: {self.args[0]}"


class UsageError(TidegateError):
    """A mistake in our code or in somebody's configuration: stop and say how to mend it."""
