"""Sparse cohorts for tests: the protocol's rule with small constants, and a suite for large n."""

from dataclasses import replace

from privacy.secagg.graph import GraphRule
from privacy.secagg.keys import P256
from tests.support.secagg_harness import Federation

SMALL = GraphRule(
    complete_up_to=8, degree=8, shares=5, lossy_degree=10, lossy_shares=6, colluder_percent=20
)
"""Sparse above 8 sites, c = 1: k = 8, t = 7 of 9 holders, windows of 4 with 2 survivors."""


class VerifiedOnce(type(P256.signatures)):
    """Signatures of which each is verified once.

    In one process every site would verify the same bundles: n times the work of a real site.
    """

    def __init__(self):
        super().__init__()
        self.verified = set()

    def verify(self, spki, signature, message):
        asked = (spki, signature, message)
        if asked not in self.verified:
            super().verify(*asked)
            self.verified.add(asked)


def remembering():
    """Make P-256 that verifies each signature once."""
    return replace(P256, signatures=VerifiedOnce())


def sparse(n=20, colluders=1, **changes):
    """Make a federation on the sparse graph whose updates carry no shared noise."""
    return Federation(
        n, colluders, **{"graph_rule": SMALL, "shared_noise": False, "length": 5, **changes}
    )


def other_roster(federation, serial=2):
    """The same attempt with another bundle of the last member, as a colluder may offer many."""
    other = sparse(serial=serial)
    return replace(federation.roster, bundles=(*federation.bundles[:-1], other.bundles[-1]))
