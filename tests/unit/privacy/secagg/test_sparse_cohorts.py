"""Whole attempts on the sparse graph: exact sums, windows, restarts, and what is refused."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from privacy.errors import PeerError, Reason
from privacy.secagg import commands as c
from privacy.secagg import statements
from privacy.secagg.graph import GraphRule
from privacy.secagg.masking import unmask
from privacy.secagg.messages import (
    AbortRequest,
    AbortSignature,
    DealtShares,
    GraphReveals,
    SurvivorSignature,
    UnmaskShares,
)
from privacy.secagg.server import Phase
from tests.support.secagg_harness import NOW_S, Federation, refused
from tests.support.sparse_cohorts import SMALL, other_roster, remembering, sparse

N = 20


def exact(federation, outcome):
    assert outcome.total_D is not None, outcome.abort
    assert outcome.total_D.tolist() == federation.expected_D(outcome.survivors).tolist()


def test_a_round_without_drop_outs_is_exact_and_each_site_has_k_masks():
    federation = sparse()
    outcome = federation.run()
    exact(federation, outcome)
    assert len(outcome.survivors) == N
    for site in federation.sites:
        dealt = next(m for m in site.sent if isinstance(m, DealtShares))
        assert len(dealt.ciphertexts) == SMALL.degree + 1
        assert len(site.terms) == SMALL.degree + 1
        answer = next(m for m in site.sent if isinstance(m, UnmaskShares))
        assert len(answer.self_shares) == SMALL.degree + 1
    assert len(outcome.terms) == N


@settings(max_examples=12, deadline=None)
@given(st.data())
def test_random_drop_outs_end_in_the_exact_sum_or_in_nothing(data):
    n = data.draw(st.integers(12, 24))
    federation = sparse(n, dropout_percent=data.draw(st.sampled_from([20, 21])))
    gone = data.draw(st.dictionaries(st.integers(1, n), st.integers(0, 3), max_size=max(1, n // 4)))
    outcome = federation.run(gone, silent=data.draw(st.booleans()))
    if outcome.total_D is None:
        assert outcome.abort is not None
        assert outcome.terms == ()
        return
    exact(federation, outcome)
    here = {federation.members[i - 1] for i in range(1, n + 1) if gone.get(i, 9) > 1}
    assert set(outcome.survivors) == here


def test_the_default_rule_gives_the_exact_sum_above_200_sites():
    federation = Federation(201, 5, length=3, shared_noise=False, suite=remembering())
    assert federation.cohort.limits.degree == 128
    gone = {i: 1 + i % 3 for i in range(1, 41)}
    outcome = federation.run(gone)
    exact(federation, outcome)
    assert len(outcome.survivors) == 201 - sum(step == 1 for step in gone.values())


# --- who may use it ------------------------------------------------------------------------------


def test_shared_noise_is_refused_on_the_sparse_graph():
    federation = sparse(shared_noise=True)
    refused(federation.site(1), federation.roster, Reason.POLICY, "differential privacy")
    assert federation.site(1).sent == []


def test_shared_noise_is_taken_on_the_complete_graph():
    federation = Federation(8, shared_noise=True, graph_rule=SMALL)
    exact(federation, federation.run())


@pytest.mark.parametrize("percent", [19, 21])
def test_the_expected_drop_out_is_the_manifests(percent):
    federation = sparse()
    changed = replace(federation.roster, plan=replace(federation.plan, dropout_percent=percent))
    refused(federation.site(1), changed, Reason.POLICY, "drop-out")


def test_more_expected_drop_outs_give_more_neighbours():
    federation = sparse(dropout_percent=25)
    assert federation.cohort.limits.degree == SMALL.lossy_degree
    exact(federation, federation.run({1: 1, 2: 2, 3: 3}))


# --- windows -------------------------------------------------------------------------------------


def arc(federation, length):
    """Return as many sites in a row of the ring, none of them site 1."""
    ring = federation.cohort.graph.ring
    start = ring.index(1) + 3
    return {ring[(start + step) % len(ring)] for step in range(length)}


def test_an_arc_cut_off_is_never_signed():
    federation = sparse(40)
    everybody = tuple(range(1, 41))
    dealt = federation.upload_all()
    cut = arc(federation, 3)
    survivors = tuple(i for i in everybody if i not in cut)
    assert len(survivors) >= federation.cohort.limits.quorum
    message = federation.survivor_set(dealt, survivors)
    refused(federation.site(1), message, Reason.BELOW_THRESHOLD, "neighbouring sites")
    assert not any(isinstance(m, SurvivorSignature) for m in federation.site(1).sent)


def test_as_many_drop_outs_spread_over_the_ring_are_signed():
    federation = sparse(40)
    dealt = federation.upload_all()
    spread = set(federation.cohort.graph.ring[5::13])
    survivors = tuple(i for i in dealt if i not in spread)
    signer = federation.site(survivors[0])
    (vote,) = signer.feed(federation.survivor_set(dealt, survivors))
    assert isinstance(vote, SurvivorSignature)


def test_the_honest_aggregator_gives_up_where_the_sites_would():
    federation = sparse(40)
    outcome = federation.run(dict.fromkeys(arc(federation, 3), 1))
    assert outcome.abort.reason is Reason.BELOW_THRESHOLD
    assert "holders of one site's shares are left" in outcome.abort.message


def test_without_the_window_two_cuts_would_bare_the_sum_of_an_arc():
    # What the check is for: with k/2 sites gone on both sides of an arc, no mask is left between
    # the arc and the rest, so one attempt would give two sums.
    federation = sparse(40)
    ring, reach = federation.cohort.graph.ring, SMALL.degree // 2
    gone = set(ring[:reach]) | set(ring[reach + 4 : 2 * reach + 4])
    inside = set(ring[reach : reach + 4])
    survivors = [i for i in range(1, 41) if i not in gone]
    federation.upload_all()
    terms = []
    for i in sorted(inside):
        site = federation.site(i)
        outside = [j for j in federation.cohort.graph.neighbours(i) if j in survivors]
        assert set(outside) <= inside, "every mask to the rest went with a drop-out"
        # The self mask first, then one mask a neighbour, ascending (``mask_terms``).
        order = (i, *federation.cohort.graph.neighbours(i))
        kept = dict(zip(order, site.terms, strict=True))
        off = [kept[i], *(kept[j] for j in order if j not in inside)]
        terms += [replace(term, sign=-term.sign) for term in off]
    total = sum(federation.site(i).upload.values_d.astype(np.uint32) for i in inside)
    unmask(total, terms, federation.ring_bits)
    bared = federation.expected_D({federation.members[i - 1] for i in inside})
    assert total.tolist() == bared.tolist()


# --- steps 2 to 4 --------------------------------------------------------------------------------


def test_too_few_neighbours_charge_nobody():
    federation = sparse()
    dealt = federation.deal_all()
    holders = federation.cohort.graph.holders(1)
    keep = [i for i in holders if i != 1][: federation.cohort.limits.shares - 2]
    refused(federation.site(1), federation.delivery(dealt, 1, keep), Reason.BELOW_THRESHOLD)
    assert federation.site(1).charges == 0


def test_a_dealer_that_is_no_neighbour_is_refused():
    federation = sparse()
    dealt = federation.deal_all()
    graph = federation.cohort.graph
    far = next(j for j in dealt if j != 1 and not graph.are_neighbours(1, j))
    delivery = federation.delivery(dealt, 1)
    share = replace(delivery.shares[0], sender=federation.members[far - 1])
    bent = replace(delivery, shares=(*delivery.shares[1:], share))
    refused(federation.site(1), bent, Reason.MALFORMED)


def test_u2_is_held_against_the_own_neighbourhood():
    federation = sparse()
    dealt = federation.upload_all()
    near = federation.cohort.graph.neighbours(1)[0]
    without = tuple(i for i in dealt if i != near)
    refused(federation.site(1), federation.survivor_set(without, without), Reason.EQUIVOCATION)


def test_another_u2_far_away_is_another_statement():
    federation = sparse()
    dealt = federation.upload_all()
    graph = federation.cohort.graph
    far = next(j for j in dealt if j != 1 and not graph.are_neighbours(1, j))
    one = tuple(dealt)
    other = tuple(i for i in dealt if i != far)
    (vote,) = federation.site(1).feed(federation.survivor_set(other, other))
    statement = statements.survivor_statement(federation.cohort.rh, federation.cohort.mh, one, one)
    with pytest.raises(PeerError, match="bad-signature"):
        federation.suite.verify(federation.pinned[vote.sender], vote.signature, statement)


def test_u2_beyond_the_roster_is_refused():
    federation = sparse()
    dealt = tuple(federation.upload_all())
    refused(federation.site(1), federation.survivor_set((*dealt, N + 1), dealt), Reason.MALFORMED)


def test_no_more_than_t_signatures_are_verified():
    federation = sparse()
    dealt = tuple(federation.upload_all())
    votes = [site.feed(federation.survivor_set(dealt, dealt))[0] for site in federation.sites]
    quorum = federation.cohort.limits.quorum
    site, suite = federation.site(N), remembering()
    site.attempt._config = replace(site.config, suite=suite)
    (answer,) = site.feed(federation.quorum(votes))
    assert isinstance(answer, UnmaskShares)
    assert len(suite.signatures.verified) == quorum


# --- restore -------------------------------------------------------------------------------------


def inputs():
    twin = sparse()
    dealt = twin.upload_all()
    everybody = tuple(range(1, N + 1))
    chosen = twin.survivor_set(everybody, everybody)
    votes = [twin.site(i).feed(chosen)[0] for i in everybody]
    return (twin.roster, twin.reveals(), twin.delivery(dealt, 1), chosen, twin.quorum(votes))


def frozen(message):
    return message.values_d.tobytes() if hasattr(message, "values_d") else message


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("step", list(c.Step))
def test_a_crash_at_any_slot_gives_byte_identical_messages(step, when):
    smooth = sparse()
    messages = inputs()
    expected = [frozen(smooth.site(1).feed(message)[0]) for message in messages]
    site = sparse().site(1)
    got = []
    for number, message in enumerate(messages):
        if number != step:
            got.append(frozen(site.feed(message)[0]))
            continue
        site.crash_at = (when, step)
        assert site.feed(message) == []
        resumed = site.restart()
        if when == "after":
            assert frozen(resumed[-1]) == expected[number]
        got.append(frozen(site.feed(message)[0]))
    assert got == expected
    assert site.charges == 1
    assert site.aborted is None


def test_after_a_restart_another_roster_or_reveal_still_kills():
    federation = sparse()
    site = federation.site(1)
    site.feed(federation.roster)
    site.restart()
    refused(site, other_roster(federation), Reason.EQUIVOCATION)

    federation = sparse()
    site = federation.site(1)
    site.feed(federation.roster)
    site.feed(federation.reveals())
    site.restart()
    bent = (bytes(32), *federation.reveals().values[1:])
    refused(site, GraphReveals(federation.context.digest(), bent), Reason.EQUIVOCATION)


def test_without_its_secrets_a_site_that_revealed_signs_the_abort():
    federation = sparse()
    site = federation.site(1)
    site.feed(federation.roster)
    (abort,) = site.restart(secrets=None)
    assert isinstance(abort, AbortSignature)
    assert site.restart() == [abort], "and gives it again"


def test_an_abort_after_the_reveal_is_a_vote():
    federation = sparse()
    site = federation.site(1)
    site.feed(federation.roster)
    (abort,) = site.feed(AbortRequest(federation.context.digest(), "burnt"))
    server = federation.new_server()
    server.handle(c.Start(), NOW_S)
    server.handle(abort, NOW_S)
    assert [vote.signer for vote in server.votes] == [site.me]
    assert server.phase is Phase.ABORTED


def test_rules_are_constants_of_the_protocol():
    assert GraphRule() == GraphRule(200, 128, 77, 160, 96, 20, 20)
