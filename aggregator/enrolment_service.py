"""The enrolment listener: server-side TLS, and a one-time token in place of a certificate."""

import time

from aggregator.grpc_calls import AbortableContext, refuse
from aggregator.log import LOGGER
from aggregator.registry import Registry
from privacy.errors import PeerError, Reason
from tidegate import convert
from tidegate.requests import EnrolmentGrant
from tidegate.v1 import federation_pb2 as pb
from tidegate.v1 import federation_pb2_grpc

ENROLMENTS_PER_MINUTE = 120
"""Anybody can reach this listener: guesses are slowed down for all together."""


class EnrolmentService(federation_pb2_grpc.EnrolmentServiceServicer):
    """``EnrolmentService``."""

    def __init__(self, registry: Registry) -> None:
        """Take the registry, which judges."""
        self._registry = registry
        self._window = 0
        self._in_window = 0

    async def Enrol(self, request: pb.EnrolRequest, context: AbortableContext) -> pb.EnrolResponse:
        """Redeem a token."""
        now_s = time.time()
        try:
            self._limit_rate(now_s)
            wanted = convert.enrolment_request_from_wire(request)
            site, certificate = self._registry.enrol(wanted, now_s)
        except PeerError as error:
            LOGGER.warning("enrolment refused: %s", error)
            await refuse(context, error)
            raise
        LOGGER.info("site %s enrolled, key sha256:%s", site.site_id, site.fingerprint.hex()[:16])
        return convert.enrolment_grant_to_wire(
            EnrolmentGrant(
                site_id=site.site_id,
                certificate_pem=certificate,
                ca_pem=self._registry.ca_pem,
                operator_spki=self._registry.operator_spki,
            )
        )

    def _limit_rate(self, now_s: float) -> None:
        window = int(now_s // 60)
        if window != self._window:
            self._window, self._in_window = window, 0
        self._in_window += 1
        if self._in_window > ENROLMENTS_PER_MINUTE:
            raise PeerError(Reason.POLICY, "too many enrolments at once: try again in a minute")
