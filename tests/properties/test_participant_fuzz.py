"""Whatever frames the aggregator sends, in whatever order, a site's daemon is not stopped.

Frames are valid by the bounds of `tidegate.convert`, beyond which nothing reaches a participant.
They are real ones of a whole attempt, real ones with a field exchanged, and made-up ones that name
the live attempt, so that they get past the first check.
"""

import dataclasses
import functools

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from edge_node import commands as ec
from privacy.errors import PeerError
from privacy.pipeline import Mode
from privacy.secagg.messages import AttemptContext
from tests.support.encoding_plans import make_plan
from tests.support.site_simulation import NAMES, PLAN, SimAggregator
from tests.support.wire_messages import aggregator_messages
from tidegate import messages as m

PLANS = {"private": PLAN, "plain": make_plan(Mode.NONE, gradient=5, metrics=0)}
N_FRAMES = 5
CLOSES_THE_SESSION = (m.Welcome,)


@functools.cache
def recorded(plan):
    """Give the frames that a site got in a published attempt: the same in every life of it."""
    market = SimAggregator(NAMES, plan=PLANS[plan])
    market.connect()
    market.offer()
    market.ask_to_train()
    assert market.run_attempt(NAMES)[0] == "published"
    me = market.sites["bank-a"].me
    return [frame for to, frame in market.delivered if to == me]


def in_the_midst(plan, n_frames):
    """Give a site that has taken the first frames of that attempt."""
    market = SimAggregator(NAMES, plan=PLANS[plan])
    market.connect()
    market.offer()
    market.ask_to_train()
    site = market.sites["bank-a"]
    for frame in recorded(plan)[:n_frames]:
        site.feed(frame)
    return market, site


def aimed(message, real):
    """Let a made-up frame name the live attempt and job."""
    roster = real[0]
    wanted = {"ctx": roster.context.digest(), "job_id": roster.context.job_id, "count": 2}
    names = {field.name for field in dataclasses.fields(message)} & wanted.keys()
    message = dataclasses.replace(message, **{name: wanted[name] for name in names})
    if isinstance(message, m.SurvivorQuorum):
        votes = tuple(dataclasses.replace(v, ctx=message.ctx) for v in message.signatures)
        message = dataclasses.replace(message, signatures=votes)
    return message


def bent(real, message, number):
    """Exchange one field of a real frame for that of a made-up one of its kind."""
    frames = [frame for frame in real if type(frame) is type(message)]
    if not frames:
        return aimed(message, real)
    names = [field.name for field in dataclasses.fields(message) if field.name != "ctx"]
    name = names[number % len(names)]
    value = getattr(message, name)
    if isinstance(value, AttemptContext):  # of the job, but of another attempt
        value = dataclasses.replace(frames[0].context, attempt=value.attempt, round=value.round)
    return dataclasses.replace(frames[0], **{name: value})


FRAMES = st.one_of(
    st.tuples(st.just("real"), st.integers(0, 100), st.none()),
    st.tuples(st.just("aimed"), st.just(0), aggregator_messages),
    st.tuples(st.just("bent"), st.integers(0, 100), aggregator_messages),
    st.tuples(st.just("as it is"), st.just(0), aggregator_messages),
)


@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.sampled_from(sorted(PLANS)), st.integers(0, N_FRAMES), st.lists(FRAMES, max_size=6))
def test_no_frame_stops_the_daemon(plan, n_frames, frames):
    real = recorded(plan)
    market, site = in_the_midst(plan, n_frames)
    for kind, number, message in frames:
        match kind:
            case "real":
                frame = real[number % len(real)]
            case "aimed":
                frame = aimed(message, real)
            case "bent":
                frame = bent(real, message, number)
            case _:
                few = isinstance(message, m.BundleRequest)
                frame = m.BundleRequest(2) if few else message
        try:
            site.feed(frame)
        except PeerError:
            assert isinstance(frame, CLOSES_THE_SESSION)
            for event in (ec.Disconnected(), ec.Connected(), market.welcome()):
                site.feed(event)
    for _ in range(2):  # the attempt dies of it, then what it was charged for is forgotten
        site.now_s += 1e6
        site.feed(ec.TimePassed())
    assert site.participant.next_deadline_s() is None
    assert len(site.charges) <= site.trained
