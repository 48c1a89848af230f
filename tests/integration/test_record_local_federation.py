"""Mode record-local through real processes: users, an optimizer of the task, noise, the ledger."""

import numpy as np
import pytest

from aggregator.cli.connection import operator_api
from aggregator.cli.consortium import Consortium, SitePlan
from aggregator.cli.progress import watch_live
from aggregator.cli.submission import prepare, requests_of
from privacy.accounting.calibration import best_alpha
from privacy.planning import CohortRules, derive_encoding, step_event
from privacy.spec import VectorSpec
from tidegate.job_terms import privacy_terms, update_spec
from tidegate.v1 import operator_pb2

SITES, USERS, ROWS_EACH, ROUNDS = 5, 400, 2, 2
RULES = CohortRules(1, 4, SITES)
TASK = """
import torch
from torch import nn

def model():
    return nn.Linear(4, 1)

def loss(model, batch):
    scores = model(batch["x"]).squeeze(-1)
    return nn.functional.binary_cross_entropy_with_logits(scores, batch["y"], reduction="none")

def metrics(model, batch):
    return (loss(model, batch) / 2).clamp(0, 1).unsqueeze(-1)

def optimizer(parameters):
    return torch.optim.Adam(parameters, lr=0.1)
"""
JOB = f"""
[job]
name = "local"
dataset = "d"
rounds = {ROUNDS}
[[columns]]
name = "x"
shape = [4]
low = -8.0
high = 8.0
[[columns]]
name = "y"
low = 0.0
high = 1.0
[privacy]
mode = "record-local"
unit = "user"
user_column = "who"
max_rows_per_user = {ROWS_EACH}
epsilon = 6.0
delta_dp = 1e-5
sampling_rate = 0.2
clipping_norm = 1.0
metrics_norm = 0.2
expected_batch_size = {USERS // 5}
max_records = 5000
update_norm = 5.0
[local]
steps = 3
[[metrics]]
name = "loss"
kind = "mean"
upper = 2.0
[strategy]
name = "FedAvg"
[round]
target_sites = {SITES}
deadline_s = 120.0
max_attempts = 3
"""


def shard(seed):
    source = np.random.default_rng(seed)
    x = source.normal(size=(USERS * ROWS_EACH, 4)).astype(np.float32)
    y = (x @ np.array([1.0, -2.0, 0.5, 0.0], np.float32) > 0).astype(np.float32)
    return {"x": x, "y": y, "who": np.arange(len(x)) // ROWS_EACH}


@pytest.mark.slow
def test_users_are_hidden_at_each_site_and_the_ledger_reaches_what_was_promised(tmp_path):
    app = tmp_path / "app"
    app.mkdir()
    (app / "task.py").write_text(TASK)
    (app / "job.toml").write_text(JOB)
    submission = prepare(app)
    assert submission.rehearsal["engine"] == "torch.func"
    job, privacy = submission.job, submission.job.privacy
    spec = update_spec(job, VectorSpec.from_bytes(submission.vector_spec))
    plan = derive_encoding(privacy_terms(job), spec, RULES, bytes(32))
    whole = step_event(plan, RULES, job.rounds)
    alpha = best_alpha([whole], privacy.delta_dp, "user", ROWS_EACH)
    sites = []
    with Consortium(tmp_path / "c", print) as consortium:
        for index in range(SITES):
            folder = tmp_path / "c" / "sites" / f"site-{index}"
            folder.mkdir(parents=True, mode=0o700)
            np.savez(folder / "shard.npz", **shard(index))
            terms = (submission.app_sha256, privacy.epsilon, privacy.delta_dp, alpha)
            sites.append(SitePlan(folder.name, folder, job.dataset, *terms))
        consortium.start_aggregator("local")
        consortium.enrol(sites)
        for site in sites:
            policy = site.folder / "policy.toml"
            budget = f'unit = "user"\nmax_rows_per_user = {ROWS_EACH}\nuser_column = "who"\n'
            text = policy.read_text().replace('"record-distributed"', '"record-local"')
            policy.write_text(text + budget)
        consortium.seal(RULES.colluders, RULES.min_survivors)
        consortium.start_sites(sites)
        with operator_api(consortium.operator()) as api:
            job_id = api.SubmitJob(requests_of(submission)).job_id
            request = operator_pb2.WatchJobRequest(job_id=job_id)
            done = watch_live(api.WatchJob(request), None)[-1]
    assert (done.state, done.round) == ("finished", ROUNDS), done.detail
    assert all(0.97 * 6.0 < site.epsilon <= 6.0 for site in done.sites)
    assert all(site.rounds_in == ROUNDS for site in done.sites)
    assert 0.2 < done.metrics["loss"] < 0.9  # a mean of records, ln 2 at the start
