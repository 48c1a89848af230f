"""Train on the site's shard and answer the new weights; every site counts alike."""

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from digits import local_steps, task

app = ClientApp()


@app.train()
def train(message: Message, context: Context) -> Message:
    """Answer one instruction."""
    torch.set_num_threads(1)
    config, node = context.run_config, context.node_config
    (received,) = message.content.array_records.values()
    model = task.model()
    state = {name: torch.from_numpy(array.numpy().copy()) for name, array in received.items()}
    model.load_state_dict(state)
    with np.load(str(node["shard"])) as archive:
        shard = dict(archive)
    drawn = local_steps.batches(
        int(config["seed"]),
        int(node["site"]),
        int(message.content["config"]["server-round"]),
        len(shard["digit"]),
        int(config["steps"]),
        int(config["batch"]),
    )
    local_steps.train(task, model, shard, drawn, float(config["rate"]))
    new = ArrayRecord(
        {name: Array(weight.detach().numpy()) for name, weight in model.named_parameters()}
    )
    metrics = MetricRecord({"num-examples": 1})
    return Message(RecordDict({"arrays": new, "metrics": metrics}), reply_to=message)
