"""Call apps of Flower's earlier interface, ``ClientApp(client_fn)`` of a ``NumPyClient``.

Flower's own ClientApp still runs them, on messages whose records have other names, and arrays that
have none: they are taken in the order of the model's tensors. What they answer is brought into the
form of today's, so that it is described and judged the same way.
"""

from flwr.app import Array, ArrayRecord, Message, MetricRecord, RecordDict

from privacy.spec import VectorSpec
from tidegate.flower_config import MessageConfig

_WORDS = {"train": "fit", "evaluate": "evaluate"}
_NO_TENSORS = "_empty"


class LegacyClientError(Exception):
    """The app's client says that it could not do its work."""


def legacy_config(config: MessageConfig, purpose: str) -> MessageConfig:
    """Give the same settings under the names that such an app expects."""
    word = _WORDS[purpose.partition(".")[0]]
    return MessageConfig(config.values, f"{word}ins.parameters", f"{word}ins.config")


def modern_reply(reply: Message, purpose: str, spec: VectorSpec) -> Message:
    """Give such an app's reply with the records that an app of today would have answered with.

    Raises:
        LegacyClientError: The client says that it failed.
    """
    word = _WORDS[purpose.partition(".")[0]]
    if reply.has_error():
        return reply
    old = reply.content
    status = old.config_records[f"{word}res.status"]
    if status["code"] != 0:
        raise LegacyClientError(f"the client answered with status {status!r}")
    metrics = MetricRecord(dict(old.metric_records.get(f"{word}res.loss", MetricRecord())))
    for name, value in old.config_records[f"{word}res.metrics"].items():
        if isinstance(value, int | float):
            metrics[name] = value
    content = RecordDict({"metrics": metrics})
    arrays = old.array_records.get(f"{word}res.parameters")
    if arrays is not None:
        content["arrays"] = _named(arrays, spec)
    reply.content = content
    return reply


def _named(arrays: ArrayRecord, spec: VectorSpec) -> ArrayRecord:
    """Name arrays by their place; one too many keeps its number, and is refused for it."""
    names = [tensor.name for tensor in spec.tensors]
    found: dict[str, Array] = {}
    for place, (key, array) in enumerate(arrays.items()):
        if key != _NO_TENSORS:
            found[names[place] if place < len(names) else f"array {place}"] = array
    return ArrayRecord(found)
