"""Train the credit task at one bank under plain Flower.

This is the app as Flower's own engine runs it: several local SGD steps, and the new parameters
leave the bank in the clear. Under Tidegate the same `task` is run by Tidegate's client instead,
whose sampling, clipping and noise are not the app's to leave out.

The bank's folder is ``data`` in the SuperNode's ``--node-config``, else ``bank-N`` below the run's
``data-folder`` for partition N - 1 of a simulation.
"""

from pathlib import Path

import numpy as np
import ranking
import task
import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from split import load_shard
from torch import Tensor, nn

app = ClientApp()


@app.train()
def train(message: Message, context: Context) -> Message:
    """Take local SGD steps from the received model and return the new one."""
    settings = context.run_config
    steps, batch_size = int(settings["local-steps"]), int(settings["batch-size"])
    model = _received_model(message)
    data = _load(context, "train")
    optimiser = torch.optim.SGD(model.parameters(), lr=float(settings["learning-rate"]))
    rows = len(data[task.TARGET])
    total = 0.0
    for _ in range(steps):
        picked = torch.randint(rows, (batch_size,))
        mean_loss = task.loss(model, {name: values[picked] for name, values in data.items()}).mean()
        optimiser.zero_grad()
        mean_loss.backward()
        optimiser.step()
        total += mean_loss.item()
    # The weight is the number of records used, which is public: not how many the bank has.
    metrics = MetricRecord({"num-examples": steps * batch_size, "loss": total / steps})
    content = RecordDict({"arrays": ArrayRecord(model.state_dict()), "metrics": metrics})
    return Message(content=content, reply_to=message)


@app.evaluate()
def evaluate(message: Message, context: Context) -> Message:
    """Return the received model's loss and AUC on the bank's own test customers."""
    model = _received_model(message)
    data = _load(context, "test")
    with torch.no_grad():
        scores, loss = model(data), task.loss(model, data).mean().item()
    auc = ranking.auc(scores.numpy(), data[task.TARGET].numpy())
    metrics = MetricRecord({"num-examples": len(scores), "loss": loss, "auc": auc})
    return Message(content=RecordDict({"metrics": metrics}), reply_to=message)


def _received_model(message: Message) -> nn.Module:
    model = task.model()
    arrays = message.content["arrays"]
    if not isinstance(arrays, ArrayRecord):
        raise TypeError("the message's 'arrays' must be an ArrayRecord of the model")
    model.load_state_dict(arrays.to_torch_state_dict())
    return model


def _load(context: Context, part: str) -> dict[str, Tensor]:
    """Load the bank's customers as a batch, without those whose outcome is unknown."""
    if "data" in context.node_config:
        folder = Path(str(context.node_config["data"]))
    else:
        number = int(context.node_config["partition-id"]) + 1
        folder = Path(str(context.run_config["data-folder"])) / f"bank-{number}"
    table = load_shard(folder / f"{part}.npz")
    known_N = ~np.isnan(table[task.TARGET])
    return {name: torch.from_numpy(values[known_N]) for name, values in table.items()}
