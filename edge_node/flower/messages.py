"""Make and read the Flower messages between the trainer's loop and the app: settings only."""

from collections.abc import Mapping

from flwr.app import ConfigRecord, Context, Message, RecordDict

from tidegate.flower_bridge import NODE_ID, RUN_ID, assume_task_identity

CONFIG = "tidegate"
ConfigValue = int | float | str | bool


def new_context() -> Context:
    """Make the context of a run: this process serves one job at one site."""
    assume_task_identity()
    return Context(
        run_id=RUN_ID, node_id=NODE_ID, node_config={}, state=RecordDict(), run_config={}
    )


def new_message(action: str, config: Mapping[str, ConfigValue]) -> Message:
    """Make an instruction message for the train function registered under an action."""
    content = RecordDict({CONFIG: ConfigRecord(dict(config))})
    return Message(content, dst_node_id=NODE_ID, message_type=f"train.{action}")


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
