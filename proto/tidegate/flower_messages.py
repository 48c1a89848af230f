"""Turn models and means into what a Flower strategy takes, and back.

Arrays travel through a strategy as ``.npy`` bytes; the conversions are here, so that a faster way
has one place to go to.
"""

from collections.abc import Mapping

import numpy as np
from flwr.app import Array, ArrayRecord, Message, MetricRecord, RecordDict
from numpy.typing import NDArray

from privacy.errors import UsageError

WEIGHT_KEY = "num-examples"
"""Flower's weight of a reply; constant 1 here, so that real numbers of records never leave."""


def to_record(arrays: Mapping[str, NDArray[np.floating]]) -> ArrayRecord:
    """Pack named arrays for a strategy; the order is kept."""
    return ArrayRecord({name: Array(np.asarray(array)) for name, array in arrays.items()})


def as_float32(record: ArrayRecord) -> dict[str, NDArray[np.float32]]:
    """Unpack a model as it is broadcast: every array float32.

    Whole numbers, such as BatchNorm's ``num_batches_tracked``, become float32 too; torch casts them
    back where it loads them.

    Raises:
        UsageError: An array holds no numbers, or is not of numpy.
    """
    named: dict[str, NDArray[np.float32]] = {}
    for name, packed in record.items():
        try:
            array = packed.numpy()
        except (ValueError, TypeError) as error:
            raise UsageError(f"array {name!r} of the model cannot be read: {error}") from error
        if array.dtype.kind not in "fiub":
            raise UsageError(f"array {name!r} of the model is {array.dtype}; it has to be numbers")
        named[name] = array.astype(np.float32, copy=False)
    return named


def mean_reply(
    to: Message,
    arrays: Mapping[str, NDArray[np.floating]] | None,
    metrics: Mapping[str, int | float],
) -> Message:
    """Make the one reply of a round: the securely aggregated mean, with a constant weight.

    Args:
        to: One of the instructions.
        arrays: The mean model; None for an evaluation.
        metrics: The mean metrics, and the weight.
    """
    content = RecordDict({"metrics": MetricRecord(dict(metrics))})
    if arrays is not None:
        content["arrays"] = to_record(arrays)
    return Message(content, reply_to=to)


def plain_metrics(metrics: Mapping[str, object] | None) -> dict[str, float]:
    """Keep the single numbers of what a strategy aggregated."""
    found = (metrics or {}).items()
    return {name: float(value) for name, value in found if isinstance(value, int | float)}
