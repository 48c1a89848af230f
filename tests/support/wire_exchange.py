"""One attempt of SA-1 whose every message crosses as bytes, any of which a test may replace.

Both machines are real. ``alter`` sees each frame on its way and gives the frames that arrive
instead: none, others, several. What must hold whatever it gives stands in ``check_nothing_broke``.
"""

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import numpy as np
from google.protobuf.message import DecodeError

from privacy.errors import PeerError, Reason
from privacy.secagg import commands as c
from privacy.secagg.masking import MaskedUpdate, unmask
from privacy.secagg.messages import AbortSignature, Published, UnmaskShares
from tests.support.secagg_harness import NOW_S, Federation
from tidegate import convert
from tidegate.v1 import federation_pb2 as pb

UP, DOWN = "up", "down"
MOST_EVENTS = 2_000
"""An honest attempt of five sites takes some fifty: more than this is a hang."""


@dataclass(frozen=True)
class Frame:
    """A message on its way: to or from the site of this index."""

    direction: str
    index: int
    kind: str
    data: bytes


Alter = Callable[[Frame], Iterable[bytes]]


@dataclass
class WireExchange:
    """An attempt of n sites, driven to its end."""

    n: int = 5
    alter: Alter = lambda frame: (frame.data,)
    federation: Federation = field(init=False)
    frames: list[Frame] = field(default_factory=list)
    refusals: list[PeerError] = field(default_factory=list)
    total_D: np.ndarray | None = None
    survivors: tuple[bytes, ...] = ()
    aborted: c.AbortAttempt | None = None
    blamed: list[c.Blame] = field(default_factory=list)

    def __post_init__(self):
        self.federation = Federation(self.n, length=4)
        self._server = self.federation.new_server()
        self._sum_D = np.zeros(4, dtype=np.uint32)
        self._todo: list = [c.Start()]

    def run(self) -> "WireExchange":
        """Drive the attempt until it is over, deadlines included."""
        clock, events = NOW_S, 0
        while self._todo or not self._server.is_over:
            if not self._todo:
                clock = self._server.next_deadline_s()
                self._todo.append(c.Tick())
            events += 1
            assert events < MOST_EVENTS, "the exchange does not end"
            try:
                commands = self._server.handle(self._todo.pop(0), clock)
            except PeerError as error:
                self.refusals.append(error)
                continue
            for command in commands:
                self._carry_out(command, clock)
        return self

    def _carry_out(self, command, clock: float) -> None:
        match command:
            case c.SendTo(site, message):
                self._down(self.federation.members.index(site) + 1, message, clock)
            case c.FoldUpload(sender):
                index = self.federation.members.index(sender) + 1
                self._sum_D += self.federation.site(index).upload.values_d
            case c.UnmaskSum(terms):
                unmask(self._sum_D, terms, self.federation.ring_bits)
            case c.Publish(_, survivors):
                self.total_D, self.survivors = self._sum_D, survivors
            case c.AbortAttempt():
                self.aborted = command
            case c.Blame():
                self.blamed.append(command)

    def _down(self, index: int, message, clock: float) -> None:
        if isinstance(message, Published):
            return  # not a frame of the session: it travels with the next version
        raw = convert.aggregator_message_to_wire(message).SerializeToString()
        for data in self._altered(Frame(DOWN, index, type(message).__name__, raw)):
            try:
                known = convert.aggregator_message_from_wire(pb.SessionResponse.FromString(data))
                answers = self.federation.site(index).feed(known, clock)
            except DecodeError:
                continue  # gRPC ends the call before our code sees it
            except PeerError as error:
                self.refusals.append(error)
                continue
            for answer in answers:
                self._up(index, answer)

    def _up(self, index: int, message) -> None:
        me = self.federation.site(index).me
        if isinstance(message, MaskedUpdate):  # goes by the transfer service, digest-checked
            self._todo.append(c.UploadCompleted(me, message.values_d.tobytes()))
            return
        raw = convert.site_message_to_wire(message).SerializeToString()
        for data in self._altered(Frame(UP, index, type(message).__name__, raw)):
            try:
                parsed = pb.SessionRequest.FromString(data)
                self._todo.append(convert.site_message_from_wire(parsed, me))
            except DecodeError:
                self._todo.append(c.SiteLost(me, Reason.MALFORMED))
            except PeerError as error:
                # The session ends with its reason: the attempt goes on without the site.
                self.refusals.append(error)
                self._todo.append(c.SiteLost(me, error.reason))

    def _altered(self, frame: Frame) -> Iterable[bytes]:
        self.frames.append(frame)
        return self.alter(frame)


def check_nothing_broke(exchange: WireExchange) -> None:
    """Assert what no frame may change: an exact sum or none, one answer a step, no disclosure."""
    federation = exchange.federation
    for error in exchange.refusals:
        assert isinstance(error.reason, Reason)
        assert str(error.args[0])
    for blame in (*exchange.blamed, *filter(None, (exchange.aborted,))):
        assert isinstance(blame.reason, Reason)
        assert blame.message
    assert (exchange.total_D is None) == (exchange.aborted is not None)
    if exchange.total_D is not None:
        np.testing.assert_array_equal(exchange.total_D, federation.expected_D(exchange.survivors))
        assert len(exchange.survivors) >= federation.policy.min_survivors
    kinds_revealed: dict[tuple[int, int], set[str]] = {}
    opened = set()
    for index, site in enumerate(federation.sites, start=1):
        sent = Counter(type(message).__name__ for message in site.sent)
        assert not (sent["SurvivorSignature"] and sent["AbortSignature"]), "slot 3 holds both"
        if site.upload is not None:
            assert site.charges == 1, "an update left without its charge"
        for message in site.sent:
            if isinstance(message, UnmaskShares):
                assert sent["SurvivorSignature"], "shares left before a U3 was signed"
                opened.add(site.attempt._state.chosen.survivors)
                for kind, shares in (("b", message.self_shares), ("m", message.mask_shares)):
                    for share in shares:
                        kinds_revealed.setdefault((index, share.owner), set()).add(kind)
            assert not isinstance(message, AbortSignature) or site.erased
    assert all(len(kinds) == 1 for kinds in kinds_revealed.values()), "both shares of one peer left"
    assert len(opened) <= 1, "shares left for two survivor sets"
