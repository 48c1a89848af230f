"""Whole attempts of SA-1, every frame turned into wire bytes and back."""

import pytest

from privacy.errors import PeerError
from privacy.secagg import commands
from privacy.secagg.keys import SUITES
from privacy.secagg.messages import Published
from tests.support.secagg_harness import NEVER, Federation
from tidegate import convert
from tidegate import messages as m
from tidegate.convert import Limits
from tidegate.messages import AttemptResult
from tidegate.v1 import federation_pb2


class WiredFederation(Federation):
    """The in-memory federation of SA-1 with every frame turned into wire bytes and back."""

    frames = 0

    def run(self, gone_after=None):
        return super().run(gone_after, tamper=self.up)

    def up(self, index, message):
        if not isinstance(message, commands.SiteMessage):
            return message
        self.frames += 1
        raw = convert.site_message_to_wire(message).SerializeToString()
        parsed = federation_pb2.SessionRequest.FromString(raw)
        return convert.site_message_from_wire(parsed, self.members[index - 1])

    def _ask(self, index, message, clock, tamper):
        if isinstance(message, Published):
            wired = AttemptResult(message.ctx, message.transcript_hash, (1,))
        else:
            wired = message
        self.frames += 1
        raw = convert.aggregator_message_to_wire(wired).SerializeToString()
        parsed = federation_pb2.SessionResponse.FromString(raw)
        got = convert.aggregator_message_from_wire(parsed)
        assert got == wired
        return super()._ask(index, message if wired is not message else got, clock, tamper)


@pytest.mark.parametrize(
    "gone_after", [{}, {2: 0}, {2: 1}, {2: 2}, {2: 3}, {1: 1, 2: NEVER}, {1: 0, 2: 0}]
)
def test_whole_attempts_run_over_the_wire(gone_after):
    federation = WiredFederation(5, min_survivors=4)
    outcome = federation.run(gone_after)
    if sum(step < 4 for step in gone_after.values()) > 1:
        assert outcome.abort is not None
    else:
        assert (outcome.total_D == federation.expected_D(outcome.survivors)).all()
    assert federation.frames > 5


@pytest.mark.parametrize("suite", SUITES.values(), ids=lambda suite: suite.name)
def test_keys_and_sealed_shares_have_the_sizes_of_the_manifests_suite(suite):
    federation = Federation(4, suite=suite)
    dealt = federation.deal_all()
    stock = m.BundleStock((federation.bundles[0],))
    frames = [(federation.members[0], stock), (federation.members[0], dealt[1])]
    delivery = federation.delivery(dealt, 2)
    for other in SUITES.values():
        limits = Limits(suite=other)
        for sender, message in frames:
            wire = convert.site_message_to_wire(message)
            if other is suite:
                assert convert.site_message_from_wire(wire, sender, limits) == message
            elif message is stock or suite.transport.overhead != other.transport.overhead:
                with pytest.raises(PeerError, match="must have"):
                    convert.site_message_from_wire(wire, sender, limits)
        wire = convert.aggregator_message_to_wire(delivery)
        if suite.transport.overhead == other.transport.overhead:
            assert convert.aggregator_message_from_wire(wire, limits) == delivery
        else:
            with pytest.raises(PeerError, match="must have"):
                convert.aggregator_message_from_wire(wire, limits)
