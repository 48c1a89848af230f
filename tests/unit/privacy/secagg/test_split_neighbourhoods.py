"""U2 equivocated around a few sites of a sparse cohort: their sum alone must not open."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from privacy.errors import Reason
from privacy.secagg import shamir
from privacy.secagg.commands import Step
from privacy.secagg.encoding import Label
from privacy.secagg.graph import Graph
from privacy.secagg.masking import unmask
from privacy.secagg.messages import MaskTerm, UnmaskShares
from privacy.secagg.site_steps import pair_mask_key, self_mask_key
from tests.support.sparse_cohorts import sparse

N = 20
EVERYBODY = tuple(range(1, N + 1))


class Split:
    """An aggregator and a colluder in the middle of an arc, which they try to cut off.

    The sites of the arc are told a U2 that ends with the arc; all others a U2 of everybody. Nobody
    signs twice: the arc is not asked at all, and the others are quorum enough.
    """

    def __init__(self, length, shares=None):
        self.federation = sparse(N)
        if shares is not None:
            self.lower(shares)
        ring = self.federation.cohort.graph.ring
        self.arc = set(ring[:length])
        self.colluder = ring[length // 2]
        self.inside = sorted(self.arc - {self.colluder})

    def lower(self, shares):
        """Let everybody believe in a smaller t."""
        cohort = self.federation.cohort
        limits = replace(cohort.limits, shares=shares)
        self.federation.__dict__["cohort"] = replace(cohort, limits=limits)
        for site in self.federation.sites:
            join = site.attempt._state.join

            def lowered(admitted, join=join):
                join(replace(admitted, limits=limits))

            site.attempt._state.join = lowered

    def upload(self):
        """Deal and upload; say which sites of the arc let themselves be told so small a U2."""
        federation = self.federation
        dealt = federation.deal_all()
        for i in EVERYBODY:
            holders = federation.cohort.graph.neighbours(i)
            keep = [j for j in holders if j in self.arc] if i in self.inside else list(holders)
            federation.site(i).feed(federation.delivery(dealt, i, keep))
        return [i for i in self.inside if Step.MASKED_UPDATE in federation.site(i).slots]

    def unmask(self):
        """Let the others sign and unmask; give what is known of each secret b in the arc."""
        federation = self.federation
        others = [i for i in EVERYBODY if i not in self.inside]
        chosen = federation.survivor_set(EVERYBODY, EVERYBODY)
        votes = [federation.site(i).feed(chosen)[0] for i in others]
        shares = {i: {} for i in self.inside}
        for i in others:
            (answer,) = federation.site(i).feed(federation.quorum(votes))
            assert isinstance(answer, UnmaskShares)
            for share in answer.self_shares:
                if share.owner in shares:
                    shares[share.owner][i] = share.value
        return shares

    def sum_of_the_arc(self, shares):
        """Open the honest updates of the arc, with t shares of each b and the colluder's key."""
        federation, cohort = self.federation, self.federation.cohort
        bad = federation.site(self.colluder)
        m_key = federation.suite.private_key(bad.secrets.bundle.mask_seed, Label.MASK_SCALAR)
        terms = []
        for i in self.inside:
            b = shamir.combine(shares[i], cohort.limits.shares)
            terms.append(MaskTerm(self_mask_key(cohort, b), -1))
            if cohort.graph.are_neighbours(i, self.colluder):
                key = pair_mask_key(federation.suite, cohort, m_key, i)
                terms.append(MaskTerm(key, -1 if i < self.colluder else 1))
        total_D = sum(federation.site(i).upload.values_d.astype(np.uint32) for i in self.inside)
        unmask(total_D, terms, federation.ring_bits)
        return total_D


def test_with_t_of_5_the_sum_of_four_would_open():
    # What t > k/2 + 1 + c_w is for. k = 8: four honest sites in a row and a colluder among them are
    # 5 of 9 holders to each other; the four on the other side and the colluder are 5 as well.
    split = Split(5, shares=5)
    assert split.upload() == split.inside
    opened = split.sum_of_the_arc(split.unmask())
    federation = split.federation
    bared = federation.expected_D({federation.members[i - 1] for i in split.inside})
    assert opened.tolist() == bared.tolist()
    assert len(split.inside) < federation.plan.min_survivors - federation.plan.colluders


@pytest.mark.parametrize("length", range(4, 14))
def test_a_site_that_is_told_of_its_arc_only_stops_before_its_charge(length):
    split = Split(length)
    uploaded = split.upload()
    stopped = [split.federation.site(i) for i in split.inside if i not in uploaded]
    assert stopped, "the ends of the arc, at least"
    for site in stopped:
        assert site.aborted.reason is Reason.BELOW_THRESHOLD
        assert site.charges == 0


@settings(max_examples=400, deadline=None)
@given(st.integers(12, 40), st.sampled_from([4, 6, 8]), st.data())
def test_no_proper_part_of_the_honest_survivors_opens(n, degree, data):
    """Play the proof of ADR 11: who signed, who did not, who is gone, and what part to open."""
    graph, reach = Graph.circulant(n, degree, bytes(32)), degree // 2
    ring = graph.ring

    def arcs(most):
        pieces = st.tuples(st.integers(0, n - 1), st.integers(1, n))
        found = data.draw(st.lists(pieces, max_size=most))
        return {ring[(start + step) % n] for start, length in found for step in range(length)}

    colluders = data.draw(st.sets(st.integers(1, n), max_size=n // 4))
    windows = ({ring[(at + step) % n] for step in range(reach)} for at in range(n))
    most = max(len(colluders & window) for window in windows)
    shares = reach + 2 + most
    gone = arcs(3) - colluders
    if graph.least_in_window(set(ring) - gone) < most + 1:
        return  # Nobody signs such a U3.
    honest = set(ring) - gone - colluders
    signed = honest - arcs(3)
    part = honest & arcs(3)
    if not part or part == honest:
        return

    def opens(site):
        around = set(graph.holders(site))
        if site in signed:  # masked with every survivor around it, so they must all be in
            return honest & around <= part
        told = around & (part | gone | colluders)  # its U2 at most, without the others' masks
        return len(told) >= shares and len(around & (signed | colluders)) >= shares

    assert not all(map(opens, part))
