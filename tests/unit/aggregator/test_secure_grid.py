"""What a strategy may tell its nodes through a secure grid, and what it hears back."""

import numpy as np
import pytest
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict

from aggregator.secure_grid import GridMean, SecureGrid
from privacy.errors import UsageError
from tidegate import flower_messages
from tidegate.flower_bridge import assume_task_identity
from tidegate.flower_config import MessageConfig, decode

ARRAYS = {"w": np.arange(4, dtype=np.float32)}


class Exchanges:
    def __init__(self, mean=None):
        self.calls = []
        self.mean = mean

    def wait_for_nodes(self):
        return [1, 2, 3]

    def exchange(self, call):
        self.calls.append(call)
        return self.mean


def instructions(purpose="train", nodes=(1, 2), **records):
    assume_task_identity()
    content = {"arrays": flower_messages.to_record(ARRAYS), "config": ConfigRecord({"lr": 0.5})}
    content = RecordDict({**content, **records})
    return [Message(content, dst_node_id=node, message_type=purpose) for node in nodes]


def test_one_call_is_one_exchange_with_one_reply():
    rounds = Exchanges(GridMean({"w": ARRAYS["w"] + 1}, {"loss": 0.25}))
    (reply,) = SecureGrid(rounds).send_and_receive(instructions(nodes=(1, 3)), timeout=1.0)
    assert dict(reply.content["metrics"]) == {"num-examples": 1, "loss": 0.25}
    np.testing.assert_array_equal(reply.content["arrays"]["w"].numpy(), ARRAYS["w"] + 1)
    (call,) = rounds.calls
    assert (call.node_ids, call.instruction.purpose) == ([1, 3], "train")
    assert decode(call.instruction.config) == MessageConfig({"lr": 0.5})


def test_names_of_records_and_weight_are_the_strategys():
    assume_task_identity()
    rounds = Exchanges(GridMean(None, {}))
    content = RecordDict({"model": flower_messages.to_record(ARRAYS)})
    message = Message(content, dst_node_id=1, message_type="evaluate.quick")
    (reply,) = SecureGrid(rounds, "weight").send_and_receive([message])
    assert dict(reply.content["metrics"]) == {"weight": 1}
    assert not reply.content.array_records
    (call,) = rounds.calls
    assert call.instruction.evaluates
    assert decode(call.instruction.config) == MessageConfig({}, "model", "config")


def test_nothing_to_tell_is_no_exchange_and_a_given_up_one_no_reply():
    rounds = Exchanges()
    grid = SecureGrid(rounds)
    assert grid.send_and_receive([]) == []
    assert not rounds.calls
    assert grid.send_and_receive(instructions()) == []


@pytest.mark.parametrize(
    ("messages", "says"),
    [
        (lambda: instructions("query"), "no secure sum"),
        (lambda: instructions("train." + "a" * 40), "no secure sum"),
        (lambda: instructions(more=ArrayRecord()), "exactly one ArrayRecord"),
        (lambda: instructions(arrays=MetricRecord()), "exactly one ArrayRecord"),
        (lambda: instructions(more=ConfigRecord()), "at most one ConfigRecord"),
        (lambda: instructions(config=ConfigRecord({"x": float("nan")})), "finite"),
        (lambda: instructions() + instructions("evaluate"), "all nodes the same"),
        (lambda: instructions() + instructions(config=ConfigRecord()), "all nodes the same"),
    ],
)
def test_what_cannot_be_told_by_broadcast_is_refused(messages, says):
    rounds = Exchanges()
    with pytest.raises(UsageError, match=says):
        SecureGrid(rounds).send_and_receive(messages())
    assert not rounds.calls


def test_equal_contents_in_two_objects_are_the_same():
    rounds = Exchanges()
    SecureGrid(rounds).send_and_receive(instructions(nodes=(1,)) + instructions(nodes=(2,)))
    assert rounds.calls[0].node_ids == [1, 2]


def test_single_replies_do_not_exist():
    grid = SecureGrid(Exchanges())
    assert grid.get_node_ids() == [1, 2, 3]
    for call in (grid.push_messages, grid.pull_messages):
        with pytest.raises(UsageError, match="single sites"):
            call([])
    with pytest.raises(UsageError):
        _ = grid.run


def test_a_model_is_broadcast_as_float32():
    counts, half = np.asarray(7), np.asarray([0.5], np.float16)
    record = ArrayRecord(
        {name: flower_messages.Array(array) for name, array in (("n", counts), ("h", half))}
    )
    named = flower_messages.as_float32(record)
    assert {name: array.dtype for name, array in named.items()} == {"n": "f4", "h": "f4"}
    assert named["n"] == 7
    text = ArrayRecord({"t": flower_messages.Array(np.asarray(["a"]))})
    with pytest.raises(UsageError, match="has to be numbers"):
        flower_messages.as_float32(text)
