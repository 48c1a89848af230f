"""Whatever the aggregator does, a site never signs two ways, never sends uncharged, never twice."""

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from edge_node import commands as ec
from tests.support.site_simulation import NAMES, SimAggregator, SimSite
from tidegate import messages as m

STEPS = st.sampled_from(["shares", "upload", "u3", "unmask"])
LOSSES = st.dictionaries(st.sampled_from(NAMES), STEPS, max_size=3)
SITE = st.sampled_from(NAMES)
ACTIONS = st.one_of(
    st.tuples(st.just("train"), st.booleans()),
    st.tuples(st.just("attempt"), LOSSES),
    st.tuples(st.just("reconnect"), SITE),
    st.tuples(st.just("replay"), st.integers(0, 10_000)),
    st.tuples(st.just("abort"), SITE),
    st.tuples(st.just("late"), SITE),
    st.tuples(st.just("free"), st.sets(SITE)),
    st.tuples(st.just("prove"), st.integers(0, 10_000)),
)


class Watched(SimAggregator):
    """Keeps everything that ever left a site, and whether it was charged by then."""

    def __init__(self):
        super().__init__(NAMES)
        self.left = {name: [] for name in NAMES}
        self.released = {name: [] for name in NAMES}
        self.proofs = []
        for site in self.sites.values():
            site.carry_out = self.watch(site, site.carry_out)

    def watch(self, site: SimSite, carry_out):
        def watched(command):
            if isinstance(command, ec.SendMessage):
                self.left[site.name].append(command.message)
            if isinstance(command, ec.UploadUpdate):
                paid = command.ctx in site.charges or root(site, command.ctx) in site.charges
                assert paid, "charged before the first byte leaves"
            return carry_out(command)

        return watched

    def run_attempt(self, names, lose=None):
        outcome = super().run_attempt(names, lose)
        if outcome[0] == "published":
            ctx = self.delivered[-1][1].ctx
            for name in outcome[2]:
                self.released[name].append(root(self.sites[name], ctx))
        return outcome

    def prove(self, number):
        """Send a proof of any failed attempt to its site, or one that was sent before."""
        if self.failed:
            failed = self.failed[number % len(self.failed)]
            name = NAMES[number % len(NAMES)]
            proof = self.proof_of(failed, name)
            if proof is not None:
                self.proofs.append((name, proof))
        if self.proofs:
            name, proof = self.proofs[number % len(self.proofs)]
            self.sites[name].feed(proof)


def root(site, ctx):
    """Give the attempt whose charge an attempt was sent under."""
    while ctx in site.served:
        ctx = site.served[ctx]
    return ctx


def act(market, kind, value):
    match kind:
        case "train":
            market.version += value
            market.round += value
            market.ask_to_train()
        case "attempt":
            ready = [name for name, site in market.sites.items() if site.ready]
            if len(ready) >= 4 and all(len(s) > 2 for s in market.stock.values()):
                market.run_attempt(ready, lose=value)
        case "reconnect":
            site = market.sites[value]
            for event in (ec.Disconnected(), ec.Connected(), market.welcome()):
                site.feed(event)
        case "replay" if market.delivered:
            me, message = market.delivered[value % len(market.delivered)]
            market.by_me[me].feed(message)
        case "abort" if market.delivered:
            _, message = market.delivered[-1]
            ctx = getattr(message, "ctx", None) or message.context.digest()
            market.sites[value].feed(m.AbortRequest(ctx, "changed our mind"))
        case "free" if market.failed:
            market.free(sorted(value))
        case "prove":
            market.prove(value)
        case "late":
            site = market.sites[value]
            site.now_s += 700.0
            site.feed(ec.TimePassed())


def check(market):
    for name, site in market.sites.items():
        votes = {}
        for message in market.left[name]:
            match message:
                case m.DealtShares() | m.UnmaskShares():
                    kind = type(message).__name__
                    assert votes.setdefault((message.ctx, kind), message) == message
                case m.SurvivorSignature() | m.AbortSignature():
                    # Slot 3 holds one survivor set or the abort, never both.
                    assert votes.setdefault((message.ctx, "slot 3"), message) == message
        assert len(site.charges) == len(set(site.charges))
        assert len(set(site.served.values())) == len(site.served), "one sending serves one next"
        released = market.released[name]
        assert len(set(released)) == len(released), "one charge was opened in two sums"
        assert len(site.charges) <= site.trained, "an update is charged in one attempt only"


@settings(max_examples=30, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.lists(ACTIONS, min_size=1, max_size=14))
def test_no_order_of_events_makes_a_site_sign_two_ways(actions):
    market = Watched()
    market.connect()
    market.offer()
    market.ask_to_train()
    for kind, value in actions:
        act(market, kind, value)
        check(market)
