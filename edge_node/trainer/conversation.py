"""Hold one request's conversation with a trainer process (daemon side).

Shapes: D = coordinates of the model vector, P = rows of a physical batch, W = numbers of a row,
N = rows of one batch.
"""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edge_node.trainer.child import TrainerChild, TrainerFailure
from edge_node.trainer.shared_memory import SLOTS, SharedArrays
from privacy.errors import UsageError

Rows = NDArray[np.float32]
_BROKEN = "the app broke the trainer's protocol"


@dataclass(frozen=True)
class Reply:
    """How a request ended; all of it hostile input, bounded but otherwise unchecked.

    Attributes:
        fields: The trainer's last frame, without ``done`` and ``blob``.
        blob: The bytes that it says belong to its answer, a copy.
    """

    fields: dict[str, Any]
    blob: bytes = field(default=b"", repr=False)


class Conversation:
    """The frames of one request, and the arrays that both sides see while it lasts."""

    def __init__(self, child: TrainerChild, padding_W: Rows) -> None:
        """Take the process, which is this conversation's alone until it ends.

        Args:
            child: The process.
            padding_W: The row that fills a slot up, shape (W,).
        """
        self._child = child
        self._padding_W = padding_W

    @property
    def arrays(self) -> SharedArrays:
        """Return the shared arrays. Copy what the trainer wrote before looking at it."""
        return self._child.arrays

    async def begin(
        self, frame: dict[str, Any], model_D: Rows | None = None, blob: bytes = b""
    ) -> None:
        """Put a request's arrays in place and send its first frame.

        Args:
            frame: ``action`` and whatever its server understands, JSON; a blob adds its length.
            model_D: Copied to where the trainer looks for the model, shape (D,).
            blob: Copied to where the trainer looks for bytes.

        Raises:
            TrainerFailure: The process has ended.
            UsageError: The blob exceeds the room that the job asked for.
        """
        if model_D is not None:
            np.copyto(self.arrays.model_D, model_D)
        if blob:
            if len(blob) > len(self.arrays.blob):
                room = len(self.arrays.blob)
                raise UsageError(f"a request's blob has {len(blob)} bytes, the room is {room}")
            self.arrays.blob[: len(blob)] = np.frombuffer(blob, dtype=np.uint8)
            frame = {**frame, "blob": len(blob)}
        await self._child.send(frame)

    async def put(self, number: int, rows_NW: Rows) -> None:
        """Put the batch with this number into its slot, fill it up, and say so.

        At most `SLOTS` batches may be ahead of what `wait` has been told is done.
        """
        slot = number % SLOTS
        target_PW = self.arrays.slots[slot].rows_PW
        target_PW[: len(rows_NW)] = rows_NW
        target_PW[len(rows_NW) :] = self._padding_W
        await self._child.send({"chunk": slot, "rows": len(rows_NW)})

    async def wait(self, number: int) -> None:
        """Wait until the trainer says that the batch with this number is done.

        Raises:
            TrainerFailure: It said something else, failed or ended.
        """
        frame, expected = await self._child.receive(), {"chunk": number % SLOTS}
        if frame != expected:
            raise TrainerFailure(_BROKEN, f"it said {frame!r} where {expected!r} was due")

    async def stop(self) -> None:
        """Say that no further batch comes, though fewer came than the first frame announced."""
        await self._child.send({"stop": True})

    async def end(self) -> Reply:
        """Wait for the last frame of the request.

        Raises:
            TrainerFailure: It said something else, failed or ended.
        """
        frame = await self._child.receive()
        length = frame.pop("blob", 0)
        if frame.pop("done", None) is not True or type(length) is not int:
            raise TrainerFailure(_BROKEN, f"it said {frame!r} where its answer was due")
        if not 0 <= length <= len(self.arrays.blob):
            raise TrainerFailure(_BROKEN, f"it claims a blob of {length} bytes")
        return Reply(frame, self.arrays.blob[:length].tobytes())
