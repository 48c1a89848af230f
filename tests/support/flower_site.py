"""A simulated site that answers a Flower app's messages, and the apps that are run over such sites.

What it trains is ``flower_rounds.trained``, so a job's model can be held against what Flower's own
engine makes of the same nodes. It complains of what a real site would refuse: rounds or versions
that fall, and two requests of one round that differ.
"""

import numpy as np

from privacy.delta import Delta
from privacy.encode import encode_delta
from privacy.pipeline import EncodingPlan
from privacy.planning import encoding_for_version
from tests.support.flower_rounds import NODES, SPEC, loss, trained
from tests.support.wire_site import WireSite
from tidegate import appbundle
from tidegate.flower_config import decode
from tidegate.messages import is_evaluation

UPPER = 20.0

JOB = """
[job]
name = "flower test"
dataset = "credit"
rounds = {rounds}
[flower]
driver = "{driver}"
{flower}
[privacy]
mode = "none"
clipping_norm = 50.0
metrics_norm = 20.0
[[metrics]]
name = "loss"
kind = "mean"
upper = 20.0
[[evaluation_metrics]]
name = "loss"
kind = "mean"
upper = 20.0
{strategy}
[round]
target_sites = {target}
deadline_s = 30.0
"""

PROJECT = """
[tool.flwr.app]
publisher = "test"
[tool.flwr.app.components]
serverapp = "demo.server_app:app"
clientapp = "demo.client_app:app"
[tool.flwr.app.config]
num-server-rounds = 4
lr = 0.25
"""

SERVER_APP = """
import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord
from flwr.serverapp import ServerApp
from flwr.serverapp.strategy import {imports}

app = ServerApp()
SHAPES = {{"w": (5, 3), "b": (3,), "scale": ()}}


@app.main()
def main(grid, context):
    arrays = {{name: Array(np.zeros(shape, np.float32)) for name, shape in SHAPES.items()}}
    arrays = ArrayRecord(arrays)
{body}
"""

FEDADAM = """
    strategy = FedAdam(fraction_evaluate=0.4, eta=0.05, tau=1e-2, beta_1=0.8)
    result = strategy.start(
        grid=grid,
        initial_arrays=arrays,
        num_rounds=context.run_config["num-server-rounds"],
        train_config=ConfigRecord({"lr": context.run_config["lr"]}),
    )
    np.save("final_model.npy", result.arrays["w"].numpy())
"""


def flower_job(**values):
    defaults = {"rounds": 8, "driver": "server-app", "flower": "", "strategy": "", "target": 4}
    return JOB.format(**{**defaults, **values}).encode()


def flower_app(body=FEDADAM, imports="FedAdam", **files):
    """Give the bundle of a Flower app with this main."""
    server_app = SERVER_APP.format(imports=imports, body=body)
    content = {
        "pyproject.toml": PROJECT,
        "demo/__init__.py": "",
        "demo/client_app.py": "app = None\n",
        "demo/server_app.py": server_app,
        **files,
    }
    return appbundle._join({name: text.encode() for name, text in content.items()})


class FlowerSite(WireSite):
    def __init__(self, site_id, node):
        super().__init__(site_id)
        self.node = node
        self.seen = {}
        self.settings = []
        self.complaints = []

    def make_update(self, request, data):
        self.judge(request)
        model_D = np.frombuffer(data, "<f4")
        settings = decode(request.config)
        self.settings.append((request.purpose, dict(settings.values)))
        (offer,) = [offer for offer in self.offers if offer.job_id == request.job_id][-1:]
        value = np.asarray([loss(self.node, model_D) / UPPER], np.float32)
        if is_evaluation(request.purpose):
            whole = EncodingPlan.from_bytes(offer.evaluation_encoding)
            plan = encoding_for_version(whole, request.version)
            scaled = (value * plan.clip_gradient).astype(np.float32)
            return plan, encode_delta(plan, Delta(scaled, plan.spec_digest))
        plan = encoding_for_version(EncodingPlan.from_bytes(offer.encoding), request.version)
        server_round = settings.values["server-round"]
        delta_D = trained(server_round, self.node, model_D) - model_D
        metrics_M = (value * plan.clip_metrics).astype(np.float32)
        return plan, encode_delta(plan, Delta(delta_D, plan.spec_digest), metrics_M)

    def judge(self, request):
        facts = (request.version, request.chain_head, request.purpose, request.config)
        last = max(self.seen, default=(0, 0))
        if self.seen.get((request.round, request.version), facts) != facts:
            self.complaints.append(f"round {request.round} was asked for in two ways")
        if request.round < last[0] or request.version < last[1]:
            self.complaints.append(f"round {request.round} comes after {last}")
        self.seen[request.round, request.version] = facts


def make_site(index, name):
    return FlowerSite(name, NODES[index])


__all__ = ["SPEC", "FlowerSite", "flower_app", "flower_job", "make_site"]
