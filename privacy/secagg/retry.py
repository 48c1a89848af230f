"""The retry rule: when the same update may be sent again without a new charge (design, Drop-outs)."""

from dataclasses import dataclass


@dataclass(frozen=True)
class RetryPermit:
    """Proof, checked by ``check_retry``, that an old attempt cannot release this site's update."""

    old_ctx: bytes
    job_id: str
    round: int
    old_attempt: int
