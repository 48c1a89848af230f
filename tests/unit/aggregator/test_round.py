"""The round's machine in virtual time: cuts, retries, caps, returns, and what it waits for."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aggregator import round_events as r
from aggregator.cohort import CohortRule, choose, may_cut
from aggregator.round import Phase, Round, RoundConfig, SiteState
from privacy.errors import Reason, UsageError
from privacy.secagg import commands as c
from privacy.secagg.messages import AbortRequest

SITES = tuple(bytes([65 + i]) * 32 for i in range(5))
NAMES = {site: f"bank-{i + 1}" for i, site in enumerate(SITES)}


class FakeAttempt:
    """Stands for ``ServerAttempt``: answers with the commands it is given."""

    def __init__(self, cohort):
        self.cohort = cohort
        self.answers = {}
        self.events = []
        self.may_have_charged = ()
        self.deadline_s = None

    def on(self, kind, *commands):
        self.answers[kind] = commands
        return self

    def handle(self, event, now_s):
        self.events.append(event)
        return list(self.answers.get(type(event), ()))

    def next_deadline_s(self):
        return self.deadline_s


class World:
    """A round, and what it asked for."""

    def __init__(self, sites=SITES, *, target=5, deadline_s=60.0, tries=3, first_attempt=1, **rule):
        cohort = CohortRule(rule.get("colluders", 1), rule.get("least", 4), target, deadline_s)
        self.round = Round(RoundConfig(7, cohort, first_attempt, tries), NAMES)
        self.now_s = 1000.0
        self.trained = []
        self.opened = []
        self.ended = []
        self.sent = []
        self.note(self.round.begin(sites, self.now_s))

    def note(self, commands):
        for command in commands:
            match command:
                case r.Train(sites):
                    self.trained += sites
                case r.OpenAttempt():
                    self.opened.append(command)
                case r.Exchange(_, inner):
                    self.sent.append(inner)
                case _:
                    self.ended.append(command)

    def feed(self, *events):
        for event in events:
            self.note(self.round.handle(event, self.now_s))

    def ready(self, *sites):
        self.feed(*(r.SiteReady(site) for site in sites))

    def open(self, *answers):
        attempt = FakeAttempt(self.opened[-1].cohort)
        self.feed(r.AttemptOpened(self.opened[-1].attempt, attempt))
        return attempt

    def state(self, site):
        return self.round.states()[site][0]


def test_all_invited_train_and_the_cohort_is_cut_when_the_last_is_ready():
    world = World()
    assert sorted(world.trained) == sorted(SITES)
    world.ready(*SITES[:4])
    assert world.opened == []
    world.ready(SITES[4])
    assert world.opened == [r.OpenAttempt(1, tuple(sorted(SITES)))]
    assert world.round.phase is Phase.OPENING
    attempt = world.open()
    assert [type(event) for event in attempt.events] == [c.Start]


def test_target_cuts_before_the_slow_ones():
    world = World(target=4)
    world.ready(*SITES[:4])
    assert len(world.opened[0].cohort) == 4
    assert world.state(SITES[4]) is SiteState.TRAINING


def test_deadline_cuts_without_the_slow_but_never_below_the_least():
    world = World()
    assert world.round.next_deadline_s() == 1060.0
    world.ready(*SITES[:3])
    world.now_s = 1060.0
    world.feed(r.DeadlinePassed())
    assert world.opened == []
    assert world.round.next_deadline_s() is None
    world.ready(SITES[3])
    assert len(world.opened[0].cohort) == 4


def test_a_deadline_that_comes_early_changes_nothing():
    world = World()
    world.ready(*SITES[:4])
    world.now_s = 1059.9
    world.feed(r.DeadlinePassed())
    assert world.opened == []


def test_a_refusal_makes_the_others_a_cohort_at_once():
    world = World()
    world.ready(*SITES[:4])
    world.feed(r.SiteNotReady(SITES[4], "trainer-failed: boom"))
    assert SITES[4] not in world.opened[0].cohort
    assert world.round.states()[SITES[4]] == (SiteState.REFUSED, "trainer-failed: boom")


def test_a_lost_site_does_not_hold_up_the_others():
    world = World()
    world.ready(*SITES[:4])
    world.feed(r.SiteLeft(SITES[4], Reason.TIMEOUT))
    assert len(world.opened[0].cohort) == 4


def test_late_ready_while_exchanging_waits_for_the_next_round():
    world = World(target=4)
    world.ready(*SITES[:4])
    world.open()
    world.ready(SITES[4])
    assert len(world.opened) == 1
    assert world.state(SITES[4]) is SiteState.READY


def test_publish_ends_the_round_and_names_the_dropped():
    world = World()
    world.ready(*SITES)
    attempt = world.open()
    attempt.on(c.UploadCompleted, c.UnmaskSum(()), c.Publish(b"t" * 32, SITES[:4]))
    world.feed(r.Exchanged(1, c.UploadCompleted(SITES[0], b"")))
    opened = r.SumOpened(1, b"t" * 32, SITES[:4])
    assert world.ended == [opened, r.RoundDone((opened,), 5)]
    assert world.state(SITES[4]) is SiteState.DROPPED
    assert world.round.phase is Phase.OVER
    world.feed(r.SiteLeft(SITES[0], Reason.TIMEOUT), r.SiteReady(SITES[1]))
    assert len(world.ended) == 2


def abort(attempt, *more):
    return attempt.on(c.Tick, c.AbortAttempt(Reason.BELOW_THRESHOLD, "3 sites are left", ()), *more)


def tick(world, attempt):
    attempt.deadline_s = world.now_s
    world.feed(r.DeadlinePassed())


def test_abort_trains_anew_and_takes_the_next_number():
    world = World()
    world.ready(*SITES)
    attempt = world.open()
    world.trained.clear()
    request = c.SendTo(SITES[0], AbortRequest(b"c" * 32, "why"))
    abort(attempt, request)
    tick(world, attempt)
    # The request to abort goes out before the next training, or a site would mix them up.
    assert world.sent[-2:] == [attempt.answers[c.Tick][0], request]
    assert world.ended == [r.AttemptOver(1, Reason.BELOW_THRESHOLD, "3 sites are left")]
    assert sorted(world.trained) == sorted(SITES)
    world.ready(*SITES)
    pass_pause(world)
    assert [opened.attempt for opened in world.opened] == [1, 2]


def pass_pause(world):
    """Let the pause before the same cohort's next try go by."""
    world.now_s = world.round.next_deadline_s()
    world.feed(r.DeadlinePassed())


