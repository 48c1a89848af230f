"""Say refusals in gRPC: a status, a sentence, and the reason's word in the trailing metadata."""

from collections.abc import Iterable, Mapping
from typing import Protocol

import grpc

from privacy.errors import PeerError, Reason, UsageError

REASON_KEY = "tidegate-reason"

_UNAUTHENTICATED = {Reason.UNAUTHENTICATED, Reason.BAD_SIGNATURE}
_DENIED = {Reason.REVOKED, Reason.POLICY, Reason.BUDGET_EXHAUSTED}
_DENIED |= {Reason.TOKEN_EXPIRED, Reason.TOKEN_USED, Reason.TOKEN_UNKNOWN}
_OTHERS = {
    Reason.MALFORMED: grpc.StatusCode.INVALID_ARGUMENT,
    Reason.NOT_FINITE: grpc.StatusCode.INVALID_ARGUMENT,
    Reason.WRONG_SHAPE: grpc.StatusCode.INVALID_ARGUMENT,
    Reason.TOO_LARGE: grpc.StatusCode.RESOURCE_EXHAUSTED,
    Reason.WRONG_DIGEST: grpc.StatusCode.DATA_LOSS,
    Reason.UNKNOWN_JOB: grpc.StatusCode.NOT_FOUND,
    Reason.TIMEOUT: grpc.StatusCode.DEADLINE_EXCEEDED,
    Reason.INTERNAL: grpc.StatusCode.INTERNAL,
}


class AbortableContext(Protocol):
    """The part of a gRPC servicer context that is used here."""

    def auth_context(self) -> Mapping[str, Iterable[bytes]]:
        """Return what TLS knows of the peer."""
        raise NotImplementedError

    async def abort(
        self, code: grpc.StatusCode, details: str, trailing_metadata: tuple[tuple[str, str], ...]
    ) -> None:
        """End the call with a status."""


def status_of(reason: Reason) -> grpc.StatusCode:
    """Return the gRPC status of a reason."""
    if reason in _UNAUTHENTICATED:
        return grpc.StatusCode.UNAUTHENTICATED
    if reason in _DENIED:
        return grpc.StatusCode.PERMISSION_DENIED
    return _OTHERS.get(reason, grpc.StatusCode.FAILED_PRECONDITION)


async def refuse(context: AbortableContext, error: PeerError | UsageError) -> None:
    """End a call with an error; does not return."""
    if isinstance(error, UsageError):
        code, reason = grpc.StatusCode.FAILED_PRECONDITION, Reason.POLICY
    else:
        code, reason = status_of(error.reason), error.reason
    await context.abort(code, str(error.args[0]), ((REASON_KEY, str(reason)),))


def peer_certificate(context: AbortableContext) -> bytes:
    """Return the peer's certificate (PEM), which TLS has verified against our CA.

    Raises:
        PeerError: UNAUTHENTICATED, the peer showed none.
    """
    for pem in context.auth_context().get("x509_pem_cert", ()):
        return pem
    raise PeerError(Reason.UNAUTHENTICATED, "this listener takes client certificates only")
