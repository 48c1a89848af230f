"""Step 0 of a sparse cohort: every r is revealed once, for one roster, as its bundle committed."""

from dataclasses import replace

import pytest

from privacy.errors import PeerError, Reason
from privacy.secagg import commands as c
from privacy.secagg.messages import AbortSignature, DealtShares, GraphReveal, GraphReveals, Roster
from privacy.secagg.rules import MAX_ATTEMPTS
from privacy.secagg.server import Phase
from tests.support.secagg_harness import NOW_S, Federation, refused, with_config
from tests.support.sparse_cohorts import other_roster, sparse

N = 20


# --- reveals -------------------------------------------------------------------------------------


def tampered(federation, change):
    """Run with site 3 changing its reveal."""

    def tamper(index, message):
        return change(message) if index == 3 and isinstance(message, GraphReveal) else message

    return federation.run(silent=True, tamper=tamper)


def test_a_wrong_reveal_burns_the_attempt_and_names_the_site():
    federation = sparse()
    outcome = tampered(federation, lambda m: replace(m, value=bytes(32)))
    assert outcome.abort.culprits == (federation.members[2],)
    assert outcome.blamed == [(federation.members[2], Reason.EQUIVOCATION)]
    assert outcome.server.phase is Phase.ABORTED
    assert all(site.charges == 0 for site in federation.sites)
    assert not any(isinstance(m, DealtShares) for site in federation.sites for m in site.sent)


def test_a_missing_reveal_burns_the_attempt_and_names_the_site():
    federation = sparse()
    outcome = tampered(federation, lambda m: None)
    assert outcome.abort.culprits == (federation.members[2],)
    assert outcome.blamed == [(federation.members[2], Reason.TIMEOUT)]
    assert outcome.abort.reason is Reason.TIMEOUT


def test_a_site_lost_before_its_reveal_burns_the_attempt_at_once():
    federation = sparse()
    outcome = federation.run({4: -1})
    assert outcome.abort.reason is Reason.BELOW_THRESHOLD
    assert outcome.blamed == []
    assert not any(isinstance(m, DealtShares) for site in federation.sites for m in site.sent)


def revealing(federation):
    """Start a server and bring it to where all but site 1 have revealed."""
    server = federation.new_server()
    server.handle(c.Start(), NOW_S)
    for site in federation.sites[1:]:
        (reveal,) = site.feed(federation.roster)
        assert server.handle(reveal, NOW_S) == []
    return server


def test_the_same_reveal_again_is_nothing_and_another_one_is_blamed():
    federation = sparse()
    server = revealing(federation)
    again = federation.site(2).sent[0]
    assert server.handle(again, NOW_S) == []
    commands = server.handle(replace(again, value=bytes(32)), NOW_S)
    assert isinstance(commands[0], c.Blame)
    assert commands[0].site == federation.members[1]
    # Its first one is what the bundle commits to, so the graph is drawn, and it is left out of U2.
    (last,) = federation.site(1).feed(federation.roster)
    sent = server.handle(last, NOW_S)
    assert federation.members[1] not in {command.site for command in sent}
    assert len(sent) == N - 1


def test_a_late_reveal_is_dropped():
    federation = sparse()
    server = revealing(federation)
    server.handle(c.Tick(), server.next_deadline_s())
    (late,) = federation.site(1).feed(federation.roster)
    with pytest.raises(PeerError, match="stopped"):
        server.handle(late, NOW_S)


def test_a_site_that_reconnects_gets_roster_or_reveals_again():
    federation = sparse()
    server = revealing(federation)
    (sent,) = server.handle(c.SiteBack(federation.members[1]), NOW_S)
    assert isinstance(sent.message, Roster)
    (first,) = federation.site(1).feed(federation.roster)
    everybody = server.handle(first, NOW_S)
    assert [type(command.message) for command in everybody] == [GraphReveals] * N
    assert everybody[0].message == federation.reveals()
    (again,) = server.handle(c.SiteBack(federation.members[1]), NOW_S)
    assert again.message == federation.reveals()


def test_a_site_reveals_only_once_the_roster_is_durable():
    federation = sparse()
    site = federation.site(1)
    site.hold_commits = True
    assert site.feed(federation.roster) == []
    assert list(site.slots) == [c.Step.REVEAL]
    with pytest.raises(PeerError, match="replay"):
        site.attempt.handle(federation.reveals(), NOW_S)
    (send,) = site.attempt.handle(c.Committed(c.Step.REVEAL), NOW_S)
    assert isinstance(send.message, GraphReveal)


