"""Make the message that a ClientApp is called with, and describe what it answers (trainer side).

The reply's arrays go to where the daemon sees them, as one float32 vector; everything else of the
reply becomes a description, JSON, in the words that ``edge_node.flower.reply`` judges.

Shapes: D = coordinates of the model vector.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from numpy.typing import NDArray

from privacy.spec import VectorSpec
from tidegate.flower_config import MessageConfig

MAX_METRICS = 1024
_MAX_TEXT = 500
_MAX_NAME = 300
_NUMBERS = "fiub"

FloatArray = NDArray[np.float32]


def make_call(
    arrays: Mapping[str, FloatArray], config: MessageConfig, purpose: str, node_id: int
) -> Message:
    """Make a message as a strategy of Flower's would: the model, and a strategy's settings.

    Args:
        arrays: The model version by tensor; copied.
        config: The settings, and the names of both records.
        purpose: The message's type: ``train`` or ``evaluate``, an action after a dot.
        node_id: Of this site.
    """
    model = ArrayRecord({name: Array(array) for name, array in arrays.items()})
    settings = ConfigRecord(dict(config.values))
    content = RecordDict({config.arrays_key: model, config.config_key: settings})
    return Message(content, dst_node_id=node_id, message_type=purpose)


def describe_reply(reply: object, spec: VectorSpec, out_D: FloatArray) -> dict[str, Any]:
    """Describe a reply, and write its arrays to a vector if there is one ArrayRecord.

    Args:
        reply: Whatever the app gave back.
        spec: Order and shapes of the vector.
        out_D: Filled with the arrays that fit the spec, shape (D,).

    Returns:
        ``error``, or the numbers of records by kind, each array's name, kind of number and shape,
        and the numbers of the metric records.
    """
    if not isinstance(reply, Message):
        return {"error": f"the app answered with {type(reply).__name__}, not with a Message"}
    if reply.has_error():
        return {"error": f"error {reply.error.code}: {reply.error.reason or ''}"[:_MAX_TEXT]}
    content = reply.content
    array_records = list(content.array_records.values())
    metric_records = list(content.metric_records.values())
    description: dict[str, Any] = {
        "records": [len(array_records), len(metric_records), len(content.config_records)],
        "arrays": [],
        "metrics": _numbers_of(metric_records[0]) if metric_records else {},
    }
    if len(array_records) == 1:
        description["arrays"] = write_arrays(array_records[0], spec, out_D)
    return description


def write_arrays(record: ArrayRecord, spec: VectorSpec, out_D: FloatArray) -> list[list[Any]]:
    """Write the arrays that fit the spec to a vector, and describe all of them.

    Raises:
        ValueError: An array's bytes are not those of a numpy array.
    """
    targets = spec.unflatten(out_D)
    described: list[list[Any]] = []
    for name, packed in record.items():
        if len(described) > len(spec.tensors):  # one too many is refused as well as a million
            break
        array = packed.numpy()
        described.append([name[:_MAX_NAME], array.dtype.name, list(array.shape)])
        target = targets.get(name)
        if target is not None and target.shape == array.shape and array.dtype.kind in _NUMBERS:
            with np.errstate(over="ignore"):  # a float64 too large becomes infinite: not finite
                np.copyto(target, array, casting="unsafe")
    return described


def _numbers_of(record: MetricRecord) -> dict[str, Any]:
    """Give the single numbers of a record; None stands for a list."""
    found: dict[str, Any] = {}
    for name, value in record.items():
        if len(found) == MAX_METRICS:
            break
        found[name[:_MAX_NAME]] = None if isinstance(value, list) else float(value)
    return found
