"""The contract with the pinned Flower version: fails when a release moves what we rely on."""

import inspect

import pytest
from flwr.app import Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAdam, Strategy
from flwr.supercore.task_identity import TaskIdentity

from tidegate import flower_bridge


def test_messages_can_be_made_once_the_identity_is_assumed(monkeypatch):
    for name in ("_run_id", "_node_id", "_task_id"):
        monkeypatch.setattr(TaskIdentity, name, None)
    with pytest.raises(RuntimeError, match="TaskIdentity"):
        Message(RecordDict(), dst_node_id=42, message_type="train.x")
    flower_bridge.assume_task_identity()
    message = Message(RecordDict(), dst_node_id=42, message_type="train.x")
    assert message.metadata.run_id == flower_bridge.RUN_ID
    assert message.metadata.src_node_id == flower_bridge.NODE_ID
    assert message.metadata.dst_node_id == 42


def test_an_app_of_the_earlier_interface_is_told_apart():
    assert not flower_bridge.is_legacy_app(ClientApp())
    assert flower_bridge.is_legacy_app(ClientApp(client_fn=lambda context: None))


def test_the_run_is_the_one_that_flowers_grid_names():
    signature = inspect.signature(Grid.set_run)
    assert flower_bridge.Run.__name__ in str(signature)


def test_an_app_without_main_is_told_from_one_with():
    app = ServerApp()
    assert not flower_bridge.has_main(app)

    @app.main()
    def main(grid, context):
        """Do nothing."""

    assert flower_bridge.has_main(app)
    assert not flower_bridge.has_main(ServerApp(server_fn=lambda context: None))


def test_a_strategy_is_made_and_started_where_the_watch_looks():
    # aggregator.server_app.strategy_watch gives Flower's public Strategy a __new__ and a start.
    assert "start" in vars(Strategy)
    between = FedAdam.__mro__[: FedAdam.__mro__.index(Strategy)]
    assert not any("__new__" in vars(part) for part in between)
    started = inspect.signature(Strategy.start).parameters
    assert list(started)[:3] == ["self", "grid", "initial_arrays"]
