"""Read the aggregator's refusals: a gRPC status becomes the `PeerError` that it stands for."""

from typing import Any

import grpc

from privacy.errors import PeerError, Reason
from tidegate.convert import printable

_REASON_KEY = "tidegate-reason"
_BY_STATUS = {
    grpc.StatusCode.UNAUTHENTICATED: Reason.UNAUTHENTICATED,
    grpc.StatusCode.UNAVAILABLE: Reason.TIMEOUT,
    grpc.StatusCode.DEADLINE_EXCEEDED: Reason.TIMEOUT,
    grpc.StatusCode.CANCELLED: Reason.STOPPED,
    grpc.StatusCode.RESOURCE_EXHAUSTED: Reason.TOO_LARGE,
}


def peer_error_of(error: grpc.RpcError, what: str) -> PeerError:
    """Turn a failed call into the error that says what happened and where.

    Args:
        error: As grpc raised it.
        what: What was being done, for the sentence.
    """
    reason = _BY_STATUS.get(error.code(), Reason.INTERNAL)
    trailer: Any = error.trailing_metadata()
    for key, value in trailer or ():
        if key == _REASON_KEY and value in set(Reason):
            reason = Reason(value)
    details = printable(error.details() or "")
    return PeerError(reason, f"{what}: {details or error.code().name}")


def is_passing(error: grpc.RpcError) -> bool:
    """Say whether the same call may succeed later, on the same or on a new connection."""
    return error.code() in {
        grpc.StatusCode.UNAVAILABLE,
        grpc.StatusCode.DEADLINE_EXCEEDED,
        grpc.StatusCode.CANCELLED,
        grpc.StatusCode.UNKNOWN,
    }
