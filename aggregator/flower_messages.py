"""Turn models and means into what a Flower strategy takes, and back.

Arrays travel through a strategy as ``.npy`` bytes; the conversions are here, so that a faster way
has one place to go to.
"""

from collections.abc import Mapping

import numpy as np
from flwr.app import Array, ArrayRecord, Message, MetricRecord, RecordDict
from numpy.typing import NDArray

WEIGHT_KEY = "num-examples"
"""Flower's weight of a reply; constant 1 here, so that real numbers of records never leave."""


def to_record(arrays: Mapping[str, NDArray[np.floating]]) -> ArrayRecord:
    """Pack named arrays for a strategy; the order is kept."""
    return ArrayRecord({name: Array(np.asarray(array)) for name, array in arrays.items()})


def from_record(record: ArrayRecord) -> dict[str, NDArray[np.floating]]:
    """Unpack what a strategy gives back."""
    return {name: array.numpy() for name, array in record.items()}


def mean_reply(
    to: Message, arrays: Mapping[str, NDArray[np.floating]], metrics: Mapping[str, float]
) -> Message:
    """Make the one reply of a round: the securely aggregated mean, with a constant weight."""
    content = RecordDict(
        {
            "arrays": to_record(arrays),
            "metrics": MetricRecord({WEIGHT_KEY: 1, **metrics}),
        }
    )
    return Message(content, reply_to=to)
