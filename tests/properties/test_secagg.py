"""Random cohorts, drop-outs, orders, repeats and crashes: the exact sum of U3, or nothing.

And a state machine that plays an arbitrary aggregator against one honest site: whatever is asked,
in whatever order, with crashes between, the site keeps the four promises it lives by.
"""

import os
from dataclasses import replace

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from privacy.errors import PeerError
from privacy.secagg import statements
from privacy.secagg.commands import Step, Tick
from privacy.secagg.encoding import dec, enc
from privacy.secagg.keys import P256, X25519
from privacy.secagg.messages import (
    AbortRequest,
    AbortSignature,
    DealtShares,
    Published,
    SurvivorSignature,
    UnmaskShares,
)
from privacy.secagg.server import Phase
from tests.support.secagg_harness import NOW_S, Federation

LARGEST = int(os.environ.get("TIDEGATE_SECAGG_MAX_N", "12"))  # 40 for the full run

parts = st.one_of(
    st.text(max_size=8), st.binary(max_size=8), st.integers(min_value=0, max_value=2**70)
)


@given(st.lists(parts), st.lists(parts))
def test_enc_is_injective(a, b):
    assert (enc(*a) == enc(*b)) == ([(type(x), x) for x in a] == [(type(x), x) for x in b])
    assert dec(enc(*a)) == tuple(a)


@given(st.binary(max_size=64))
def test_dec_gives_only_what_enc_makes(raw):
    try:
        decoded = dec(raw)
    except PeerError:
        return
    assert enc(*decoded) == raw


