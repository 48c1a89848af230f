"""The real thing, nothing replaced: processes, sandboxed trainers, mTLS, SA-1, DP, then no DP."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file

from aggregator.cli.connection import operator_api
from aggregator.cli.consortium import Consortium, SitePlan
from aggregator.cli.models import write_chunks
from aggregator.cli.progress import watch_live
from aggregator.cli.submission import prepare, requests_of
from benchmarks.rounds import synthetic_shard
from edge_node.tasks.task import load_task
from privacy.planning import CohortRules
from tidegate.v1 import operator_pb2

APP = Path(__file__).parents[2] / "benchmarks" / "apps" / "mlp10k"
ROUNDS = 8
PLAIN_JOB = """
[job]
name = "plain"
dataset = "synthetic"
rounds = 12

[task]
file = "task.py"
seed = 0
physical_batch = 64

[privacy]
mode = "none"
clipping_norm = 5.0

[local]
steps = 10
batch_size = 64
learning_rate = 0.5

[compression]
target = "10x"

[strategy]
name = "FedAvg"

[round]
target_sites = 5
deadline_s = 60.0
max_attempts = 3
"""


def run_job(consortium, submission):
    with operator_api(consortium.operator()) as api:
        job_id = api.SubmitJob(requests_of(submission)).job_id
        job = watch_live(api.WatchJob(operator_pb2.WatchJobRequest(job_id=job_id)), None)[-1]
        out = consortium.folder / f"{job.name}.safetensors"
        write_chunks(api.ExportModel(operator_pb2.ExportModelRequest(job_id=job_id)), out)
    return job, out


def held_out_loss(model_file):
    task = load_task(APP, "task.py", 0)
    module = task.model
    if model_file is not None:
        module.load_state_dict(load_file(model_file))
    table = {name: torch.from_numpy(column) for name, column in synthetic_shard(77).items()}
    with torch.no_grad():
        return float(task.loss(module, table).mean())


def spent_by_the_sites_own_ledger(site):
    program = [Path(sys.executable).with_name("edge-node"), "budget", "--json"]
    done = subprocess.run(
        [*program, "--config", site.folder / "site.toml"],
        capture_output=True,
        text=True,
        check=True,
    )
    return json.loads(done.stdout)


def test_five_sites_train_with_privacy_and_with_consent_without(tmp_path):
    app = tmp_path / "app"
    shutil.copytree(APP, app, ignore=shutil.ignore_patterns("__pycache__"))
    job_file = app / "job.toml"
    lines = job_file.read_text().splitlines()
    private_toml = "\n".join(
        f"rounds = {ROUNDS}" if line.startswith("rounds = ") else line for line in lines
    ).encode()
    private = prepare(app, private_toml)
    plain = prepare(app, PLAIN_JOB.encode())
    rules = CohortRules(1, 4, 5)
    sites = []
    with Consortium(tmp_path / "c", print) as consortium:
        for index in range(5):
            folder = tmp_path / "c" / "sites" / f"site-{index}"
            folder.mkdir(parents=True, mode=0o700)
            np.savez(folder / "shard.npz", **synthetic_shard(index))
            sites.append(SitePlan.for_job(folder, private, rules))
        consortium.start_aggregator("whole")
        consortium.enrol(sites)
        for site in sites:  # consent to mode none, beside what the private job needs
            policy = site.folder / "policy.toml"
            text = policy.read_text().replace(
                'modes = ["record-distributed"]',
                'modes = ["record-distributed", "none"]\nallow_no_dp = true\n'
                "allow_adjacent_cohorts = true",
            )
            policy.write_text(text)
        consortium.seal(1, 4)
        consortium.start_sites(sites)

        job, model = run_job(consortium, private)
        assert (job.state, job.round) == ("finished", ROUNDS)
        stated = sites[0].epsilon
        assert all(0.97 * stated < site.epsilon <= stated for site in job.sites)
        assert all(site.rounds_in == ROUNDS for site in job.sites)
        assert held_out_loss(model) != held_out_loss(None)

        job, model = run_job(consortium, plain)
        assert (job.state, job.round) == ("finished", 12)
        assert held_out_loss(model) < 0.75 * held_out_loss(None)
    assert not consortium.processes
    budgets = [spent_by_the_sites_own_ledger(site) for site in sites]
    assert all(line["charges"] >= ROUNDS for budget in budgets for line in budget), budgets
