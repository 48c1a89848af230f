"""Every field of every frame of an attempt, changed in every way its type allows, one at a time.

Whatever is changed: no crash, no hang, an exact sum or none, nothing disclosed, a named reason
(`tests.support.wire_exchange.check_nothing_broke`). The frame of one site is changed; the others
are honest, and so is the aggregator where a site's frame is changed.
"""

import functools

import pytest

from tests.support.frame_mutations import changed, changes_for, paths
from tests.support.wire_exchange import DOWN, UP, Frame, WireExchange, check_nothing_broke
from tidegate.v1 import federation_pb2 as pb

VICTIM = 2
GONE = 5
"""A site that deals its shares and sends no more, so that both kinds of share are revealed."""


def drop_outs(frame: Frame):
    """Lose a site's frames once it has dealt: then the masks of a drop-out are taken off too."""
    lost = frame.index == GONE and frame.direction == DOWN and frame.kind != "Roster"
    return () if lost else None


@functools.cache
def recorded() -> tuple[Frame, ...]:
    """Give the victim's frames of an honest attempt, one drop-out among the others."""

    def alter(frame):
        lost = drop_outs(frame)
        return (frame.data,) if lost is None else lost

    exchange = WireExchange(n=6, alter=alter).run()
    assert exchange.total_D is not None
    return tuple(frame for frame in exchange.frames if frame.index == VICTIM)


def parsed(frame: Frame):
    kind = pb.SessionRequest if frame.direction == UP else pb.SessionResponse
    return kind.FromString(frame.data)


def cases():
    """Give every change of every field, each by its name."""
    for frame in recorded():
        message = parsed(frame)
        for path, descriptor in paths(message):
            for change in changes_for(path, descriptor):
                name = ".".join(map(str, path))
                yield pytest.param(frame, path, change, id=f"{frame.kind}-{name}-{change}")


@pytest.mark.parametrize(("frame", "path", "change"), list(cases()))
def test_one_changed_field_breaks_nothing(frame, path, change):
    message = parsed(frame)
    descriptor = dict(paths(message))[path]
    bent = changed(message, path, descriptor, change).SerializeToString()
    if bent == frame.data:
        return  # the change gives the same message back, as one that is zero already

    def alter(passing):
        lost = drop_outs(passing)
        if lost is not None:
            return lost
        hit = (passing.direction, passing.index, passing.kind) == (
            frame.direction,
            VICTIM,
            frame.kind,
        )
        return (bent,) if hit else (passing.data,)

    exchange = WireExchange(n=6, alter=alter).run()
    check_nothing_broke(exchange)
