"""Run Flower 1.42's SecAgg+ in this process and count what it costs each side.

Flower's own parts do the work: ``SecAggPlusWorkflow`` at the aggregator, ``secaggplus_mod`` at each
client, carried to each other by a grid in memory that serialises nothing. As many sites share keys
and as many drop out at the same step as with ours. SecAgg+ signs nothing, checks no consistency,
commits to nothing, expands masks by Mersenne Twister from 32 bits, and so does less than SA-1.
"""

from collections.abc import Iterable
from typing import Any

import numpy as np
from flwr.app import ConfigRecord, Context, Error, Message, RecordDict
from flwr.client.mod import secaggplus_mod
from flwr.common import (
    Code,
    FitRes,
    Status,
    ndarrays_to_parameters,
)
from flwr.common.secure_aggregation.secaggplus_constants import RECORD_KEY_CONFIGS, Key, Stage
from flwr.common.serde import message_from_proto, message_to_proto
from flwr.compat.common.recorddict_compat import (
    fitres_to_recorddict,
    parameters_to_arrayrecord,
)
from flwr.proto.message_pb2 import Message as ProtoMessage
from flwr.server import LegacyContext, SimpleClientManager
from flwr.server.client_proxy import ClientProxy
from flwr.server.strategy import FedAvg
from flwr.server.workflow import SecAggPlusWorkflow
from flwr.server.workflow.constant import MAIN_CONFIGS_RECORD, MAIN_PARAMS_RECORD
from flwr.server.workflow.constant import Key as WorkflowKey
from flwr.serverapp import Grid
from flwr.supercore.task_identity import TaskIdentity

from benchmarks.secagg_ours import MEASURED, Cell, Cost, Figures

CLIPPING_RANGE = 8.0


class _Node(ClientProxy):
    """A name for the client manager; messages go by the grid."""

    def __init__(self, node_id: int) -> None:
        super().__init__(str(node_id))
        self.node_id = node_id

    def get_properties(self, ins: Any, timeout: Any, group_id: Any) -> Any:
        raise NotImplementedError

    get_parameters = fit = evaluate = reconnect = get_properties


class _MemoryGrid(Grid):
    """Carry each message to its client's mod at once, as bytes, and time the client."""

    def __init__(self, cell: Cell) -> None:
        self.costs = {node: Cost() for node in range(1, cell.sites + 1)}
        self.clients_cost = Cost()
        self._gone = set(range(cell.sites - cell.lost + 1, cell.sites + 1))
        self._contexts = {node: Context(1, node, {}, RecordDict(), {}) for node in self.costs}
        draw = np.random.default_rng(0)
        self.update_D = draw.normal(0, 1e-3, cell.dim).astype(np.float32)
        self._parameters = ndarrays_to_parameters([self.update_D])

    def send_and_receive(self, messages: Iterable[Message], **_: Any) -> Iterable[Message]:
        """Ask the clients one after the other."""
        return [self._ask(message) for message in messages]

    def _ask(self, message: Message) -> Message:
        node = message.metadata.dst_node_id
        stage = message.content.config_records[RECORD_KEY_CONFIGS][Key.STAGE]
        if node in self._gone and stage in {Stage.COLLECT_MASKED_VECTORS, Stage.UNMASK}:
            return Message(Error(0, "gone"), reply_to=message)
        cost = self.costs[node]
        frame = message_to_proto(message).SerializeToString()
        with self.clients_cost.timed(), cost.timed():
            known = message_from_proto(ProtoMessage.FromString(frame))
            reply = secaggplus_mod(known, self._contexts[node], self._train)
            answer = message_to_proto(reply).SerializeToString()
        cost.received_bytes += len(frame)
        cost.sent_bytes += len(answer)
        return message_from_proto(ProtoMessage.FromString(answer))

    def _train(self, message: Message, _: Context) -> Message:
        result = FitRes(Status(Code.OK, ""), self._parameters, 1, {})
        return Message(fitres_to_recorddict(result, keep_input=True), reply_to=message)

    def _unused(self, *_: Any, **__: Any) -> Any:
        raise NotImplementedError

    set_run = create_message = get_node_ids = push_messages = pull_messages = _unused
    run = property(_unused)


def run(cell: Cell) -> Figures:
    """Carry one aggregation out; the mean that comes out must be that of the updates.

    Raises:
        RuntimeError: The mean is wrong, or the workflow halted.
    """
    grid = _MemoryGrid(cell)
    manager = SimpleClientManager()
    for node in grid.costs:
        manager.register(_Node(node))
    strategy = FedAvg(
        fraction_fit=1.0, min_fit_clients=cell.sites, min_available_clients=cell.sites
    )
    context = LegacyContext(
        Context(1, 0, {}, RecordDict(), {}), strategy=strategy, client_manager=manager
    )
    context.state.config_records[MAIN_CONFIGS_RECORD] = ConfigRecord({WorkflowKey.CURRENT_ROUND: 1})
    start = ndarrays_to_parameters(
        [np.zeros(1, np.float32)]
    )  # the model's way down is not compared
    context.state.array_records[MAIN_PARAMS_RECORD] = parameters_to_arrayrecord(start, True)
    workflow = SecAggPlusWorkflow(
        cell.sites, 2 * cell.sites // 3 + 1, max_weight=1.0, clipping_range=CLIPPING_RANGE
    )
    TaskIdentity.task_id = TaskIdentity.run_id = 1  # what its server process would say
    TaskIdentity.node_id = 1
    whole = Cost()
    with whole.timed():
        workflow(grid, context)
    mean_D = context.state.array_records[MAIN_PARAMS_RECORD].to_numpy_ndarrays()[0]
    if not np.allclose(mean_D, grid.update_D, atol=4 * CLIPPING_RANGE / 2**22):
        raise RuntimeError("SecAgg+ gave another mean than that of the updates")
    measured = [grid.costs[node] for node in range(1, MEASURED + 1)]
    count = len(measured)
    return Figures(
        client_cpu_ms=1000 * sum(cost.cpu_s for cost in measured) / count,
        server_cpu_ms=1000 * (whole.cpu_s - grid.clients_cost.cpu_s),
        up_bytes=sum(cost.sent_bytes for cost in measured) / count,
        down_bytes=sum(cost.received_bytes for cost in measured) / count,
        vector_bytes=8 * cell.dim,
    )
