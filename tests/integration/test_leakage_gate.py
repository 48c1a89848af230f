"""A site that asks for a leakage audit: refused, audited in the real sandbox, accepted."""

import asyncio
import json
from contextlib import closing

import numpy as np
import pytest
from typer.testing import CliRunner

from edge_node.cli import app as edge_node
from edge_node.leakage import command
from edge_node.planned_job import plan_budget
from edge_node.store_schema import connect
from privacy.leakage.effort import Effort
from privacy.spec import TensorSpec, VectorSpec
from tests.integration.test_budget_plan import pinned
from tests.support.live_aggregator import RECORD, job_toml
from tests.support.live_site import FakeTrainer, market
from tidegate import appbundle

TASK = """
from torch import nn

def model():
    return nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 1))

def loss(model, batch):
    return (model(batch["a"]).squeeze(-1) - 0.5) ** 2
"""
SPEC = VectorSpec(
    (
        TensorSpec("0.weight", (6, 4)),
        TensorSpec("0.bias", (6,)),
        TensorSpec("2.weight", (1, 6)),
        TensorSpec("2.bias", (1,)),
    )
)
COLUMNS = b'[[columns]]\nname = "a"\nshape = [4]\nlow = 0.0\nhigh = 1.0\n'
NOISY = job_toml(
    privacy=RECORD.replace("noise_multiplier = 1.0", "noise_multiplier = 9.0"), rounds=2
)
PLAIN = job_toml(rounds=2).replace(b"batch_size = 8", b"batch_size = 1")
EFFORT = Effort(trials=2, iterations=60, restarts=2)


@pytest.fixture(autouse=True)
def _small(monkeypatch):
    monkeypatch.setattr("edge_node.rounds.task_rounds.Trainer", FakeTrainer)
    field = command.AuditRequest.__dataclass_fields__["effort"]
    monkeypatch.setattr(field, "default_factory", lambda: EFFORT)
    init = command.AuditRequest.__init__

    def with_less_effort(self, *args, **values):
        init(self, *args, **{"effort": EFFORT, **values})

    monkeypatch.setattr(command.AuditRequest, "__init__", with_less_effort)


def app_of(task=TASK):
    return appbundle._join({"task.py": task.encode()})


def prepare(site, number):
    """Give all sites the columns, and let the first ask for an audit of every job."""
    np.savez(site.folder / "rows.npz", a=np.random.default_rng(number).random((50, 4), np.float32))
    policy = site.folder / "policy.toml"
    text = policy.read_text()
    allowed = ", ".join(f'"sha256:{appbundle.digest(app_of(t)).hex()}"' for t in (TASK, CHANGED))
    lines = [
        f"allowed_apps = [{allowed}]" if line.startswith("allowed_apps") else line
        for line in text.splitlines()
    ]
    if number == 0:
        lines.insert(0, "require_leakage_audit = true")
    policy.write_text("\n".join(lines))


CHANGED = TASK + "\n# one line more\n"


def invoke(site, *arguments):
    config = str(site.folder / "site.toml")
    result = CliRunner().invoke(edge_node, ["audit", *arguments, "--config", config])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result


FORGED = (
    TASK
    + """
# The attacks are in this process: what they say is what this code lets them say.
import sys
from privacy.leakage.verdict import Exposure, Finding, Metric, Verdict, report_of

def pass_anyway(*_):
    return report_of(
        Finding("A5", "Rows", where, Metric.CELLS, 0.3, 0.3, Verdict.PASS, "no more than a guess")
        for where in Exposure
    )

if attacks := sys.modules.get("edge_node.leakage.attacks"):
    attacks.audit = pass_anyway
"""
)
"""An app that writes its own PASS."""


async def audit(site, job_id, *more):
    """Run the command while the daemon of the same site runs."""
    return await asyncio.to_thread(invoke, site, "leakage", "--job", job_id, "--seed", "3", *more)


