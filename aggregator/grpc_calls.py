"""Use of a gRPC call what the listeners need: who calls, and how it is refused."""

from collections.abc import Iterable, Mapping
from typing import Protocol

import grpc

from privacy.errors import PeerError, Reason, UsageError
from tidegate.refusals import status_of, trailer_of


class AbortableContext(Protocol):
    """The part of a gRPC servicer context that is used here."""

    def auth_context(self) -> Mapping[str, Iterable[bytes]]:
        """Return what TLS knows of the peer."""
        ...

    async def abort(
        self, code: grpc.StatusCode, details: str, trailing_metadata: tuple[tuple[str, str], ...]
    ) -> None:
        """End the call with a status."""


async def refuse(context: AbortableContext, error: PeerError | UsageError) -> None:
    """End a call with an error; does not return."""
    if isinstance(error, UsageError):
        code, reason = grpc.StatusCode.FAILED_PRECONDITION, Reason.POLICY
    else:
        code, reason = status_of(error.reason), error.reason
    await context.abort(code, str(error.args[0]), trailer_of(reason))


def peer_certificate(context: AbortableContext) -> bytes:
    """Return the peer's certificate (PEM), which TLS has verified against our CA.

    Raises:
        PeerError: UNAUTHENTICATED, the peer showed none.
    """
    for pem in context.auth_context().get("x509_pem_cert", ()):
        return pem
    raise PeerError(Reason.UNAUTHENTICATED, "this listener takes client certificates only")
