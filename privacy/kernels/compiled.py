"""Decide whether a vector is long enough for the compiled loops, and load them when it first is.

numba is loaded with the first long vector, never at start-up, and by no process that has only short
ones: it takes half a second and 60 MB. Machine code is kept in ``__pycache__`` beside the loops, or
in numba's folder of the user (``NUMBA_CACHE_DIR`` names another one), so a machine compiles once; a
second or so a loop. Without numba every stage runs on numpy, with the same results.
"""

from functools import cache
from types import ModuleType

COMPILED_FROM = 1 << 18
"""Values of a vector from which on loops are compiled: below, a round gains less than they cost."""


def loops_for(count: int) -> ModuleType | None:
    """Give the compiled loops, or None where numpy is to do the work.

    Args:
        count: Values of the whole vector, however many of them one call is for.
    """
    return _load() if count >= COMPILED_FROM else None


@cache
def _load() -> ModuleType | None:
    try:
        from privacy.kernels import loops  # noqa: PLC0415 - see above
    except ImportError:  # numba is not there, or not yet for this Python or numpy
        return None
    return loops