@pytest.mark.slow
def test_a_job_is_refused_audited_and_accepted_and_a_changed_app_refused_again(tmp_path):
    async def submit(live, toml, app):
        text = toml.replace(b"target_sites = 5", b"target_sites = 4") + COLUMNS
        job_id = await live.submit(
            text, spec=SPEC, model_D=np.zeros(SPEC.length, np.float32), app=app
        )
        job = await live.watch(job_id)
        assert job.state == "finished", job.detail
        first = next(site for site in job.sites if site.site_id == "bank-1")
        return job_id, first

    async def scenario():
        async with market(tmp_path, prepare=prepare) as (live, sites):
            job_id, first = await submit(live, NOISY, app_of())
            assert first.state == "refused"
            assert "require_leakage_audit" in first.detail
            assert f"--job {job_id}" in first.detail
            said = await asyncio.to_thread(plan_budget, sites[0].config, job_id, None)
            assert said.refusal in first.detail
            page = tmp_path / "report.html"
            result = await audit(sites[0], job_id, "--out", str(page), "--json")
            assert result.exit_code == 0, result.output
            shown = json.loads(result.stdout)
            assert shown["verdict"] == "PASS"
            assert "PASS" in page.read_text()
            said = await asyncio.to_thread(plan_budget, sites[0].config, job_id, None)
            assert said.refusal == ""

            _, first = await submit(live, NOISY, app_of())
            assert first.state != "refused", first.detail
            assert first.rounds_in >= 1
            other = NOISY.replace(b"noise_multiplier = 9.0", b"noise_multiplier = 8.0")
            _, first = await submit(live, other, app_of())
            assert first.state == "refused", "another noise was not audited"
            _, first = await submit(live, NOISY, app_of(CHANGED))
            assert first.state == "refused", "another app was not audited"

            page = tmp_path / "private.html"
            result = await audit(sites[0], job_id, "--private-records", "40", "--out", str(page))
            assert result.exit_code in (0, 4), result.output
            assert "must not leave the" in page.read_text()

            job_id, first = await submit(live, PLAIN, app_of())
            assert first.state == "refused"
            result = await audit(sites[0], job_id)
            assert result.exit_code == 5, result.output
            assert "FAIL" in result.stdout
            _, first = await submit(live, PLAIN, app_of())
            assert first.state == "refused"
            assert "said FAIL" in first.detail
            listed = json.loads(invoke(sites[0], "list", "--json").stdout)
            assert [(one["verdict"], one["counts"]) for one in listed] == [
                ("FAIL", False),
                ("PASS", True),
            ]

    asyncio.run(asyncio.wait_for(scenario(), 200))


@pytest.mark.slow
@pytest.mark.parametrize("privacy", ["none", "record"])
def test_an_app_that_writes_its_own_pass_is_refused_until_it_is_reviewed(tmp_path, privacy):
    folder = tmp_path / "app"
    folder.mkdir()
    toml = (PLAIN if privacy == "none" else NOISY) + COLUMNS
    toml = toml.replace(b"target_sites = 5", b"target_sites = 4")
    (folder / "task.py").write_text(FORGED)
    (folder / "job.toml").write_bytes(toml)
    bundle = appbundle.pack(folder)

    def plan(site, parameters=None):
        return plan_budget(site.config, str(folder), parameters).refusal

    async def scenario():
        async with market(tmp_path, prepare=prepare) as (live, sites):
            site = sites[0]
            await pinned(site)
            result = await audit(site, str(folder))
            assert result.exit_code == 0, f"the forgery is the point of this test: {result.output}"
            assert "PASS" in result.stdout
            (listed,) = json.loads(invoke(site, "list", "--json").stdout)
            assert (listed["verdict"], listed["counts"]) == ("PASS", False)
            job_id = await live.submit(
                toml, spec=SPEC, model_D=np.zeros(SPEC.length, np.float32), app=bundle
            )
            job = await live.watch(job_id)
            first = next(each for each in job.sites if each.site_id == "bank-1")
            assert first.state == "refused", first
            assert "allowed_apps" in first.detail
            assert await asyncio.to_thread(plan, site, SPEC.length) in first.detail
            # What a forecast says of audits, once somebody has reviewed the app.
            digest = appbundle.digest(bundle).hex()
            policy = site.folder / "policy.toml"
            listed = policy.read_text().replace("apps = [", f'apps = ["sha256:{digest}", ')
            policy.write_text(listed)
            assert await asyncio.to_thread(plan, site) == ""
            assert "names but a number" in await asyncio.to_thread(plan, site, SPEC.length)
            with closing(connect(site.config.database)) as database:
                database.execute("DELETE FROM leakage_audits")
            assert "no leakage audit of this app" in await asyncio.to_thread(plan, site)

    asyncio.run(asyncio.wait_for(scenario(), 100))
