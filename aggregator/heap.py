"""Keep the process's memory with the work, not with what the sites once sent at the same time.

glibc keeps freed memory in a heap for each thread and, once large blocks were freed, stops giving
such blocks back. The peak would then grow with the number of sites, though nothing here holds more
than one vector. On other C libraries these calls do nothing.
"""

import ctypes

_M_MMAP_THRESHOLD = -3
_M_ARENA_MAX = -8
_LARGE_BLOCK_BYTES = 1 << 19
_LIBC = ctypes.CDLL(None)


def bound_heap() -> None:
    """Have large blocks given back when they are freed, and few heaps kept; once, at the start."""
    mallopt = getattr(_LIBC, "mallopt", None)
    if mallopt is not None:
        mallopt(_M_MMAP_THRESHOLD, _LARGE_BLOCK_BYTES)
        mallopt(_M_ARENA_MAX, 2)


def trim_heap() -> None:
    """Give freed memory back to the system; takes milliseconds, worth it around large vectors."""
    trim = getattr(_LIBC, "malloc_trim", None)
    if trim is not None:
        trim(0)
