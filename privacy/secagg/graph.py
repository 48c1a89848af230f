"""Who shares masks and shares with whom: the complete graph, up to 200 sites.

Not here: the sparse circulant graph above 200 sites, a later version (design: SA-1, Values).
"""

from privacy.errors import PeerError, Reason

MAX_COMPLETE = 200


def check_size(n: int) -> None:
    """Refuse cohorts that the complete graph does not serve.

    Raises:
        PeerError: POLICY, above 200 sites, which need the sparse graph.
    """
    if n > MAX_COMPLETE:
        raise PeerError(
            Reason.POLICY,
            f"cohort of {n} sites: the complete graph takes at most {MAX_COMPLETE}; cut it smaller",
        )


def neighbours(index: int, n: int) -> tuple[int, ...]:
    """Return N(i): every other index of 1..n, ascending."""
    check_size(n)
    return tuple(j for j in range(1, n + 1) if j != index)
