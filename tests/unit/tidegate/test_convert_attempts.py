"""Whole attempts of SA-1, every frame turned into wire bytes and back."""

import pytest

from privacy.secagg import commands
from privacy.secagg.messages import Published
from tests.support.secagg_harness import NEVER, Federation
from tidegate import convert
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
