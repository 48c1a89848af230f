"""The aggregator's machine on its own: who is waited for, what is dropped, what comes again."""

from dataclasses import replace

import pytest

from privacy.errors import PeerError, Reason, UsageError
from privacy.secagg import commands as c
from privacy.secagg import statements
from privacy.secagg.messages import (
    AbortRequest,
    AbortSignature,
    Published,
    RetryVote,
    Roster,
    ShareDelivery,
    SurvivorQuorum,
    SurvivorSet,
    SurvivorSignature,
    UnmaskShares,
)
from privacy.secagg.rules import StepTimeouts
from privacy.secagg.server import Phase, ServerAttempt, ServerConfig
from tests.support.secagg_harness import NOW_S, Federation


@pytest.fixture
def federation():
    return Federation(5, timeouts=StepTimeouts(10.0, 20.0, 30.0, 40.0))


@pytest.fixture
def server(federation):
    server = federation.new_server()
    server.handle(c.Start(), NOW_S)
    return server


def sent(commands, kind):
    """Return who is sent something, which must all be of one kind."""
    messages = [command for command in commands if isinstance(command, c.SendTo)]
    assert all(isinstance(command.message, kind) for command in messages)
    return [command.site for command in messages]


def uploaded(federation, index):
    return c.UploadCompleted(federation.members[index - 1], bytes(32))


def to_step(federation, server, step):
    """Bring an attempt to the start of a step, everyone alive."""
    dealt = federation.deal_all()
    for message in dealt.values():
        commands = server.handle(message, NOW_S)
    if step > 2:
        for i in range(1, 6):
            federation.site(i).feed(federation.delivery(dealt, i))
            commands = server.handle(uploaded(federation, i), NOW_S)
    if step > 3:
        for i in range(1, 6):
            (vote,) = federation.site(i).feed(federation.survivor_set(range(1, 6), range(1, 6)))
            commands = server.handle(vote, NOW_S)
    return commands


def test_each_step_starts_as_soon_as_the_last_live_member_has_answered(federation, server):
    assert server.next_deadline_s() == NOW_S + 10.0
    assert len(sent(to_step(federation, server, 2), ShareDelivery)) == 5
    assert server.next_deadline_s() == NOW_S + 20.0
    federation = Federation(5)
    server = federation.new_server()
    assert len(sent(server.handle(c.Start(), NOW_S), Roster)) == 5
    commands = to_step(federation, server, 3)
    assert isinstance(commands[0], c.FoldUpload)
    assert len(sent(commands, SurvivorSet)) == 5
    federation = Federation(5)
    server = federation.new_server()
    server.handle(c.Start(), NOW_S)
    commands = to_step(federation, server, 4)
    assert len(sent(commands, SurvivorQuorum)) == 5
    assert len(commands[0].message.signatures) == 4, "T signatures are enough to verify"


def test_the_sum_is_out_with_the_first_t_answers(federation, server):
    to_step(federation, server, 4)
    votes = [s.sent[-1] for s in federation.sites]
    quorum = federation.quorum(votes)
    answers = [site.feed(quorum)[0] for site in federation.sites]
    for answer in answers[:3]:
        assert server.handle(answer, NOW_S) == []
    commands = server.handle(answers[3], NOW_S)
    assert [type(command) for command in commands[:2]] == [c.UnmaskSum, c.Publish]
    assert len(sent(commands, Published)) == 5
    assert server.is_over
    assert server.next_deadline_s() is None
    assert server.handle(answers[4], NOW_S) == [], "slower than the first t, and honest"
    for site in federation.sites:
        site.feed(commands[-1].message)
        assert site.erased
        assert site.aborted is None


def test_the_deadline_goes_on_with_those_who_answered(federation, server):
    dealt = federation.deal_all()
    for i in (1, 2, 3, 4):
        server.handle(dealt[i], NOW_S)
    assert server.handle(c.Tick(), NOW_S + 9.9) == []
    commands = server.handle(c.Tick(), NOW_S + 10.0)
    kinds = {command.site: type(command.message) for command in commands}
    assert kinds.pop(federation.members[4]) is AbortRequest, "the late one is told"
    assert set(kinds.values()) == {ShareDelivery}
    with pytest.raises(PeerError, match="stopped"):
        server.handle(dealt[5], NOW_S + 11.0)


def test_a_lost_site_that_dealt_is_left_out_of_u2_at_no_cost(federation, server):
    dealt = federation.deal_all()
    server.handle(dealt[5], NOW_S)
    server.handle(c.SiteLost(federation.members[4], Reason.TIMEOUT), NOW_S)
    for i in (1, 2, 3):
        assert server.handle(dealt[i], NOW_S) == []
    commands = server.handle(dealt[4], NOW_S)
    assert len(sent(commands, ShareDelivery)) == 4
    assert all(len(command.message.shares) == 3 for command in commands)


