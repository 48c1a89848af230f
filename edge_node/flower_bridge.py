"""Make Flower messages outside a Flower run: the only file that touches Flower's private parts.

``flwr.app.Message`` takes its run and source from ``flwr.supercore.task_identity.TaskIdentity``,
which Flower's own processes set. `tests/unit/edge_node/test_flower_bridge.py` holds the contract
with the pinned Flower version.
"""

from collections.abc import Mapping

from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.supercore.task_identity import TaskIdentity

CONFIG = "tidegate"
ConfigValue = int | float | str | bool

_RUN_ID = 1
_NODE_ID = 1
_TASK_ID = 1


def new_context() -> Context:
    """Make the context of a run: this process serves one job at one site."""
    TaskIdentity.run_id = _RUN_ID
    TaskIdentity.node_id = _NODE_ID
    TaskIdentity.task_id = _TASK_ID
    return Context(
        run_id=_RUN_ID, node_id=_NODE_ID, node_config={}, state=RecordDict(), run_config={}
    )


def new_message(action: str, config: Mapping[str, ConfigValue]) -> Message:
    """Make an instruction message for the train function registered under an action."""
    content = RecordDict({CONFIG: ConfigRecord(dict(config))})
    return Message(content, dst_node_id=_NODE_ID, message_type=f"train.{action}")


def int_setting(message: Message, name: str) -> int:
    """Give a whole number that `new_message` put into a message.

    Raises:
        TypeError: It is something else.
    """
    value = message.content.config_records[CONFIG][name]
    if not isinstance(value, int):
        raise TypeError(f"the setting {name!r} must be a whole number")
    return value


def float_setting(message: Message, name: str) -> float:
    """Give a number that `new_message` put into a message.

    Raises:
        TypeError: It is something else.
    """
    value = message.content.config_records[CONFIG][name]
    if not isinstance(value, float):
        raise TypeError(f"the setting {name!r} must be a number")
    return value


def reply_to(message: Message, config: Mapping[str, ConfigValue]) -> Message:
    """Make a handler's reply."""
    return Message(RecordDict({CONFIG: ConfigRecord(dict(config))}), reply_to=message)