def test_the_same_cohort_is_tried_again_after_a_pause_that_grows_to_the_deadline():
    world = World(tries=20, deadline_s=2.0)
    pauses = []
    for number in range(1, 9):
        world.ready(*SITES)
        assert len(world.opened) == number
        attempt = world.open()
        abort(attempt)
        tick(world, attempt)
        world.ready(*SITES)
        assert len(world.opened) == number  # not at once, however ready they are
        pauses.append(world.round.next_deadline_s() - world.now_s)
        pass_pause(world)
    assert pauses == [0.25, 0.5, 1.0, 2.0, 2.0, 2.0, 2.0, 2.0]


def test_another_cohort_is_tried_at_once():
    world = World(target=4)
    world.ready(*SITES[:4])
    attempt = world.open()
    abort(attempt)
    tick(world, attempt)
    world.ready(*SITES[:4])
    assert len(world.opened) == 1
    world.ready(SITES[4])
    assert world.opened[-1].cohort == tuple(sorted(SITES))


def test_numbers_go_on_after_those_that_were_durable_before_a_crash():
    world = World(first_attempt=6)
    world.ready(*SITES)
    assert world.opened[0].attempt == 6


def test_tries_are_capped_with_the_reason():
    world = World(tries=2)
    for number in (1, 2):
        world.ready(*SITES)
        if number == 2:
            pass_pause(world)
        attempt = world.open()
        abort(attempt)
        tick(world, attempt)
    failed = world.ended[-1]
    assert isinstance(failed, r.RoundFailed)
    assert failed.reason is Reason.BELOW_THRESHOLD
    assert "3 sites are left" in failed.message
    assert "2 tries" in failed.message
    assert len(world.opened) == 2


def test_a_site_caught_cheating_sits_the_round_out_if_enough_others_are_there():
    world = World()
    world.ready(*SITES)
    attempt = world.open()
    blame = c.Blame(SITES[2], Reason.BAD_SHARE, "its share fails its commitment")
    attempt.on(c.Tick, blame, c.AbortAttempt(Reason.BAD_SHARE, "caught", (SITES[2],)))
    world.trained.clear()
    tick(world, attempt)
    assert SITES[2] not in world.trained
    assert world.state(SITES[2]) is SiteState.DROPPED
    world.ready(SITES[2])
    assert world.state(SITES[2]) is SiteState.DROPPED
    world.ready(*(site for site in SITES if site != SITES[2]))
    assert SITES[2] not in world.opened[-1].cohort


def test_when_all_fail_to_train_the_job_gets_their_reason_after_the_tries():
    world = World(tries=3)
    for _ in range(3):
        world.feed(*(r.SiteNotReady(site, "trainer-failed: no such column") for site in SITES))
    assert len(world.trained) == 15
    failed = world.ended[-1]
    assert failed.reason is Reason.TRAINER_FAILED
    assert "bank-5: trainer-failed: no such column" in failed.message


