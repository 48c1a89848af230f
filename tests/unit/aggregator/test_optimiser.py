"""One secure mean reply gives what n replies give; a resumed job takes the same steps."""

import logging

import numpy as np
import pytest
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.serverapp.strategy import FedAdam, FedAvg

from aggregator import flower_messages
from aggregator.optimiser import Optimiser
from aggregator.secure_grid import SecureGrid
from aggregator.secure_rounds import SecureMean
from privacy.errors import PeerError, Reason, UsageError
from privacy.spec import TensorSpec, VectorSpec
from tidegate.flower_bridge import assume_task_identity

logging.getLogger("flwr").setLevel(logging.ERROR)

SPEC = VectorSpec((TensorSpec("w", (5, 3)), TensorSpec("b", (3,)), TensorSpec("scale", ())))
NODES = [11, 12, 13, 14, 15]
ROUNDS = 6
ADAM = {"eta": 0.05, "beta_1": 0.8, "beta_2": 0.95, "tau": 1e-3}


def update(server_round, node):
    """What a node adds to the global model in a round."""
    return np.random.default_rng([server_round, node]).normal(0, 0.1, SPEC.length)


class Rounds:
    """Stands for the secure rounds: the mean of all nodes' updates."""

    def __init__(self, offset=0.0):
        self.calls = []
        self.server_round = 0
        self.offset = offset
        self.give_up = False

    def wait_for_nodes(self):
        return NODES

    def run_round(self, node_ids):
        self.calls.append(sorted(node_ids))
        if self.give_up:
            return None
        mean = np.mean([update(self.server_round, node) for node in NODES], axis=0) + self.offset
        return SecureMean(mean, {"loss": 0.5})


def run_ours(name, options, rounds=range(1, ROUNDS + 1), start=None, state=b""):
    optimiser = Optimiser(name, options, SPEC, 4)
    if state:
        optimiser.restore(state)
    secure = Rounds()
    values_D = np.zeros(SPEC.length, np.float32) if start is None else start
    for server_round in rounds:
        secure.server_round = server_round
        model = optimiser.step(server_round, values_D, secure)
        assert model.metrics == {"loss": 0.5}
        values_D = model.values_D
    assert secure.calls == [NODES] * len(rounds)
    return values_D, optimiser.state()


class FlowerGrid(SecureGrid):
    """Flower's own way: every node replies for itself."""

    def __init__(self):
        super().__init__(Rounds(), SPEC, np.zeros(SPEC.length, np.float32))
        self.server_round = 0

    def send_and_receive(self, messages, *, timeout=None):
        replies = []
        for message in messages:
            arrays = flower_messages.from_record(message.content["arrays"])
            flat_D = SPEC.flatten({n: a.astype(np.float32) for n, a in arrays.items()})
            values_D = flat_D + update(self.server_round, message.metadata.dst_node_id)
            named = SPEC.unflatten(values_D.astype(np.float32))
            content = RecordDict(
                {
                    "arrays": flower_messages.to_record(named),
                    "metrics": MetricRecord({"num-examples": 7, "loss": 0.5}),
                }
            )
            replies.append(Message(content, reply_to=message))
        return replies


def run_flower(strategy):
    assume_task_identity()
    grid = FlowerGrid()
    values_D = np.zeros(SPEC.length, np.float32)
    for server_round in range(1, ROUNDS + 1):
        grid.server_round = server_round
        arrays = flower_messages.to_record(SPEC.unflatten(values_D))
        messages = strategy.configure_train(server_round, arrays, ConfigRecord(), grid)
        stepped, _ = strategy.aggregate_train(server_round, grid.send_and_receive(messages))
        named = flower_messages.from_record(stepped)
        values_D = SPEC.flatten({n: a.astype(np.float32) for n, a in named.items()})
    return values_D


@pytest.mark.parametrize(
    ("name", "options", "strategy"),
    [("FedAvg", {}, FedAvg()), ("FedAdam", ADAM, FedAdam(**ADAM)), ("FedAdam", {}, FedAdam())],
)
def test_one_mean_reply_steps_as_flowers_n_replies_do(name, options, strategy):
    ours, _ = run_ours(name, options)
    np.testing.assert_allclose(ours, run_flower(strategy), rtol=0, atol=3e-6)


