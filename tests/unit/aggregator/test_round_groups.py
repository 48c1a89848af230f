"""A round in groups, in virtual time: draws, numbers, groups that fail, retries, and the rules."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aggregator import round_events as r
from aggregator.cohort import CohortRule, GroupRule, cohort_rule
from aggregator.round import Phase, Round, RoundConfig, SiteState
from privacy.errors import Reason, UsageError
from privacy.secagg import commands as c
from tests.support.live_aggregator import job_toml
from tests.support.site_simulation import make_manifest
from tests.unit.aggregator.test_round import FakeAttempt
from tidegate.jobfile import JobFile

SITES = tuple(bytes([65 + i]) * 32 for i in range(20))
NAMES = {site: f"bank-{i + 1}" for i, site in enumerate(SITES)}
SEED = b"s" * 32


class World:
    """A round of groups, and what it asked for."""

    def __init__(self, groups=4, *, sites=SITES, tries=3, first_attempt=1, seed=SEED):
        rule = CohortRule(1, 4, len(sites), 60.0, GroupRule(groups, 3, 5))
        self.round = Round(RoundConfig(7, rule, first_attempt, tries, seed), NAMES)
        self.now_s = 1000.0
        self.asked, self.opened, self.ended, self.machines = [], [], [], {}
        self.note(self.round.begin(sites, self.now_s))

    def note(self, commands):
        for command in commands:
            match command:
                case r.OpenAttempt():
                    self.asked.append(command)
                case r.Train() | r.Exchange():
                    pass
                case r.SumOpened():
                    self.opened.append(command.attempt)
                case _:
                    self.ended.append(command)

    def feed(self, *events):
        for event in events:
            self.note(self.round.handle(event, self.now_s))

    def begin(self, sites=SITES):
        """Let all be ready, and their attempts open."""
        self.feed(*(r.SiteReady(site) for site in sites))
        if self.round.next_deadline_s() is not None and self.round.phase is Phase.GATHER:
            self.now_s = self.round.next_deadline_s()  # the pause before the same cohort
            self.feed(r.DeadlinePassed())
        self.open()

    def open(self):
        for asked in self.asked:
            if asked.attempt not in self.machines:
                machine = self.machines[asked.attempt] = FakeAttempt(asked.cohort)
                machine.on(c.GiveUp, c.AbortAttempt(Reason.STOPPED, "given up", ()))
                self.feed(r.AttemptOpened(asked.attempt, machine))

    def end(self, number, *commands):
        """Let an attempt end with these commands."""
        self.machines[number].on(c.Tick, *commands)
        self.machines[number].deadline_s = self.now_s
        self.feed(r.DeadlinePassed())
        self.machines[number].deadline_s = None

    def publish(self, number, missing=0):
        survivors = self.machines[number].cohort[missing:]
        self.end(number, c.UnmaskSum(()), c.Publish(bytes([number]) * 32, survivors))

    def abort(self, number):
        self.end(number, c.AbortAttempt(Reason.BELOW_THRESHOLD, "3 sites are left", ()))


def test_a_cohort_is_drawn_into_groups_each_with_a_number_of_its_own():
    world = World(first_attempt=9)
    world.begin()
    assert [(a.attempt, a.group, len(a.cohort)) for a in world.asked] == [
        (9, 1, 5),
        (10, 2, 5),
        (11, 3, 5),
        (12, 4, 5),
    ]
    assert sorted(site for a in world.asked for site in a.cohort) == sorted(SITES)
    groups = world.round.groups()
    assert all(groups[site] == a.group for a in world.asked for site in a.cohort)
    assert world.round.phase is Phase.EXCHANGE


def test_the_round_is_done_when_the_last_group_is():
    world = World()
    world.begin()
    for number in (2, 4, 1):
        world.publish(number)
    assert world.ended == []
    world.publish(3, missing=1)
    (done,) = world.ended
    assert done.cohort == 20
    assert [one.attempt for one in done.opened] == [1, 2, 3, 4]
    assert [len(one.survivors) for one in done.opened] == [5, 5, 4, 5]
    assert [world.opened, world.round.phase] == [[2, 4, 1, 3], Phase.OVER]
    assert world.round.states()[world.asked[2].cohort[0]][0] is SiteState.DROPPED


def test_one_group_fails_and_the_others_make_the_round():
    world = World()
    world.begin()
    world.publish(1)
    world.abort(2)
    world.publish(3)
    assert [type(end) for end in world.ended] == [r.AttemptOver]
    world.publish(4)
    assert [one.attempt for one in world.ended[-1].opened] == [1, 3, 4]


def test_when_too_few_can_open_the_others_are_given_up_before_they_charge():
    world = World(3, sites=SITES[:15])
    world.begin(SITES[:15])
    world.publish(1)
    world.abort(2)
    assert world.machines[3].events[-1] == c.GiveUp(
        Reason.BELOW_THRESHOLD,
        "too few groups are left: attempt 2 was aborted: below-threshold: 3 sites are left",
    )
    assert world.ended == [
        r.AttemptOver(2, Reason.BELOW_THRESHOLD, "3 sites are left"),
        r.AttemptOver(3, Reason.STOPPED, "given up"),
        r.AttemptUnused(1),
    ]
    assert world.round.phase is Phase.GATHER


def test_the_next_try_draws_anew_under_higher_numbers():
    world = World(3, sites=SITES[:15])
    world.begin(SITES[:15])
    world.abort(1)
    world.begin(SITES[:15])
    assert [a.attempt for a in world.asked] == [1, 2, 3, 4, 5, 6]
    first, second = world.asked[:3], world.asked[3:]
    assert [a.cohort for a in first] != [a.cohort for a in second]
    for number in (4, 5, 6):
        world.publish(number)
    assert [one.attempt for one in world.ended[-1].opened] == [4, 5, 6]


def test_tries_not_attempts_are_capped():
    world = World(3, sites=SITES[:15], tries=2)
    for number in (1, 4):
        world.begin(SITES[:15])
        world.abort(number)
    failed = world.ended[-2] if isinstance(world.ended[-1], r.AttemptUnused) else world.ended[-1]
    assert isinstance(failed, r.RoundFailed)
    assert "2 tries" in failed.message
    assert "attempt 4 was aborted: below-threshold" in failed.message
    assert len(world.asked) == 6


def test_a_site_is_heard_in_its_own_group_alone():
    world = World()
    world.begin()
    site = world.asked[2].cohort[0]
    world.feed(r.SiteLeft(site, Reason.TIMEOUT), r.SiteJoined(site))
    told = {number: machine.events[1:] for number, machine in world.machines.items()}
    assert told.pop(3) == [c.SiteLost(site, Reason.TIMEOUT), c.SiteBack(site)]
    assert not any(told.values())


def test_a_frame_for_an_attempt_that_ended_or_never_was_changes_nothing():
    world = World()
    world.begin()
    world.publish(1)
    before = len(world.machines[1].events)
    for number in (1, 77):
        world.feed(r.Exchanged(number, c.UploadCompleted(SITES[0], b"")))
    assert len(world.machines[1].events) == before


def test_too_few_for_all_groups_is_no_cohort():
    world = World()
    world.feed(*(r.SiteReady(site) for site in SITES[:19]))
    world.feed(r.SiteLeft(SITES[19], Reason.TIMEOUT))
    assert world.asked == []
    assert world.round.waiting_for().startswith("STALLED: a cohort needs 20 sites; 19 ready")


ROBUST = b'\n[robust]\ngroups = 3\ncombine = "median"\n'


def test_the_manifest_decides_how_large_groups_are():
    job = JobFile.parse(job_toml(target=15) + ROBUST)
    names = [f"bank-{i:02}" for i in range(40)]
    rule = cohort_rule(job, make_manifest(names)[0])
    assert (rule.group_sites, rule.min_sites, rule.groups.least_opened) == (5, 15, 3)
    for colluders, least in ((1, 6), (2, 5)):
        with pytest.raises(UsageError, match="3 groups of at least 6 sites"):
            cohort_rule(job, make_manifest(names, colluders, least)[0])


EVENTS = st.lists(
    st.one_of(
        st.sampled_from(SITES).map(r.SiteJoined),
        st.sampled_from(SITES).map(lambda site: r.SiteLeft(site, Reason.TIMEOUT)),
        st.sampled_from(SITES).map(r.SiteReady),
        st.just("all ready"),
        st.just("open"),
        st.tuples(st.sampled_from(["publish", "abort"]), st.integers(0, 3)),
        st.just("late"),
    ),
    max_size=80,
)


@settings(max_examples=200, deadline=None)
@given(EVENTS, st.binary(min_size=32, max_size=32))
def test_whatever_happens_groups_are_disjoint_whole_and_numbered_once(events, seed):
    world = World(tries=4, seed=seed)
    for event in events:
        world.now_s += 10
        if event == "all ready":
            world.feed(*(r.SiteReady(site) for site in SITES))
        elif event == "open":
            world.open()
        elif event == "late":
            world.feed(r.DeadlinePassed())
        elif isinstance(event, tuple):
            live = [g for g in world.round._groups.values() if g.machine and not g.end]
            if world.round.phase is Phase.EXCHANGE and len(live) > event[1]:
                number = live[event[1]].number
                (world.publish if event[0] == "publish" else world.abort)(number)
        else:
            world.feed(event)
    numbers = [asked.attempt for asked in world.asked]
    assert numbers == list(range(1, len(numbers) + 1))
    for begin in range(0, len(numbers), 4):
        drawn = [site for asked in world.asked[begin : begin + 4] for site in asked.cohort]
        assert len(drawn) == len(set(drawn)) >= 20
        assert all(len(asked.cohort) >= 5 for asked in world.asked)
    done = [end for end in world.ended if isinstance(end, r.RoundDone)]
    unused = {end.attempt for end in world.ended if isinstance(end, r.AttemptUnused)}
    used = {one.attempt for end in done for one in end.opened}
    assert len(done) <= 1
    assert all(len(end.opened) >= 3 for end in done)
    # Every sum that opened is used or laid aside, never both, and nothing else is used.
    if world.round.phase in (Phase.OVER, Phase.GATHER):
        assert used | unused == set(world.opened)
    assert not used & unused
