"""Say and read refusals in gRPC: a status, a sentence, and the reason's word beside them.

The word travels in the trailing metadata; the status is for whoever knows gRPC alone. Both ends
take the pair from here, so that what one says is what the other reads.
"""

from typing import Any

import grpc

from privacy.errors import PeerError, Reason
from tidegate.convert import printable

REASON_KEY = "tidegate-reason"

_STATUS = {
    Reason.UNAUTHENTICATED: grpc.StatusCode.UNAUTHENTICATED,
    Reason.BAD_SIGNATURE: grpc.StatusCode.UNAUTHENTICATED,
    Reason.REVOKED: grpc.StatusCode.PERMISSION_DENIED,
    Reason.POLICY: grpc.StatusCode.PERMISSION_DENIED,
    Reason.BUDGET_EXHAUSTED: grpc.StatusCode.PERMISSION_DENIED,
    Reason.TOKEN_EXPIRED: grpc.StatusCode.PERMISSION_DENIED,
    Reason.TOKEN_USED: grpc.StatusCode.PERMISSION_DENIED,
    Reason.TOKEN_UNKNOWN: grpc.StatusCode.PERMISSION_DENIED,
    Reason.MALFORMED: grpc.StatusCode.INVALID_ARGUMENT,
    Reason.NOT_FINITE: grpc.StatusCode.INVALID_ARGUMENT,
    Reason.WRONG_SHAPE: grpc.StatusCode.INVALID_ARGUMENT,
    Reason.TOO_LARGE: grpc.StatusCode.RESOURCE_EXHAUSTED,
    Reason.WRONG_DIGEST: grpc.StatusCode.DATA_LOSS,
    Reason.UNKNOWN_JOB: grpc.StatusCode.NOT_FOUND,
    Reason.TIMEOUT: grpc.StatusCode.DEADLINE_EXCEEDED,
    Reason.INTERNAL: grpc.StatusCode.INTERNAL,
}
_REASON = {
    grpc.StatusCode.UNAUTHENTICATED: Reason.UNAUTHENTICATED,
    grpc.StatusCode.UNAVAILABLE: Reason.TIMEOUT,
    grpc.StatusCode.DEADLINE_EXCEEDED: Reason.TIMEOUT,
    grpc.StatusCode.CANCELLED: Reason.STOPPED,
    grpc.StatusCode.RESOURCE_EXHAUSTED: Reason.TOO_LARGE,
}
"""What a status alone stands for: gRPC itself refused, or the connection failed."""

_PASSING = frozenset(
    {
        grpc.StatusCode.UNAVAILABLE,
        grpc.StatusCode.DEADLINE_EXCEEDED,
        grpc.StatusCode.CANCELLED,
        grpc.StatusCode.UNKNOWN,
    }
)


def status_of(reason: Reason) -> grpc.StatusCode:
    """Return the gRPC status of a reason."""
    return _STATUS.get(reason, grpc.StatusCode.FAILED_PRECONDITION)


def trailer_of(reason: Reason) -> tuple[tuple[str, str], ...]:
    """Return the trailing metadata that names a reason."""
    return ((REASON_KEY, str(reason)),)


def peer_error_of(error: grpc.RpcError, what: str = "") -> PeerError:
    """Turn a failed call into the error that says what happened and where.

    Args:
        error: As grpc raised it.
        what: What was being done, for the sentence; empty where that is plain.
    """
    reason = _REASON.get(error.code(), Reason.INTERNAL)
    # The stubs take metadata for an opaque type; it is pairs of key and value.
    trailer: Any = error.trailing_metadata()
    for key, value in trailer or ():
        if key == REASON_KEY and value in set(Reason):
            reason = Reason(value)
    details = printable(error.details() or "") or error.code().name
    return PeerError(reason, f"{what}: {details}" if what else details)


def is_passing(error: grpc.RpcError) -> bool:
    """Say whether the same call may succeed later, on the same or on a new connection."""
    return error.code() in _PASSING
