"""Hand a trainer its batches of local steps, as many as there are or as fit into a time box.

Shapes: M = metrics a record, W = numbers of a row, n = rows of one batch, K = steps taken.
"""

from collections import deque
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from edge_node.trainer.conversation import Conversation
from edge_node.trainer.shared_memory import SLOTS
from edge_node.trainer.time_box import TimeBox

Rows = NDArray[np.float32]


class Batches(Protocol):
    """Batches that are looked at once, in order: a list, or what draws them as they are asked."""

    def __len__(self) -> int:
        """Return how many there are at most."""
        ...

    def __iter__(self) -> Iterator[Rows]:
        """Give them in order, each of shape (n, W)."""
        ...


async def take_steps(
    talk: Conversation,
    batches: Iterable[Rows],
    most: int,
    metrics_length: int,
    box: TimeBox | None = None,
) -> Rows:
    """Have a step taken on each batch; with a box, on as many as begin before it is over.

    Without a box one batch lies ready while the other is worked on. With one, a batch is handed
    over only when the one before it is done and the box still open, for what is handed over is
    trained on; the next is drawn meanwhile.

    Args:
        talk: Begun; its last frame is the caller's to wait for.
        batches: In order, each of shape (n, W).
        most: How many there are, which is what the first frame announced.
        metrics_length: M.
        box: The round's time.

    Returns:
        Each step's metrics, averaged over its batch before the step, shape (K, M).

    Raises:
        TrainerFailure: The app raised, hung or died.
    """
    means: list[Rows] = []
    under_way: deque[tuple[int, int]] = deque()
    source = enumerate(batches)

    async def put(number: int, rows_nW: Rows) -> None:
        await talk.put(number, rows_nW)
        under_way.append((number, len(rows_nW)))

    if box is not None:
        box.begin()
    for numbered in islice(source, SLOTS if box is None else 1):
        await put(*numbered)
    following = next(source, None)
    while under_way:
        number, count = under_way.popleft()
        await talk.wait(number)
        metrics_nM = talk.arrays.slots[number % SLOTS].metrics_PM[:count]
        means.append(np.mean(metrics_nM, axis=0))
        if following is not None and not (box is not None and box.is_over):
            await put(*following)
            following = next(source, None)
    if len(means) < most:
        await talk.stop()
    return np.array(means, dtype=np.float32).reshape(len(means), metrics_length)
