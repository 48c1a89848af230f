"""Small unchanged Flower apps for tests, and the work places that run them at a site."""

import textwrap
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace

from edge_node.boot_key import BootKey
from edge_node.data.dataset import rowless
from edge_node.flower.app_states import AppStates
from edge_node.flower.data import FlowerData
from edge_node.rounds.contract import EvaluationTerms, JobAtSite
from edge_node.rounds.flower import FlowerSite, make_flower_round
from edge_node.store import Store
from privacy.planning import CohortRules, derive_encoding, evaluation_encoding, step_event
from privacy.spec import TensorSpec, VectorSpec
from tidegate.job_terms import privacy_terms
from tidegate.jobfile import JobFile

RULES = CohortRules(1, 4, 5)
NODE_ID = 77
SPEC = VectorSpec((TensorSpec("layer.weight", (2, 3)), TensorSpec("layer.bias", ())))
PROJECT = """
[project]
name = "small"
version = "0.1.0"
[tool.flwr.app]
publisher = "tests"
[tool.flwr.app.components]
clientapp = "small.client_app:app"
[tool.flwr.app.config]
lr = 0.5
nested = { deep = "yes" }
"""
CLIENT = """
import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from small.steps import moved

app = ClientApp()

@app.train()
def train(message, context):
    settings = context.run_config
    counts = context.state.setdefault("counts", MetricRecord({"calls": 0}))
    counts["calls"] += 1
    given = message.content["arrays"]
    new = {name: Array(moved(a.numpy(), settings["lr"])) for name, a in given.items()}
    arrays = ArrayRecord(new)
    loss = float(counts["calls"])
    metrics = MetricRecord({"num-examples": 10**12, "loss": loss, "secret": 7.0})
    return Message(RecordDict({"model": arrays, "metrics": metrics}), reply_to=message)

@app.evaluate()
def evaluate(message, context):
    value = message.content["arrays"]["layer.bias"].numpy().item()
    seen = float(len(context.state))
    metrics = MetricRecord({"num-examples": -3, "accuracy": value, "seen": seen})
    return Message(RecordDict({"metrics": metrics}), reply_to=message)
"""
STEPS = """
import numpy as np

def moved(array, lr):
    return np.asarray(array + lr, dtype="float32")
"""
JOB = """
[job]
name = "small"
dataset = "credit"
rounds = 10
[flower]
evaluate_every = 1
run_config = { lr = 0.25 }
[privacy]
%s
metrics_norm = 1.0
[[metrics]]
name = "loss"
kind = "mean"
upper = 8.0
[[evaluation_metrics]]
name = "accuracy"
kind = "mean"
upper = 1.0
[[evaluation_metrics]]
name = "seen"
kind = "mean"
upper = 4.0
[strategy]
name = "FedAvg"
[round]
target_sites = 5
deadline_s = 30.0
max_attempts = 3
"""
PLAIN = 'mode = "none"\nclipping_norm = 10.0'


def write_flower_app(folder: Path, client: str = CLIENT, project: str = PROJECT) -> Path:
    """Write an app of a package with two modules."""
    app = folder / "app"
    package = app / "small"
    package.mkdir(parents=True, exist_ok=True)
    (app / "pyproject.toml").write_text(project)
    (package / "__init__.py").write_text("")
    (package / "client_app.py").write_text(textwrap.dedent(client))
    (package / "steps.py").write_text(STEPS)
    return app


def make_job(job_toml: str = JOB % PLAIN, spec: VectorSpec = SPEC, job_id: str = "job-1"):
    """Make a job with a Flower app as a site has accepted it."""
    job_file = JobFile.parse(job_toml.encode())
    terms = privacy_terms(job_file)
    plan = derive_encoding(terms, spec, RULES, b"m" * 32)
    evaluation = None
    if terms.evaluation_length:
        derived = evaluation_encoding(terms, RULES, plan, b"e" * 32)
        evaluation = EvaluationTerms(derived, step_event(derived, RULES))
    event = step_event(plan, RULES)
    dataset = rowless("credit", "credit")
    return JobAtSite(job_id, job_file, plan, spec, event, "tier", dataset, evaluation)


@dataclass
class FlowerPlace:
    """A site's folder with its store, and what is needed to make work places in it."""

    folder: Path
    data: FlowerData | None = field(default_factory=FlowerData)
    state_mib: int = 1

    def __post_init__(self):
        self.open()

    def open(self):
        boot = BootKey(b"k" * 32, fresh=False, on_memory=False)
        site = self.folder / "site"
        self.store = Store(site / "site.db", self.folder / "site.generation", boot)
        self.states = AppStates(site / "app-states", self.store)

    def reopen(self):
        """Open the store again, as after kill -9: nothing is closed in order."""
        self.store.close()
        self.open()

    def round(self, job, app: Path):
        settings = SimpleNamespace(
            start_time_limit_s=60.0,
            time_limit_s=60.0,
            memory_mib=4096,
            threads=1,
            device="cpu",
            precision="float32",
            processes=1,
            parallel="ddp",
            max_restarts=5,
            leak_share=0.5,
            sandbox="best-available",
            app_state_mib=self.state_mib,
        )
        declared = SimpleNamespace(flower=self.data)
        config = SimpleNamespace(
            trainer=settings, datasets={"credit": declared}, folder=self.folder / "site"
        )
        site = FlowerSite(NODE_ID, self.states)
        return make_flower_round(job, job.job_file.work, config, app, site)