def test_a_site_that_is_back_gets_its_latest_message_again(federation, server):
    lost, back = (
        c.SiteLost(federation.members[4], Reason.TIMEOUT),
        c.SiteBack(federation.members[4]),
    )
    server.handle(lost, NOW_S)
    (again,) = server.handle(back, NOW_S)
    assert again == c.SendTo(federation.members[4], federation.roster)
    to_step(federation, server, 2)
    server.handle(lost, NOW_S)
    (again,) = server.handle(back, NOW_S)
    assert isinstance(again.message, ShareDelivery)
    assert federation.site(5).feed(again.message)


def test_too_few_left_abort_at_once_and_everyone_live_is_told(federation, server):
    server.handle(c.SiteLost(federation.members[0], Reason.TIMEOUT), NOW_S)
    commands = server.handle(c.SiteLost(federation.members[1], Reason.TIMEOUT), NOW_S)
    assert isinstance(commands[0], c.AbortAttempt)
    assert commands[0].reason is Reason.BELOW_THRESHOLD
    assert sent(commands, AbortRequest) == federation.members[2:]
    assert server.phase is Phase.ABORTED
    assert server.handle(c.Tick(), NOW_S + 1e9) == []


def test_identical_answers_again_change_nothing_and_different_ones_are_blamed(federation, server):
    dealt = federation.deal_all()
    server.handle(dealt[1], NOW_S)
    assert server.handle(dealt[1], NOW_S) == []
    commands = server.handle(replace(dealt[1], signature=b"other"), NOW_S)
    assert commands[0] == c.Blame(federation.members[0], Reason.EQUIVOCATION, commands[0].message)


def test_a_second_different_upload_is_blamed_but_stays_folded(federation, server):
    to_step(federation, server, 2)
    assert server.handle(uploaded(federation, 1), NOW_S) == [c.FoldUpload(federation.members[0])]
    assert server.handle(uploaded(federation, 1), NOW_S) == []
    (blame,) = server.handle(c.UploadCompleted(federation.members[0], b"x" * 32), NOW_S)
    assert isinstance(blame, c.Blame)
    for i in (2, 3, 4, 5):
        commands = server.handle(uploaded(federation, i), NOW_S)
    assert server.survivors == tuple(federation.members), "what is in the sum is in U3"
    assert len(sent(commands, SurvivorSet)) == 4


def test_uploads_out_of_turn_are_dropped(federation, server):
    with pytest.raises(PeerError, match="replay"):
        server.handle(uploaded(federation, 1), NOW_S)
    to_step(federation, server, 3)
    assert server.handle(uploaded(federation, 1), NOW_S) == []


def test_frames_of_strangers_and_of_other_attempts_are_dropped(federation, server):
    dealt = federation.deal_all()
    with pytest.raises(PeerError, match="wrong-context"):
        server.handle(replace(dealt[1], ctx=bytes(32)), NOW_S)
    with pytest.raises(PeerError, match="unauthenticated"):
        server.handle(replace(dealt[1], sender=bytes(32)), NOW_S)
    with pytest.raises(PeerError, match="unauthenticated"):
        server.handle(c.SiteLost(bytes(32), Reason.TIMEOUT), NOW_S)
    assert server.phase is Phase.SHARE_KEYS


def test_an_early_vote_is_dropped_without_blame(federation, server):
    to_step(federation, server, 2)
    early = SurvivorSignature(federation.context.digest(), federation.members[0], b"")
    with pytest.raises(PeerError, match="replay"):
        server.handle(early, NOW_S)


def test_a_late_voter_still_gets_the_quorum_and_may_answer(federation, server):
    to_step(federation, server, 3)
    everyone = federation.survivor_set(range(1, 6), range(1, 6))
    votes = {i: federation.site(i).feed(everyone)[0] for i in range(1, 6)}
    for i in (1, 2, 3, 4):
        assert server.handle(votes[i], NOW_S) == []
    commands = server.handle(c.Tick(), NOW_S + 30.0)
    assert sent(commands, SurvivorQuorum) == federation.members[:4]
    (late,) = server.handle(votes[5], NOW_S + 31.0)
    assert isinstance(federation.site(5).feed(late.message)[0], UnmaskShares)


def test_a_late_vote_saves_a_round_whose_voters_are_lost_afterwards(federation, server):
    to_step(federation, server, 3)
    everyone = federation.survivor_set(range(1, 6), range(1, 6))
    votes = {i: federation.site(i).feed(everyone)[0] for i in range(1, 6)}
    for i in (1, 2, 3, 4):
        server.handle(votes[i], NOW_S)
    quorum = server.handle(c.Tick(), NOW_S + 30.0)[0].message
    (again,) = server.handle(votes[5], NOW_S + 30.0)
    assert again == c.SendTo(federation.members[4], quorum)
    server.handle(c.SiteLost(federation.members[3], Reason.TIMEOUT), NOW_S + 30.0)
    for i in (1, 2, 3, 5):
        commands = server.handle(federation.site(i).feed(quorum)[0], NOW_S + 31.0)
    assert isinstance(commands[0], c.UnmaskSum)