@st.composite
def cohorts(draw):
    n = draw(st.integers(min_value=3, max_value=LARGEST))
    colluders = draw(st.integers(min_value=1, max_value=n // 3))
    least = max(2 * n // 3 + 1, colluders + 2)
    n_min = draw(st.integers(min_value=least, max_value=n))
    losses = draw(st.integers(min_value=0, max_value=n - n_min + 1))
    gone = draw(
        st.dictionaries(st.integers(min_value=1, max_value=n), st.integers(0, 4), max_size=losses)
    )
    return n, colluders, n_min, gone


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    cohorts(),
    st.booleans(),
    st.sampled_from([P256, X25519]),
    st.integers(min_value=8, max_value=32),
    st.randoms(use_true_random=False),
)
def test_random_cohorts_give_the_exact_sum_or_nothing(cohort, silent, suite, bits, rng):
    n, colluders, n_min, gone = cohort
    federation = Federation(n, colluders, n_min, suite=suite, ring_bits=bits, length=9)

    def shuffled(replies):
        return rng.sample(replies, len(replies))

    outcome = federation.run(gone, silent=silent, order=shuffled)
    floor = max(2 * n // 3 + 1, n_min)
    in_time = [i for i in range(1, n + 1) if gone.get(i, 9) >= 2]
    votes = [i for i in in_time if gone.get(i, 9) >= 3]
    answers = [i for i in votes if gone.get(i, 9) >= 4]
    quorum = 2 * n // 3 + 1
    if len(in_time) >= floor and len(votes) >= quorum and len(answers) >= quorum:
        assert outcome.abort is None
        assert outcome.survivors == tuple(federation.members[i - 1] for i in in_time)
        assert outcome.total_D.tolist() == federation.expected_D(outcome.survivors).tolist()
    else:
        assert outcome.server.phase is Phase.ABORTED
        assert outcome.total_D is None
    for site in federation.sites:
        assert site.charges == (Step.MASKED_UPDATE in site.slots)


@settings(max_examples=10, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.lists(
        st.tuples(st.integers(1, 5), st.sampled_from(["before", "after"]), st.sampled_from(Step)),
        max_size=4,
    )
)
def test_crashes_anywhere_change_no_byte_of_the_sum(crashes):
    calm = Federation(5).run()
    federation = Federation(5)
    for index, when, step in crashes:
        federation.site(index).crash_at = (when, step)
    for site in federation.sites:
        plain = site.feed

        def feed(event, now_s=NOW_S, *, site=site, plain=plain):
            out = plain(event, now_s)
            return site.restart() + plain(event, now_s) if site.crashed else out

        site.feed = feed
    outcome = federation.run()
    assert outcome.total_D.tolist() == calm.total_D.tolist()
    assert [site.charges for site in federation.sites] == [1] * 5


class ArbitraryAggregator(RuleBasedStateMachine):
    """Ask site 1 anything, in any order, of two rosters, many U2, many U3, crashes between."""

    @initialize(serial=st.just(1))
    def begin(self, serial):
        self.federation = Federation(5, serial=serial)
        self.site = self.federation.site(1)
        self.other = Federation(5, serial=2)
        self.dealt = self.federation.deal_all((2, 3, 4, 5))
        twin = Federation(5)
        self.dealt[1] = twin.deal_all((1,))[1]
        self.votes = {}

    def ask(self, message):
        if self.site.crashed:
            self.restart()
        self.site.aborted = None
        try:
            self.site.feed(message)
        except PeerError:
            return

    @rule(u3=st.sampled_from([(1, 2, 3, 4, 5), (1, 2, 3, 4), (1, 3, 4, 5)]))
    def go_on(self, u3):
        """Ask what an honest aggregator would ask next, so that late steps are reached too."""
        step = len(self.site.slots) + 1
        if step == 1:
            self.ask(self.federation.roster)
        elif step == 2:
            self.ask(self.federation.delivery(self.dealt, 1))
        elif step == 3:
            self.ask(self.federation.survivor_set((1, 2, 3, 4, 5), u3))
        elif self.site.attempt.cohort is not None:
            self.ask_quorum((1, 2, 3, 4, 5), u3, 5)

    @rule(own=st.booleans())
    def roster(self, own):
        other = self.other.roster
        changed = type(other)(
            self.federation.context,
            (self.federation.bundles[0], *other.bundles[1:]),
            self.federation.plan,
        )
        self.ask(self.federation.roster if own else changed)

    @rule(u2=st.sets(st.integers(2, 5), min_size=2, max_size=4))
    def delivery(self, u2):
        self.ask(self.federation.delivery(self.dealt, 1, only={1, *u2}))

    @rule(
        u2=st.sets(st.integers(1, 5), min_size=3, max_size=5),
        u3=st.sets(st.integers(1, 5), min_size=3, max_size=5),
    )
    def survivors(self, u2, u3):
        self.ask(self.federation.survivor_set(sorted(u2), sorted(u3)))

    @precondition(lambda self: self.site.attempt.cohort is not None)
    @rule(
        u3=st.sets(st.integers(1, 5), min_size=3, max_size=5),
        u2=st.sets(st.integers(1, 5), min_size=4, max_size=5),
        signers=st.integers(1, 5),
    )
    def quorum(self, u2, u3, signers):
        self.ask_quorum(u2, u3, signers)

    def ask_quorum(self, u2, u3, signers):
        cohort = self.site.attempt.cohort
        statement = statements.survivor_statement(cohort.rh, cohort.mh, u2, u3)
        members, site = self.federation.members, self.federation.site
        votes = [
            SurvivorSignature(cohort.ctx, members[i - 1], site(i).key.sign(statement))
            for i in sorted(u3)[:signers]
        ]
        self.ask(self.federation.quorum(votes))

    @rule(when=st.sampled_from(["before", "after"]), step=st.sampled_from(Step))
    def crash_next(self, when, step):
        self.site.crash_at = (when, step)

    @rule()
    def restart(self):
        self.site.aborted = None
        self.site.restart()

    @rule()
    def abort(self):
        self.ask(AbortRequest(self.federation.context.digest(), "why not"))

    @rule(late_s=st.sampled_from([0.0, 1e9]))
    def tick(self, late_s):
        if self.site.crashed:
            self.restart()
        self.site.aborted = None
        self.site.feed(Tick(), NOW_S + late_s)

    @rule()
    def published(self):
        self.ask(Published(self.federation.context.digest(), bytes(32)))

    def messages(self, kind):
        return {repr(m): m for m in self.site.sent if isinstance(m, kind)}.values()

    @invariant()
    def one_dealing_one_vector_one_answer(self):
        if not hasattr(self, "site"):
            return
        assert len(self.messages(DealtShares)) <= 1
        assert len(self.messages(UnmaskShares)) <= 1
        vectors = {m.values_d.tobytes() for m in self.site.sent if hasattr(m, "values_d")}
        assert len(vectors) <= 1

    @invariant()
    def one_u3_or_the_abort_never_both(self):
        if not hasattr(self, "site"):
            return
        votes = self.messages(SurvivorSignature)
        aborts = self.messages(AbortSignature)
        assert len(votes) + len(aborts) <= 1

    @invariant()
    def never_both_shares_of_one_peer(self):
        if not hasattr(self, "site"):
            return
        for answer in self.messages(UnmaskShares):
            own = {share.owner for share in answer.self_shares}
            other = {share.owner for share in answer.mask_shares}
            assert not own & other
            assert 1 in own

    @invariant()
    def nothing_leaves_uncharged(self):
        if not hasattr(self, "site"):
            return
        assert self.site.charges <= 1
        if any(hasattr(m, "values_d") for m in self.site.sent):
            assert self.site.charges == 1


TestArbitraryAggregator = ArbitraryAggregator.TestCase
TestArbitraryAggregator.settings = settings(
    max_examples=40,
    stateful_step_count=20,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_a_flipped_bit_anywhere_in_a_delivery_never_charges(data):
    federation = Federation(5)
    dealt = federation.deal_all()
    delivery = federation.delivery(dealt, 1)
    which = data.draw(st.integers(0, 3))
    share = delivery.shares[which]
    fields = {
        "ciphertext": share.ciphertext,
        "signature": share.signature,
        "self_seed": share.self_seed,
        "self_share": share.self_share,
        "mask_share": share.mask_share,
        "path": b"".join(share.path),
    }
    name = data.draw(st.sampled_from(sorted(fields)))
    raw = bytearray(fields[name])
    at = data.draw(st.integers(0, len(raw) * 8 - 1))
    raw[at // 8] ^= 1 << (at % 8)
    value = bytes(raw)
    if name == "path":
        value = tuple(value[step : step + 32] for step in range(0, len(value), 32))
    bent = replace(share, **{name: value})
    shares = [*delivery.shares]
    shares[which] = bent
    federation.site(1).feed(replace(delivery, shares=tuple(shares)))
    site = federation.site(1)
    assert site.aborted is not None
    assert site.charges == 0
    assert site.upload is None
