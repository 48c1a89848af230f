"""Send the model back, every parameter shifted a little: no two replies are the same bytes.

``compute_s`` is how long a device would train: a wait, so that it takes no processor.
"""

import time

import numpy as np
from flwr.app import Array, ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

app = ClientApp()


@app.train()
def train(message: Message, context: Context) -> Message:
    """Answer one instruction."""
    time.sleep(float(context.run_config["compute_s"]))
    (received,) = message.content.array_records.values()
    shift = np.float32(1e-3 * (1 + context.node_id % 1009))
    shifted = ArrayRecord()
    for name in list(received):
        shifted[name] = Array(received[name].numpy() + shift)
    metrics = MetricRecord({"num-examples": 1})
    return Message(RecordDict({"arrays": shifted, "metrics": metrics}), reply_to=message)
