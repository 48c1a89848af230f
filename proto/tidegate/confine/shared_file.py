"""Make the anonymous file that a process shares with the confined one that it started.

Its size is sealed, so that the confined process cannot shrink it and crash the other. What lies in
it is that process's to change at any time: whoever reads it copies before it checks.
"""

import fcntl
import os

_ALIGNMENT = 64
_SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL


def create_sealed(name: str, n_bytes: int) -> int:
    """Make the file and give its descriptor, close-on-exec; unwritten pages take no memory."""
    descriptor = os.memfd_create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.ftruncate(descriptor, n_bytes)
    fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, _SEALS)
    return descriptor


def aligned(n_bytes: int) -> int:
    """Give the room that an array takes, so that the next one begins at a cache line."""
    return -(-n_bytes // _ALIGNMENT) * _ALIGNMENT