@pytest.mark.parametrize(("name", "options"), [("FedAvg", {}), ("FedAdam", ADAM)])
@pytest.mark.parametrize("cut", [1, 3])
def test_a_resumed_job_takes_exactly_the_same_steps(name, options, cut):
    whole, state = run_ours(name, options)
    half, half_state = run_ours(name, options, range(1, cut + 1))
    resumed, resumed_state = run_ours(name, options, range(cut + 1, ROUNDS + 1), half, half_state)
    np.testing.assert_array_equal(resumed, whole)
    assert resumed_state == state


def test_a_learning_rate_scales_the_mean_and_needs_no_state():
    full, _ = run_ours("FedAvg", {}, range(1, 2))
    half, state = run_ours("FedAvg", {"server_learning_rate": 0.5}, range(1, 2))
    np.testing.assert_allclose(half, full / 2, atol=1e-7)
    resumed, _ = run_ours("FedAvg", {"server_learning_rate": 0.5}, range(2, 4), half, state)
    whole, _ = run_ours("FedAvg", {"server_learning_rate": 0.5}, range(1, 4))
    np.testing.assert_array_equal(resumed, whole)


def test_a_round_that_was_given_up_gives_no_model():
    optimiser, secure = Optimiser("FedAvg", {}, SPEC, 4), Rounds()
    secure.give_up = True
    assert optimiser.step(1, np.zeros(SPEC.length, np.float32), secure) is None


def test_a_step_out_of_the_finite_numbers_is_never_published():
    optimiser, secure = Optimiser("FedAvg", {}, SPEC, 4), Rounds(offset=np.inf)
    with pytest.raises(PeerError) as caught:
        optimiser.step(1, np.zeros(SPEC.length, np.float32), secure)
    assert caught.value.reason is Reason.NOT_FINITE


def test_strategies_that_compare_replies_are_refused():
    for name in ("FedMedian", "Krum"):
        with pytest.raises(UsageError, match=name):
            Optimiser(name, {}, SPEC, 4)
    with pytest.raises(UsageError, match="momentum"):
        Optimiser("FedAdam", {"momentum": 0.9}, SPEC, 4)


def test_a_state_of_another_job_is_refused():
    _, state = run_ours("FedAdam", ADAM, range(1, 2))
    other = VectorSpec((TensorSpec("w", (5, 4)), TensorSpec("b", (3,))))
    with pytest.raises(UsageError):
        Optimiser("FedAdam", ADAM, other, 4).restore(state)
    with pytest.raises(UsageError):
        Optimiser("FedAvg", {}, SPEC, 4).restore(state)


def test_single_replies_do_not_exist():
    grid = SecureGrid(Rounds(), SPEC, np.zeros(SPEC.length, np.float32))
    for call in (grid.push_messages, grid.pull_messages):
        with pytest.raises(UsageError, match="single sites"):
            call([])
    with pytest.raises(UsageError):
        _ = grid.run


def test_a_reply_is_one_that_strategies_take():
    assume_task_identity()
    arrays = {"x": np.arange(3, dtype=np.float32)}
    content = RecordDict({"arrays": flower_messages.to_record(arrays), "config": ConfigRecord()})
    message = SecureGrid(Rounds(), SPEC, np.zeros(SPEC.length, np.float32)).create_message(
        content, "train", 42, "1"
    )
    assert (message.metadata.run_id, message.metadata.dst_node_id) == (1, 42)
    reply = flower_messages.mean_reply(message, arrays, {"auc": 0.5})
    assert reply.metadata.src_node_id == 42
    assert not reply.has_error()
    assert isinstance(reply.content["arrays"], ArrayRecord)
    assert dict(reply.content["metrics"]) == {"num-examples": 1, "auc": 0.5}
    np.testing.assert_array_equal(
        flower_messages.from_record(reply.content["arrays"])["x"], arrays["x"]
    )