def test_an_attempt_is_started_once(server):
    with pytest.raises(UsageError, match="started once"):
        server.handle(c.Start(), NOW_S)


@pytest.mark.parametrize(
    "change",
    [
        lambda f: {"bundles": f.bundles[:3]},
        lambda f: {"bundles": f.bundles[::-1]},
        lambda f: {"plan": replace(f.plan, bases=f.plan.bases[:-1])},
        lambda f: {"plan": replace(f.plan, colluders=2)},
        lambda f: {"plan": replace(f.plan, min_survivors=6)},
        lambda f: {"bundles": (*f.bundles[:4], replace(f.bundles[3], signature=b""))},
    ],
)
def test_a_cohort_that_sites_would_refuse_is_never_begun(federation, change):
    config = ServerConfig(
        federation.suite,
        federation.context,
        federation.bundles,
        federation.plan,
        federation.pinned,
    )
    with pytest.raises(UsageError, match="cannot be cut"):
        ServerAttempt(replace(config, **change(federation)))


def test_replaying_the_journal_gives_the_same_commands(federation):
    journal, first = [], []
    server = federation.new_server()
    real = server.handle

    def recording(event, now_s):
        commands = real(event, now_s)
        journal.append((event, now_s))
        first.append(commands)
        return commands

    server.handle = recording
    federation.new_server = lambda: server
    federation.run({2: 1}, silent=True)
    again = Federation(5, timeouts=federation.timeouts).new_server()
    assert [again.handle(*entry) for entry in journal] == first


def test_lost_dealers_do_not_make_up_u2(federation, server):
    dealt = federation.deal_all()
    for i in (4, 5):
        server.handle(dealt[i], NOW_S)
        commands = server.handle(c.SiteLost(federation.members[i - 1], Reason.TIMEOUT), NOW_S)
    assert isinstance(commands[0], c.AbortAttempt)


def test_the_order_of_arrival_does_not_matter(federation, server):
    backwards = Federation(5)
    outcome = backwards.run({2: 1}, silent=True, order=lambda replies: replies[::-1])
    assert outcome.abort is None
    assert outcome.total_D.tolist() == backwards.expected_D(outcome.survivors).tolist()
    dealt = federation.deal_all()
    for i in (5, 3, 1, 2, 4):
        commands = server.handle(dealt[i], NOW_S)
    for command in commands:
        federation.sites[federation.members.index(command.site)].feed(command.message)
    for i in (2, 5, 4, 1, 3):
        commands = server.handle(uploaded(federation, i), NOW_S)
    assert commands[-1].message == federation.survivor_set(range(1, 6), range(1, 6))


def test_a_member_votes_once_for_the_retry_rule(federation, server):
    # A malicious site signs both a U3 and the abort: it counts as one.
    to_step(federation, server, 3)
    everyone = federation.survivor_set(range(1, 6), range(1, 6))
    (vote,) = federation.site(1).feed(everyone)
    server.handle(vote, NOW_S)
    ctx, rh = server.cohort.ctx, server.cohort.rh
    signature = federation.site(1).key.sign(statements.abort_statement(ctx, rh))
    server.handle(AbortSignature(ctx, federation.members[0], signature), NOW_S)
    assert server.votes == (RetryVote(federation.members[0], signature),)


def test_an_excluded_site_is_told_once(federation, server):
    dealt = federation.deal_all()
    for i in (1, 2, 3, 4):
        server.handle(dealt[i], NOW_S)
    told = server.handle(c.Tick(), NOW_S + 10.0)
    assert federation.members[4] in [command.site for command in told]
    commands = server.handle(c.SiteLost(federation.members[0], Reason.TIMEOUT), NOW_S + 11.0)
    assert sent(commands, AbortRequest) == federation.members[1:4]


@pytest.mark.parametrize("step", [2, 3, 4])
def test_an_attempt_that_is_given_up_aborts_at_any_step_and_tells_all(federation, server, step):
    to_step(federation, server, step)
    commands = server.handle(c.GiveUp(Reason.STOPPED, "too few groups are left"), NOW_S)
    assert commands[0] == c.AbortAttempt(Reason.STOPPED, "too few groups are left", ())
    assert len(sent(commands, AbortRequest)) == 5
    assert server.phase is Phase.ABORTED
    assert server.handle(c.GiveUp(Reason.STOPPED, "again"), NOW_S) == []
