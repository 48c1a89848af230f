"""The same replies twice: as Flower's own engine sees them, one a node, and as one secure mean.

``Nodes`` are five sites whose updates depend on the model and on the round. ``FlowerGrid`` gives a
strategy each node's reply; ``SecureSums`` gives the mean, through the real encoding where a plan is
given.
"""

import numpy as np
from flwr.app import Message, MetricRecord, RecordDict
from flwr.serverapp import Grid

from aggregator.secure_rounds import TRAINING, SecureMean
from privacy.decode import decode_sum
from privacy.delta import Delta
from privacy.encode import encode_delta
from privacy.planning import encoding_for_version
from privacy.ring import reduce_in_place
from privacy.spec import TensorSpec, VectorSpec
from tidegate import flower_messages
from tidegate.flower_config import decode

SPEC = VectorSpec((TensorSpec("w", (5, 3)), TensorSpec("b", (3,)), TensorSpec("scale", ())))
NODES = [11, 12, 13, 14, 15]


def trained(server_round, node, values_D):
    """What a node has after its local steps: part of the way to its own optimum, with noise."""
    optimum_D = np.random.default_rng(node).normal(0, 1, SPEC.length)
    noise_D = np.random.default_rng([server_round, node]).normal(0, 0.05, SPEC.length)
    return (values_D + 0.2 * (optimum_D - values_D) + noise_D).astype(np.float32)


def loss(node, values_D):
    optimum_D = np.random.default_rng(node).normal(0, 1, SPEC.length)
    return float(np.mean((values_D - optimum_D) ** 2))


class FlowerGrid(Grid):
    """Flower's own way: every node replies for itself."""

    def __init__(self, nodes=NODES):
        self.nodes = nodes
        self.rounds = []

    def set_run(self, run):
        raise NotImplementedError

    run = property(set_run)

    def create_message(self, *arguments, **keywords):
        raise NotImplementedError

    push_messages = pull_messages = create_message

    def get_node_ids(self):
        return self.nodes

    def send_and_receive(self, messages, *, timeout=None):
        replies = []
        for message in messages:
            named = flower_messages.as_float32(message.content["arrays"])
            values_D, node = SPEC.flatten(named), message.metadata.dst_node_id
            server_round = message.content["config"]["server-round"]
            content = {"metrics": MetricRecord({"num-examples": 7, "loss": loss(node, values_D)})}
            if message.metadata.message_type == "train":
                own = SPEC.unflatten(trained(server_round, node, values_D))
                content["arrays"] = flower_messages.to_record(own)
            replies.append(Message(RecordDict(content), reply_to=message))
        if replies:
            self.rounds.append((messages[0].metadata.message_type, len(replies)))
        return replies


class SecureSums:
    """The mean of all nodes, from a model version: ``SecureRounds`` in memory."""

    def __init__(self, plan=None, offset=0.0):
        self.plan = plan
        self.offset = offset
        self.calls = []
        self.configs = []
        self.values_D = np.zeros(SPEC.length, np.float32)
        self.server_round = 0
        self.give_up = False

    def at(self, server_round, values_D):
        self.server_round, self.values_D = server_round, values_D

    def wait_for_nodes(self):
        return NODES

    def run_round(self, node_ids, instruction=TRAINING):
        self.calls.append((instruction.purpose, sorted(node_ids)))
        self.configs.append(dict(decode(instruction.config).values) if instruction.config else {})
        if self.give_up:
            return None
        metrics = {"loss": float(np.mean([loss(node, self.values_D) for node in node_ids]))}
        if instruction.evaluates:
            return SecureMean(np.zeros(0), metrics)
        deltas = [
            trained(self.server_round, node, self.values_D) - self.values_D for node in node_ids
        ]
        mean_D = np.mean(np.asarray(deltas, np.float64), axis=0)
        if self.plan is not None:
            mean_D = self._through_the_ring(deltas)
        return SecureMean(mean_D + self.offset, metrics)

    def _through_the_ring(self, deltas):
        plan = encoding_for_version(self.plan, self.server_round)
        total_d = np.zeros(plan.length, np.uint32)
        for delta_D in deltas:
            update = encode_delta(plan, Delta(delta_D, plan.spec_digest))
            total_d += update.vector_D.astype(np.uint32)
        reduce_in_place(total_d, plan.bits)
        return decode_sum(plan, total_d, float(len(deltas))).gradient_D
