"""Any frames of an attempt lost, doubled, swapped, bent or replaced: an exact sum or none.

Several at once, at any site, both ways; replacements are frames of the same attempt, of another
one, and bytes without meaning. The oracle itself is tried too: it must see a break.
"""

import functools

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from privacy.secagg.messages import RevealedShare, UnmaskShares
from tests.support.frame_mutations import changed, changes_for, paths
from tests.support.wire_exchange import UP, Frame, WireExchange, check_nothing_broke
from tidegate.v1 import federation_pb2 as pb

SITES = 5
FRAMES = 35
"""Frames of an honest attempt of five sites; a test holds the number."""


@functools.cache
def recorded(n: int) -> tuple[Frame, ...]:
    return tuple(WireExchange(n=n).run().frames)


def bend(frame: Frame, numbers: tuple[int, int]) -> bytes:
    """Change one field, chosen by two numbers."""
    kind = pb.SessionRequest if frame.direction == UP else pb.SessionResponse
    message = kind.FromString(frame.data)
    fields = list(paths(message))
    path, descriptor = fields[numbers[0] % len(fields)]
    options = changes_for(path, descriptor)
    change = options[numbers[1] % len(options)]
    return changed(message, path, descriptor, change).SerializeToString()


def flipped(data: bytes, numbers: tuple[int, int]) -> bytes:
    at = numbers[0] % len(data)
    return data[:at] + bytes([data[at] ^ 1 << numbers[1] % 8]) + data[at + 1 :]


def other(n: int, number: int) -> bytes:
    frames = recorded(n)
    return frames[number % len(frames)].data


ACTIONS = {
    "lost": lambda frame, numbers, raw: (),
    "doubled": lambda frame, numbers, raw: (frame.data, frame.data),
    "bent": lambda frame, numbers, raw: (bend(frame, numbers),),
    "bent too": lambda frame, numbers, raw: (frame.data, bend(frame, numbers)),
    "another before": lambda frame, numbers, raw: (other(SITES, numbers[0]), frame.data),
    "of another cohort": lambda frame, numbers, raw: (other(SITES + 1, numbers[0]),),
    "bytes": lambda frame, numbers, raw: (raw,),
    "cut": lambda frame, numbers, raw: (frame.data[: numbers[0] % (len(frame.data) + 1)],),
    "flipped": lambda frame, numbers, raw: (flipped(frame.data, numbers),),
}
"""What arrives instead of a frame."""

ALTERATIONS = st.dictionaries(
    st.integers(0, FRAMES - 1),
    st.tuples(
        st.sampled_from(sorted(ACTIONS)),
        st.tuples(st.integers(0, 10_000), st.integers(0, 10_000)),
        st.binary(max_size=80),
    ),
    max_size=4,
)


def test_an_honest_attempt_has_as_many_frames():
    exchange = WireExchange(n=SITES).run()
    check_nothing_broke(exchange)
    assert exchange.total_D is not None
    assert len(exchange.frames) == FRAMES


@settings(max_examples=250, deadline=None, suppress_health_check=list(HealthCheck))
@example({15: ("bent", (5, 253), b"")})  # one site signs a smaller U3, which four others do not
@given(ALTERATIONS)
def test_no_frames_break_an_attempt(alterations):
    position = iter(range(10_000))

    def alter(frame):
        chosen = alterations.get(next(position))
        if chosen is None:
            return (frame.data,)
        action, numbers, raw = chosen
        return ACTIONS[action](frame, numbers, raw)

    check_nothing_broke(WireExchange(n=SITES, alter=alter).run())


def spoil_sum(exchange):
    exchange.total_D = exchange.total_D + np.uint32(1)


def spoil_charge(exchange):
    exchange.federation.site(1).charges = 0


def spoil_shares(exchange):
    site = exchange.federation.site(1)
    sent = next(m for m in site.sent if isinstance(m, UnmaskShares))
    owner = sent.self_shares[0].owner
    both = UnmaskShares(sent.ctx, sent.sender, (), (RevealedShare(owner, bytes(33)),))
    site.sent.append(both)


def spoil_quorum(exchange):
    site = exchange.federation.site(1)
    site.sent[:] = [m for m in site.sent if type(m).__name__ != "SurvivorSignature"]


@pytest.mark.parametrize("spoil", [spoil_sum, spoil_charge, spoil_shares, spoil_quorum])
def test_the_oracle_sees_a_break(spoil):
    exchange = WireExchange(n=SITES).run()
    spoil(exchange)
    with pytest.raises(AssertionError):
        check_nothing_broke(exchange)
