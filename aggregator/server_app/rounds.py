"""Carry a ServerApp's calls out from inside its process: over the socket and the shared memory."""

import socket
from typing import Any

import numpy as np
from flwr.app import ArrayRecord

from aggregator.secure_grid import GridCall, GridMean
from aggregator.server_app import frames
from aggregator.server_app.memory import ModelMemory
from privacy.errors import PeerError, UsageError
from privacy.spec import VectorSpec
from tidegate.confine.frames import MAX_FRAME_BYTES, decode, encode
from tidegate.flower_messages import as_float32


class SandboxMissing(UsageError):  # noqa: N818 - it is a state of the machine
    """A protection that the aggregator requires is missing."""


class AggregatorGone(BaseException):
    """The aggregator hung up: there is nothing left to do."""


class SocketRounds:
    """``GridRounds`` by asking the aggregator."""

    def __init__(self, start: frames.Start, connection: socket.socket, memory_fd: int) -> None:
        """Map the memory and read the spec."""
        self._connection = connection
        self._memory = ModelMemory(start.spec_bytes, start.model_length).attach(memory_fd)
        self._spec = VectorSpec.from_bytes(self._memory.spec.tobytes())

    def wait_for_nodes(self) -> list[int]:
        """Ask for the connected nodes."""
        node_ids: list[int] = self._ask({frames.NODES: True})["node_ids"]
        return node_ids

    def exchange(self, call: GridCall) -> GridMean | None:
        """Ask for an exchange.

        Raises:
            UsageError: The model is not the one that the job was submitted with.
        """
        self._put(call.arrays)
        config = call.instruction.config
        self._memory.config[: len(config)] = np.frombuffer(config, np.uint8)
        asked = {
            "node_ids": call.node_ids,
            "purpose": call.instruction.purpose,
            "config_bytes": len(config),
        }
        answer = self._ask({frames.EXCHANGE: asked})
        if "mean" not in answer:
            return None
        if call.instruction.evaluates:
            return GridMean(None, answer["mean"])
        return GridMean(self._spec.unflatten(self._memory.mean_D.copy()), answer["mean"])

    def tell_result(self, arrays: ArrayRecord) -> None:
        """Say what a strategy ended with."""
        self._put(arrays)
        self._send({frames.RESULT: True})

    def _put(self, arrays: ArrayRecord) -> None:
        try:
            sent_D = self._spec.flatten(as_float32(arrays))
        except PeerError as error:
            raise UsageError(
                f"the ServerApp's model is not the one that the job was submitted with: {error}"
            ) from None
        if not np.isfinite(sent_D).all():
            raise UsageError("the ServerApp's model holds NaN or infinity: it is not sent")
        self._memory.sent_D[:] = sent_D

    def _ask(self, frame: dict[str, Any]) -> dict[str, Any]:
        self._send(frame)
        raw = self._connection.recv(MAX_FRAME_BYTES)
        if not raw:
            raise AggregatorGone
        return decode(raw)

    def _send(self, frame: dict[str, Any]) -> None:
        try:
            self._connection.sendall(encode(frame))
        except BrokenPipeError:
            raise AggregatorGone from None