def test_an_exhausted_site_is_never_asked_again():
    world = World()
    world.feed(r.SiteNotReady(SITES[0], "budget-exhausted: 3.0 of 3.0", final=True))
    world.trained.clear()
    world.feed(r.SiteJoined(SITES[0]))
    assert world.trained == []
    world.ready(*SITES)
    assert SITES[0] not in world.opened[0].cohort


def test_a_site_that_comes_back_into_its_attempt_is_told_where_it_stands():
    world = World()
    world.ready(*SITES)
    attempt = world.open()
    world.trained.clear()
    world.feed(r.SiteLeft(SITES[1], Reason.TIMEOUT), r.SiteJoined(SITES[1]))
    assert attempt.events[1:] == [c.SiteLost(SITES[1], Reason.TIMEOUT), c.SiteBack(SITES[1])]
    assert world.trained == []


def test_a_site_lost_while_the_attempt_is_made_durable_is_lost_to_it():
    world = World()
    world.ready(*SITES)
    world.feed(r.SiteLeft(SITES[3], Reason.TIMEOUT))
    attempt = world.open()
    assert attempt.events == [c.Start(), c.SiteLost(SITES[3], Reason.TIMEOUT)]


def test_what_a_stalled_round_waits_for_is_said():
    world = World(sites=SITES[:4])
    assert world.round.waiting_for() == ""
    world.feed(r.SiteLeft(SITES[0], Reason.TIMEOUT))
    text = world.round.waiting_for()
    assert text.startswith("STALLED: a cohort needs 4 sites; 0 ready, 3 training")
    assert "bank-1: absent" in text
    world.feed(r.SiteJoined(SITES[0]))
    assert world.round.waiting_for() == ""


def test_rule_is_the_larger_of_threefold_collusion_and_the_least_survivors():
    assert CohortRule(2, 4, 6, 1.0).min_sites == 6
    assert CohortRule(1, 4, 4, 1.0).min_sites == 4
    with pytest.raises(UsageError, match="target_sites = 3"):
        CohortRule(1, 4, 3, 1.0)


@given(st.sets(st.sampled_from(SITES)), st.sets(st.sampled_from(SITES)), st.booleans())
def test_no_cohort_is_ever_below_the_least(ready, training, late):
    rule = CohortRule(1, 4, 5, 1.0)
    if may_cut(ready, training - ready, rule, late=late):
        assert len(ready) >= 4


EVENTS = st.lists(
    st.one_of(
        st.sampled_from(SITES).map(r.SiteJoined),
        st.sampled_from(SITES).map(lambda site: r.SiteLeft(site, Reason.TIMEOUT)),
        st.sampled_from(SITES).map(r.SiteReady),
        st.sampled_from(SITES).map(lambda site: r.SiteNotReady(site, "no")),
        st.just("open"),
        st.just("abort"),
        st.just("late"),
    ),
    max_size=60,
)


@settings(max_examples=200, deadline=None)
@given(EVENTS)
def test_whatever_happens_the_rules_hold(events):
    world = World(tries=4)
    attempt = None
    for event in events:
        world.now_s += 10
        if event == "open":
            if world.round.phase is Phase.OPENING:
                attempt = world.open()
        elif event == "abort":
            if world.round.phase is Phase.EXCHANGE:
                abort(attempt)
                tick(world, attempt)
        elif event == "late":
            world.feed(r.DeadlinePassed())
        else:
            world.feed(event)
    numbers = [opened.attempt for opened in world.opened]
    assert numbers == sorted(set(numbers))
    assert len(numbers) <= 4
    assert all(len(opened.cohort) >= 4 for opened in world.opened)
    failures = [end for end in world.ended if isinstance(end, r.RoundFailed)]
    assert len(failures) <= 1
    assert bool(failures) == (world.round.phase is Phase.OVER)


def test_a_cohort_is_cut_to_what_its_graph_takes():
    sites = {bytes([n // 256, n % 256]) * 16 for n in range(300)}
    shared = CohortRule(1, 4, 150, 1.0, shares_noise=True)
    assert shared.size_of(300) == 200
    assert shared.size_of(199) == 199
    chosen = choose(sites, shared, b"s" * 32, 1)
    assert len(chosen) == 200
    assert list(chosen) == sorted(chosen)
    assert chosen != choose(sites, shared, b"s" * 32, 2)
    assert CohortRule(1, 4, 150, 1.0).size_of(300) == 300
    # 50 of 210 are more than a fifth: the sparse graph does not carry them.
    assert CohortRule(50, 53, 150, 1.0).size_of(210) == 200


def test_a_target_whose_sums_need_the_sparse_graph_is_refused_for_shared_noise():
    with pytest.raises(UsageError, match="not for modes whose noise is shared"):
        CohortRule(1, 4, 201, 1.0, shares_noise=True)
    with pytest.raises(UsageError, match="cannot be a cohort"):
        CohortRule(50, 53, 210, 1.0)
    assert CohortRule(1, 4, 201, 1.0).target_sites == 201