def test_the_first_slot_begins_the_attempt_and_only_that():
    federation = sparse()
    commits = []
    site = federation.site(1)
    keep = site._commit
    site._commit = lambda command, now_s: (commits.append(command), keep(command, now_s))[1]
    site.feed(federation.roster)
    site.feed(federation.reveals())
    assert [(commit.step, commit.begins) for commit in commits] == [(0, True), (1, False)]


@pytest.mark.parametrize("at", [0, 7, N - 1])
def test_reveals_that_are_not_the_committed_ones_are_refused(at):
    # The seed is bound by rh: two sites cannot be shown two sets, for only one fits the bundles.
    federation = sparse()
    site = federation.site(1)
    site.feed(federation.roster)
    values = list(federation.reveals().values)
    values[at] = bytes(32)
    refused(site, GraphReveals(federation.context.digest(), tuple(values)), Reason.EQUIVOCATION)
    assert site.charges == 0


@pytest.mark.parametrize("change", [lambda v: v[:-1], lambda v: (*v, v[0]), lambda v: v[1:]])
def test_reveals_of_another_number_are_refused(change):
    federation = sparse()
    site = federation.site(1)
    site.feed(federation.roster)
    values = change(federation.reveals().values)
    refused(site, GraphReveals(federation.context.digest(), values), Reason.MALFORMED)


def test_swapped_reveals_are_refused():
    federation = sparse()
    site = federation.site(1)
    site.feed(federation.roster)
    first, second, *rest = federation.reveals().values
    swapped = GraphReveals(federation.context.digest(), (second, first, *rest))
    refused(site, swapped, Reason.EQUIVOCATION)


def test_reveals_before_the_roster_or_for_a_complete_cohort_are_no_step():
    federation = sparse()
    with pytest.raises(PeerError, match="replay"):
        federation.site(1).feed(federation.reveals())
    complete = Federation(5)
    site = complete.site(1)
    site.feed(complete.roster)
    reveals = GraphReveals(complete.context.digest(), complete.reveals().values)
    refused(site, reveals, Reason.EQUIVOCATION)


# --- grinding ------------------------------------------------------------------------------------


def test_a_second_roster_after_the_reveal_kills_the_attempt():
    federation = sparse()
    site = federation.site(1)
    (first,) = site.feed(federation.roster)
    refused(site, other_roster(federation), Reason.EQUIVOCATION)
    assert isinstance(site.sent[-1], AbortSignature)
    assert site.sent.count(first) == 1


def test_a_smaller_roster_after_the_reveal_kills_the_attempt_too():
    federation = sparse()
    site = federation.site(1)
    site.feed(federation.roster)
    small = replace(federation.roster, bundles=federation.bundles[:8])
    refused(site, small, Reason.EQUIVOCATION)


def test_the_same_roster_again_gets_the_same_reveal():
    federation = sparse()
    site = federation.site(1)
    assert site.feed(federation.roster) == site.feed(federation.roster)


def test_sites_bound_to_different_rosters_never_reach_a_quorum():
    # Grinding: two rosters for one ctx, each shown to half of the sites, to compare two graphs.
    federation = sparse()
    rosters = (federation.roster, other_roster(federation))
    for index in range(1, N):
        federation.site(index).feed(rosters[index % 2])
    server = federation.new_server()
    server.handle(c.Start(), NOW_S)
    for index in range(1, N, 2):
        refused(federation.site(index), federation.roster, Reason.EQUIVOCATION)
    stays = [i for i in range(1, N) if not federation.site(i).aborted]
    assert len(stays) < federation.cohort.limits.quorum


@pytest.mark.parametrize(("attempt", "allowed"), [(MAX_ATTEMPTS, True), (MAX_ATTEMPTS + 1, False)])
def test_a_site_draws_no_more_graphs_a_round_than_the_cap(attempt, allowed):
    federation = sparse(attempt=attempt)
    site = federation.site(1)
    if allowed:
        assert isinstance(site.feed(federation.roster)[0], GraphReveal)
    else:
        refused(site, federation.roster, Reason.POLICY, "attempts of one round")


def test_an_attempt_number_is_not_used_twice():
    federation = sparse(attempt=3)
    site = with_config(federation.site(1), last_accepted=(7, 3))
    refused(site, federation.roster, Reason.REPLAY)
