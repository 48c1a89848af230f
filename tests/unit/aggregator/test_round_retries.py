"""Who was charged in a failed attempt first gets its proof, and is asked to train after it."""

from dataclasses import replace

import pytest

from aggregator import round_events as r
from aggregator.cohort import CohortRule
from aggregator.retry_votes import VOTES_S
from aggregator.round import Phase, Round, RoundConfig
from privacy.errors import Reason
from privacy.secagg import commands as c
from privacy.secagg.masking import MaskedUpdate
from privacy.secagg.messages import AbortRequest, AbortSignature, DealtShares, RetryProof
from privacy.secagg.retry import check_retry
from tests.support.secagg_harness import NOW_S, Federation


class Life:
    """A round over real machines; ``asked`` is what sites were told since the abort, in order."""

    def __init__(self, lost_on=MaskedUpdate):
        self.federation = Federation(5)
        self.members = self.federation.members
        self.lost, self.lost_on = set(self.members[3:]), lost_on
        rule = CohortRule(1, 4, 5, 60.0)
        names = {site: f"bank-{i}" for i, site in enumerate(self.members, 1)}
        self.round = Round(RoundConfig(7, rule, 1, 3), names)
        self.now_s = NOW_S
        self.asked, self.votes, self.opened = [], [], 0
        self.note(self.round.begin(self.members, NOW_S))
        self.asked.clear()
        self.feed(*(r.SiteReady(site) for site in self.members))
        self.feed(r.AttemptOpened(1, self.federation.new_server()))

    def feed(self, *events):
        for event in events:
            self.note(self.round.handle(event, self.now_s))

    def note(self, commands):
        for command in commands:
            match command:
                case r.Exchange(_, c.SendTo(site, message)):
                    self.answer(site, message)
                case r.Train(sites):
                    self.asked += [(site, "train") for site in sites]
                case r.Tell(site, messages):
                    self.asked += [(site, message) for message in messages]
                case r.OpenAttempt():
                    self.opened += 1

    def answer(self, site, message):
        index = self.members.index(site) + 1
        for said in self.federation.site(index).feed(message):
            if isinstance(said, AbortSignature):
                self.votes.append(said)
            elif isinstance(said, self.lost_on) and site in self.lost:
                self.feed(r.SiteLeft(site, Reason.TIMEOUT))
            elif isinstance(said, MaskedUpdate):
                done = c.UploadCompleted(site, said.values_d.tobytes())
                self.feed(r.Exchanged(1, done))
            else:
                self.feed(r.Exchanged(1, said))

    def vote(self, count):
        for signed in self.votes[:count]:
            self.feed(r.Exchanged(1, signed))
        del self.votes[:count]

    def told(self, site):
        return [what for name, what in self.asked if name == site]


@pytest.fixture
def life():
    return Life()


def test_charged_sites_are_not_asked_to_train_while_votes_may_come(life):
    assert life.round.phase is Phase.GATHER
    assert len(life.votes) == 3
    assert life.asked == []
    life.vote(2)
    assert life.asked == []


def test_with_a_votes_each_gets_its_proof_and_then_the_request(life):
    life.vote(3)
    for index, site in enumerate(life.members[:3], 1):
        proof, train = life.told(site)
        assert train == "train"
        at_site = life.federation.site(index)
        assert check_retry(at_site.config, at_site.slots, proof)
        assert len(proof.votes) == life.federation.cohort.limits.retry


def test_a_site_that_comes_back_hears_of_the_end_then_the_proof_then_the_request(life):
    life.vote(3)
    site = life.members[4]
    life.feed(r.SiteJoined(site))
    end, proof, train = life.told(site)
    assert isinstance(end, AbortRequest)
    assert isinstance(proof, RetryProof)
    assert train == "train"
    at_site = life.federation.site(5)
    assert check_retry(at_site.config, at_site.slots, proof)


def test_votes_that_do_not_come_are_not_waited_for_for_long(life):
    life.vote(2)
    assert life.round.next_deadline_s() <= NOW_S + VOTES_S
    life.now_s = NOW_S + VOTES_S
    life.feed(r.DeadlinePassed())
    assert sorted(life.asked) == [(site, "train") for site in life.members[:3]]


def test_nobody_waits_for_a_vote_of_one_who_is_gone(life):
    life.vote(2)
    life.feed(r.SiteLeft(life.members[2], Reason.TIMEOUT))
    life.feed(r.DeadlinePassed())
    life.now_s += VOTES_S
    life.feed(r.DeadlinePassed())
    assert sorted(life.asked) == [(site, "train") for site in life.members[:2]]


def test_a_vote_that_does_not_verify_frees_nobody(life):
    bad = replace(life.votes.pop(), signature=life.votes[0].signature)
    life.vote(2)
    life.feed(r.Exchanged(1, bad))
    assert life.asked == []


def test_a_late_vote_still_frees_who_was_not_asked_yet(life):
    late = life.votes.pop()
    life.vote(2)
    life.now_s = NOW_S + VOTES_S
    life.feed(r.DeadlinePassed())
    life.asked.clear()
    life.feed(r.Exchanged(1, late))
    life.feed(r.SiteJoined(life.members[3]))
    assert [type(what) for what in life.told(life.members[3])] == [AbortRequest, RetryProof, str]


def test_an_attempt_that_charged_nobody_makes_nobody_wait():
    life = Life(lost_on=DealtShares)
    assert sorted(life.asked) == [(site, "train") for site in life.members[:3]]


def test_who_was_not_charged_and_is_ready_by_itself_is_not_asked_again(life):
    life.feed(r.SiteReady(life.members[0]))
    life.vote(3)
    assert life.told(life.members[0]) == []
    assert len(life.told(life.members[1])) == 2


def test_freed_sites_make_the_next_cohort(life):
    life.vote(3)
    for site in life.members[3:]:
        life.feed(r.SiteJoined(site))
    life.feed(*(r.SiteReady(site) for site in life.members))
    life.now_s = NOW_S + 60.0
    life.feed(r.DeadlinePassed())
    assert life.opened == 2
