"""Give the app's loop its batches, one slot of shared memory after the other (trainer side)."""

import json
from collections.abc import Iterator
from typing import Any

import numpy as np

from edge_node.trainer.ranks import Connection
from edge_node.trainer.shared_memory import SharedArrays
from tidegate.confine.frames import MAX_FRAME_BYTES, encode


class DaemonGoneError(Exception):
    """The daemon closed its end: there is nobody to work for."""


class BatchPort:
    """The trainer's end of the conversation that `edge_node.trainer.frames` describes."""

    def __init__(self, connection: Connection, arrays: SharedArrays) -> None:
        self._connection = connection
        self.arrays = arrays

    def receive(self) -> dict[str, Any]:
        """Wait for the daemon's next frame.

        Raises:
            DaemonGoneError: It closed its end.
        """
        raw = self._connection.recv(MAX_FRAME_BYTES)
        if not raw:
            raise DaemonGoneError
        frame: dict[str, Any] = json.loads(raw)
        return frame

    def send(self, frame: dict[str, Any]) -> None:
        """Send a frame to the daemon."""
        self._connection.sendall(encode(frame))

    def put_blob(self, content: bytes) -> dict[str, Any]:
        """Lay bytes into the shared memory; gives what the answer says of them.

        Raises:
            ValueError: There is no room for them.
        """
        room = self.arrays.blob
        if len(content) > len(room):
            raise ValueError(f"an answer of {len(content)} bytes is more than {len(room)}")
        room[: len(content)] = np.frombuffer(content, dtype=np.uint8)
        return {"blob": len(content)}

    def batches(self, n_chunks: int) -> Iterator[tuple[int, int]]:
        """Yield each slot's number as the daemon fills it, and how many of its rows are real.

        A slot counts as done, and is told to the daemon, when the next one is asked for. There are
        ``n_chunks`` of them, or fewer where the daemon says that it stops.
        """
        for _ in range(n_chunks):
            frame = self.receive()
            if "stop" in frame:
                return
            yield frame["chunk"], frame["rows"]
            self.send({"chunk": frame["chunk"]})
