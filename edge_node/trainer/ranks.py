"""Start a trainer's further processes and pass the daemon's frames on to them (trainer side).

With ``[trainer] processes`` above 1 a trainer is several processes, its ranks, inside one sandbox.
Each loads the app, sees the same shared memory and hears the same frames, and each evaluates its
share of every batch. Rank 0 alone talks with the daemon: it passes each frame on before it acts on
it, and says that something is done when every rank has said so. Rank 0 is the first process of its
process namespace, so the kernel ends the others with it.
"""

import json
import os
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from tidegate.confine.frames import MAX_FRAME_BYTES, encode, failure_frame

_LAST_FRAMES = 8


class Connection(Protocol):
    """What a rank hears the daemon by and answers it with."""

    def recv(self, size: int, /) -> bytes:
        """Wait for a frame; empty when the other end is closed."""
        ...

    def sendall(self, data: bytes, /) -> None:
        """Send a frame."""
        ...


class RankFailedError(Exception):
    """Another rank failed; its own frame says why."""

    def __init__(self, frame: dict[str, Any]) -> None:
        super().__init__(str(frame))
        self.frame = frame


class RanksUnavailableError(Exception):
    """This machine's sandbox gives ranks no network of their own to talk by."""


class Leader:
    """Rank 0's connection: the daemon's, with the other ranks behind it."""

    def __init__(self, daemon: socket.socket, followers: Sequence[socket.socket]) -> None:
        """Take the daemon's end and that of each other rank, in their order."""
        self._daemon = daemon
        self._followers = followers

    def recv(self, size: int, /) -> bytes:
        """Wait for the daemon's next frame and pass it on.

        Raises:
            RankFailedError: A rank has ended.
        """
        raw = self._daemon.recv(size)
        for follower in self._followers if raw else ():
            try:
                follower.sendall(raw)
            except OSError as error:
                raise RankFailedError(self.last_words()) from error
        return raw

    def sendall(self, data: bytes, /) -> None:
        """Wait until every rank has said the like, then say it to the daemon.

        Raises:
            RankFailedError: A rank failed or has ended.
        """
        self.wait()
        self._daemon.sendall(data)

    def wait(self) -> None:
        """Wait for a frame of every other rank.

        Raises:
            RankFailedError: A rank failed or has ended.
        """
        for follower in self._followers:
            said = follower.recv(MAX_FRAME_BYTES)
            if not said or "failed" in json.loads(said):
                raise RankFailedError(json.loads(said) if said else self.last_words())

    def tell(self, frame: dict[str, Any]) -> None:
        """Tell the daemon a failure: that of another rank if there is one, for it came first."""
        failed = self._failure() or frame
        self._daemon.sendall(encode(failed))

    def last_words(self) -> dict[str, Any]:
        """Give what a rank that has ended said last."""
        return self._failure() or failure_frame("app", "a rank of the trainer ended unexpectedly")

    def _failure(self) -> dict[str, Any] | None:
        for follower in self._followers:
            follower.setblocking(False)
            for _ in range(_LAST_FRAMES):
                try:
                    said = follower.recv(MAX_FRAME_BYTES)
                except OSError:
                    break
                if said and "failed" in json.loads(said):
                    frame: dict[str, Any] = json.loads(said)
                    return frame
        return None


@dataclass(frozen=True)
class Rank:
    """This process among the trainer's.

    Attributes:
        index: From 0.
        count: How many there are.
        connection: Where frames come from and go to.
    """

    index: int
    count: int
    connection: Connection

    def share(self, length: int) -> slice:
        """Give the part of so many rows that is this rank's: shares differ by one row at most."""
        return slice(length * self.index // self.count, length * (self.index + 1) // self.count)

    def meet(self) -> None:
        """Have rank 0 wait until every rank has come to this point.

        Raises:
            RankFailedError: A rank failed or has ended.
        """
        if isinstance(self.connection, Leader):
            self.connection.wait()
        else:
            self.connection.sendall(encode({"here": True}))

    def tell(self, frame: dict[str, Any]) -> None:
        """Say a failure, as the last frame."""
        if isinstance(self.connection, Leader):
            self.connection.tell(frame)
        else:
            self.connection.sendall(encode(frame))


def start_ranks(count: int, daemon: socket.socket) -> Rank:
    """Fork the further ranks; each of them returns from here too.

    To be called in the sandbox, before its filter refuses new processes and before any thread runs;
    after the libraries are imported, whose memory the ranks then share.

    Args:
        count: How many ranks there will be.
        daemon: The connection to the daemon, which only rank 0 keeps.
    """
    pairs = [socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET) for _ in range(count - 1)]
    for index, (_, theirs) in enumerate(pairs, start=1):
        if os.fork() == 0:
            daemon.close()
            for ours, other in pairs:
                ours.close()
                if other is not theirs:
                    other.close()
            return Rank(index, count, theirs)
    for _, theirs in pairs:
        theirs.close()
    return Rank(0, count, Leader(daemon, [ours for ours, _ in pairs]))
