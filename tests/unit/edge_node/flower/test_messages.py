"""The messages between the trainer's loop and the app, and the ClientApps built on them."""

import socket

import numpy as np
import pytest
import torch
from flwr.app import Message
from flwr.clientapp import ClientApp
from torch import nn

from edge_node.flower.messages import (
    float_setting,
    int_setting,
    new_context,
    new_message,
    reply_to,
)
from edge_node.tasks.local_steps import LocalSteps
from edge_node.tasks.record_gradients import RecordGradients
from edge_node.tasks.task import Task, spec_of
from edge_node.tasks.task_app import build_gradients_app, build_steps_app
from edge_node.trainer.batch_port import BatchPort, DaemonGoneError
from edge_node.trainer.frames import GRADIENTS, STEPS
from edge_node.trainer.shared_memory import SharedLayout
from tidegate.confine.frames import decode, encode
from tidegate.schema import scalars


def test_a_message_reaches_the_function_of_its_action_and_comes_back():
    context = new_context()
    app = ClientApp()

    @app.train("double")
    def double(message: Message, _):
        return reply_to(message, {"twice": 2 * int_setting(message, "n")})

    reply = app(new_message("double", {"n": 21}), context)
    assert int_setting(reply, "twice") == 42
    assert reply.metadata.message_type == "train.double"
    with pytest.raises(ValueError, match="No train function"):
        app(new_message("triple", {}), context)


def test_settings_of_another_type_are_refused():
    new_context()
    message = new_message("x", {"n": "many", "rate": 1})
    with pytest.raises(TypeError, match="'n'"):
        int_setting(message, "n")
    with pytest.raises(TypeError, match="'rate'"):
        float_setting(message, "rate")


COLUMNS = scalars(("x", "y"))


def squares(model, batch):
    return (model(batch["x"].unsqueeze(-1)).squeeze(-1) - batch["y"]) ** 2


@pytest.fixture
def conversation():
    """Give the daemon's socket and the trainer's port over one shared memory."""
    layout = SharedLayout(model_length=2, physical_batch=4, row_width=2, metrics_length=0)
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    descriptor = layout.create()
    with ours, theirs:
        yield ours, BatchPort(theirs, layout.attach(descriptor)), layout.attach(descriptor)


def test_the_gradients_app_fills_the_slots_in_turn(conversation):
    ours, port, arrays = conversation
    model = nn.Linear(1, 1)
    engine = RecordGradients(Task(model, squares, None), spec_of(model), COLUMNS, 0)
    app = build_gradients_app(port, engine)
    arrays.model_D[:] = [3.0, 0.5]
    for slot in (0, 1):
        arrays.slots[slot].rows_PW[:] = [[slot, 1]] * 4
        ours.send(encode({"chunk": slot, "rows": 4}))
    context = new_context()
    reply = app(new_message(GRADIENTS, {"chunks": 2}), context)
    assert int_setting(reply, "chunks") == 2
    assert [decode(ours.recv(999))["chunk"] for _ in range(2)] == [0, 1]
    for slot in (0, 1):
        error = 3.0 * slot + 0.5 - 1
        expected = [[2 * error * slot, 2 * error]] * 4
        np.testing.assert_allclose(arrays.slots[slot].gradients_PD, expected, rtol=1e-6)


def test_the_steps_app_leaves_the_padding_out(conversation):
    ours, port, arrays = conversation
    model = nn.Linear(1, 1)
    app = build_steps_app(port, LocalSteps(Task(model, squares), spec_of(model), COLUMNS))
    arrays.model_D[:] = [0.0, 0.0]
    arrays.slots[0].rows_PW[:] = [[1, 1], [np.nan, np.nan], [9, 9], [9, 9]]
    ours.send(encode({"chunk": 0, "rows": 1}))
    context = new_context()
    app(new_message(STEPS, {"chunks": 1, "learning_rate": 0.25}), context)
    np.testing.assert_allclose(arrays.model_D, [0.5, 0.5])
    assert torch.isfinite(model.weight).all()


def test_the_port_notices_that_the_daemon_is_gone(conversation):
    ours, port, _ = conversation
    ours.close()
    with pytest.raises(DaemonGoneError):
        port.receive()
