"""Name model versions by a hash chain over their broadcast bytes.

A site that checks a version's head against the one that it knows was sent the same models as all
others (secure-aggregation.md, Values). Hashes are over broadcast bytes, never over local floats.
"""

from privacy.secagg.encoding import hash_of


def chain_start(job_id: str) -> bytes:
    """Return the head before version 0 of a job: 32 bytes."""
    return hash_of("chain", job_id)


def chain_head(before: bytes, version: int, sha256: bytes) -> bytes:
    """Return the head up to and with a version: 32 bytes.

    Args:
        before: The head of the version before, or ``chain_start``.
        version: From 0.
        sha256: Digest of the version's broadcast bytes.
    """
    return hash_of("version", before, version, sha256)
