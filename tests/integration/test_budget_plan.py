"""`edge-node budget plan` beside running edge nodes: what it says is what the ledger then shows."""

import asyncio
import json
import math
import re

import numpy as np
import pytest
from typer.testing import CliRunner

from aggregator.cli.statistics_job import StatisticsRequest, statistics_submission
from edge_node.cli import app as command_line
from edge_node.planned_job import plan_budget
from edge_node.store_schema import connect
from privacy.errors import UsageError
from tests.integration.test_edge_node import charges, run
from tests.integration.test_evaluation_jobs import RECORD as EVALUATION
from tests.integration.test_evaluation_jobs import EvaluatingTrainer, evaluation_toml
from tests.integration.test_statistics import SCHEMA, submit, table
from tests.support.live_aggregator import NONE, RECORD, SPEC, app_bundle, job_toml
from tests.support.live_site import FakeTrainer, market
from tidegate import appbundle

ROUNDS = 2
SITE = 'mode = "site"\nepsilon = 12.0\ndelta_dp = 1e-5\nnoise_multiplier = 1.5\nclipping_norm = 1.0'
LOCAL_STEPS = b"[local]\nsteps = 2\nbatch_size = 8\nlearning_rate = 0.1\n"
LOCAL = """mode = "record-local"
epsilon = 8.0
delta_dp = 1e-5
sampling_rate = 0.05
clipping_norm = 0.5
expected_batch_size = 10
max_records = 1000
update_norm = 1.0
noise_multiplier = 1.5"""
JOBS = {
    "record-distributed": job_toml(rounds=ROUNDS, privacy=RECORD),
    "record-local": job_toml(rounds=ROUNDS, privacy=LOCAL)
    + b"[local]\nsteps = 3\nlearning_rate = 0.1\n",
    "site": job_toml(rounds=ROUNDS, privacy=SITE) + LOCAL_STEPS,
    "evaluation": evaluation_toml(EVALUATION),
    "none": job_toml(rounds=ROUNDS, privacy=NONE),
}


@pytest.fixture(autouse=True)
def stand_in(monkeypatch):
    monkeypatch.setattr("edge_node.rounds.task_rounds.Trainer", EvaluatingTrainer)
    monkeypatch.setattr(EvaluatingTrainer, "shown", [])
    monkeypatch.setattr(FakeTrainer, "fail_next", 0)


def app_folder(folder, toml):
    folder.mkdir()
    for name, content in appbundle.read(app_bundle()).items():
        (folder / name).write_bytes(content)
    (folder / "job.toml").write_bytes(toml)
    return folder


def allowing(bundle, more=""):
    """Give what lets a site's policy take the modes of this test, and an app."""

    def prepare(site, _number):
        policy = site.folder / "policy.toml"
        text = policy.read_text()
        text = text.replace('"none"]', '"none", "site", "record-local"]')
        text = re.sub(r"sha256:\w+", f"sha256:{appbundle.digest(bundle).hex()}", text)
        policy.write_text(text.replace("max_delta", f"{more}max_delta"))

    return prepare


def dump(site):
    """Read every table of a site's database but its stock of keys."""
    database = connect(site.config.database, read_only=True)
    try:
        names = [name for (name,) in database.execute("SELECT name FROM sqlite_master").fetchall()]
        # The daemon makes key bundles meanwhile; all else is still until there is a job.
        others = ("sqlite", "attempts_by", "bundles", "meta")
        tables = [name for name in names if not name.startswith(others)]
        return {name: _rows(database, name) for name in tables}
    finally:
        database.close()


def _rows(database, table_name):
    return database.execute(f"SELECT * FROM {table_name}").fetchall()  # noqa: S608 - a constant


async def pinned(site):
    for _ in range(500):
        if dump(site)["pins"]:
            return
        await asyncio.sleep(0.01)
    raise AssertionError("no manifest was pinned")


@pytest.mark.parametrize("kind", [kind for kind in JOBS if kind != "none"])
def test_the_forecast_is_what_the_ledger_shows_after_the_job(tmp_path, kind):
    folder = app_folder(tmp_path / "app", JOBS[kind])
    bundle = appbundle.pack(folder)

    async def scenario():
        async with market(tmp_path, prepare=allowing(bundle), epsilon=30.0) as (live, sites):
            await pinned(sites[0])
            before = dump(sites[0])
            said = await asyncio.to_thread(plan_budget, sites[0].config, str(folder), SPEC.length)
            assert dump(sites[0]) == before, "a forecast writes nothing"
            job_id = await live.submit(JOBS[kind], app=bundle)
            job = await live.watch(job_id)
            assert (job.state, job.detail) == ("finished", "")
            over = await asyncio.to_thread(plan_budget, sites[0].config, job_id, SPEC.length)
            return said, over, job, charges(sites[0])

    said, over, job, line = run(scenario())
    (budget,) = said.budgets
    assert (said.refusal, said.charged, budget.fits) == ("", 0, True)
    assert said.exchanges == line.charges == (1 if kind == "evaluation" else ROUNDS)
    assert (said.tier, said.mode) == ("enforced", job.mode)
    assert budget.alpha_is_new
    assert (budget.alpha, budget.unit) == (line.alpha, line.unit)
    # To the last digit: the same integers were added.
    assert (budget.spent, budget.after, budget.left) == (0, line.spent_epsilon, line.left_epsilon)
    assert budget.used_share_after == line.used_share
    assert budget.added == budget.after < budget.after_repeat
    # It is over and adds nothing; another one like it would still cost what it did.
    assert over.budgets[0].added == 0
    assert over.budgets[0].jobs_that_fit == budget.jobs_that_fit - 1
    assert (said.person_sites, said.epsilon_person) == (job.person_sites, job.epsilon_person)
    assert said.epsilon_one_site == job.epsilon_one_site <= said.epsilon_person


def test_the_forecast_of_statistics_is_what_the_ledger_shows(tmp_path):
    submission = statistics_submission(
        StatisticsRequest("credit", SCHEMA, "record-distributed", 1.0, 1e-6, 32, 1000, 5)
    )
    file = tmp_path / "job.toml"
    file.write_bytes(submission.job_toml)

    def prepare(site, number):
        np.savez(site.folder / "rows.npz", **table(number))
        policy = site.folder / "policy.toml"
        policy.write_text(f"allow_statistics = true\n{policy.read_text()}")

    async def scenario():
        async with market(tmp_path, prepare=prepare) as (live, sites):
            await pinned(sites[0])
            said = await asyncio.to_thread(plan_budget, sites[0].config, str(file), None)
            job = await live.watch(await submit(live, submission))
            assert (job.state, job.detail) == ("finished", "")
            after = await asyncio.to_thread(plan_budget, sites[0].config, str(file), None)
            return said, after, charges(sites[0])

    said, after, line = run(scenario())
    assert said.refusal == after.refusal == ""
    assert said.budgets[0].after == line.spent_epsilon == after.budgets[0].spent
    assert said.budgets[0].jobs_that_fit == after.budgets[0].jobs_that_fit + 1
    assert (said.budgets[0].alpha_is_new, after.budgets[0].alpha_is_new) == (True, False)


def test_a_job_that_runs_is_forecast_by_its_id_from_what_is_still_to_come(tmp_path):
    folder = app_folder(tmp_path / "app", job_toml(rounds=300, privacy=RECORD, deadline=0.5))
    bundle = appbundle.pack(folder)
    toml = (folder / "job.toml").read_bytes().replace(b"epsilon = 3.0", b"epsilon = 30.0")
    (folder / "job.toml").write_bytes(toml)
    bundle = appbundle.pack(folder)

    async def scenario():
        async with market(tmp_path, prepare=allowing(bundle), epsilon=30.0) as (live, sites):
            await pinned(sites[0])
            first = await asyncio.to_thread(plan_budget, sites[0].config, str(folder), SPEC.length)
            job_id = await live.submit(toml, app=bundle)
            await live.watch(job_id, lambda job: job.round >= 3)
            for site in sites[1:]:
                await site.stop()
            running = await asyncio.to_thread(plan_budget, sites[0].config, job_id, None)
            return first, running

    first, running = run(scenario())
    assert running.charged >= 3
    assert running.budgets[0].spent > 0
    assert running.budgets[0].spent + running.budgets[0].added == pytest.approx(
        first.budgets[0].after, abs=1e-9
    )
    # Every charge so far was one of those planned: the end has not moved.
    assert running.budgets[0].after == first.budgets[0].after


def refused(tmp_path, toml, prepare, parameters=SPEC.length, epsilon=30.0):
    """Forecast a job at a site, then offer it: give the forecast and what all sites answered."""
    folder = app_folder(tmp_path / "app", toml)
    bundle = appbundle.pack(folder)

    async def scenario():
        everywhere = prepare(bundle)
        async with market(tmp_path, prepare=everywhere, epsilon=epsilon) as (live, sites):
            await pinned(sites[0])
            said = await asyncio.to_thread(plan_budget, sites[0].config, str(folder), parameters)
            job = await live.watch(await live.submit(toml, app=bundle))
            # All sites judge alike; the job may be over before the last of them has answered.
            return said, "\n".join(site.detail for site in job.sites)

    return run(scenario())


def test_what_policy_will_refuse_is_said_in_the_words_of_the_refusal(tmp_path):
    low = lambda bundle: allowing(bundle, "min_noise_multiplier = 2.0\n")  # noqa: E731
    said, answers = refused(tmp_path, JOBS["record-distributed"], low)
    assert "min_noise_multiplier" in said.refusal
    assert said.refusal in answers
    assert said.budgets[0].after > 0, "what it would cost is said all the same"


def test_what_the_budget_will_refuse_is_said_in_the_words_of_the_refusal(tmp_path):
    toml = job_toml(rounds=1, privacy=RECORD.replace("= 0.01", "= 0.9").replace("= 3.0", "= 25.0"))
    said, answers = refused(tmp_path, toml, allowing, epsilon=0.05)
    assert "does not carry one step of this job" in said.refusal
    assert said.refusal in answers
    assert said.budgets == ()


def test_rows_that_do_not_fit_refuse_as_at_an_offer(tmp_path):
    few = RECORD + "\nmax_records = 100"
    said, answers = refused(tmp_path, job_toml(rounds=ROUNDS, privacy=few), allowing)
    assert said.refusal == "the data set is larger than the job's max_records"
    assert said.refusal in answers


def test_mode_none_says_that_nothing_bounds_it(tmp_path):
    folder = app_folder(tmp_path / "app", JOBS["none"])

    async def scenario():
        bundle = appbundle.pack(folder)
        async with market(tmp_path, prepare=allowing(bundle)) as (_, sites):
            await pinned(sites[0])
            arguments = ["budget", "plan", "--config", str(sites[0].config.path)]
            arguments += ["--job", str(folder), "--parameters", str(SPEC.length)]
            text = await asyncio.to_thread(CliRunner().invoke, command_line, arguments)
            data = await asyncio.to_thread(CliRunner().invoke, command_line, [*arguments, "--json"])
            plain = await asyncio.to_thread(
                CliRunner().invoke, command_line, arguments[:1] + arguments[2:4]
            )
            return text, data, plain

    text, data, plain = run(scenario())
    assert text.exit_code == data.exit_code == plain.exit_code == 0, text.output
    assert "NO DIFFERENTIAL PRIVACY" in text.stdout
    shown = json.loads(data.stdout)
    assert shown["accepted"] is True
    assert shown["epsilon_person"] is None
    assert shown["budgets"][0]["after"] is None
    assert "no privacy budget has been used" in plain.stdout


def test_an_unlisted_app_is_not_run_to_be_measured(tmp_path):
    folder = app_folder(tmp_path / "app", JOBS["record-distributed"])

    async def scenario():
        async with market(tmp_path) as (_, sites):
            await pinned(sites[0])
            with pytest.raises(UsageError, match=r"not in allowed_apps .* --parameters"):
                await asyncio.to_thread(plan_budget, sites[0].config, str(folder), None)
            said = await asyncio.to_thread(
                plan_budget, sites[0].config, str(folder / "job.toml"), SPEC.length
            )
            assert "allowed_apps" in said.refusal
            assert math.isfinite(said.budgets[0].after)
            with pytest.raises(UsageError, match="neither a job that this site knows"):
                await asyncio.to_thread(plan_budget, sites[0].config, "job-x", None)

    run(scenario())


def test_an_allowed_app_is_asked_in_its_sandbox_how_long_its_model_is(tmp_path):
    folder = app_folder(tmp_path / "app", JOBS["record-distributed"])
    code = "from torch import nn\n\ndef model():\n    return nn.Linear(40, 25)\n\n"
    (folder / "task.py").write_text(f"{code}def loss(model, batch):\n    return batch['a']\n")
    bundle = appbundle.pack(folder)

    async def scenario():
        async with market(tmp_path, prepare=allowing(bundle)) as (_, sites):
            await pinned(sites[0])
            asked, told = [
                await asyncio.to_thread(plan_budget, sites[0].config, str(folder), length)
                for length in (None, 40 * 25 + 25)
            ]
            assert asked == told
            assert asked.refusal == ""

    run(scenario())


def test_two_names_of_one_data_set_share_its_budget(tmp_path):
    toml = JOBS["record-distributed"]
    folder = app_folder(tmp_path / "app", toml)
    bundle = appbundle.pack(folder)
    other = toml.replace(b'dataset = "credit"', b'dataset = "derived"')
    second = app_folder(tmp_path / "second", other)

    def prepare(site, number):
        allowing(bundle)(site, number)
        settings, policy = site.folder / "site.toml", site.folder / "policy.toml"
        table = '[datasets.derived]\ndataset_id = "credit"\nloader = "npz"\npath = "rows.npz"\n'
        settings.write_text(settings.read_text() + table)
        words = policy.read_text().replace('["credit"]', '["credit", "derived"]')
        more = f'", "sha256:{appbundle.digest(appbundle.pack(second)).hex()}"]'
        policy.write_text(re.sub(r'(allowed_apps = .*)"\]', lambda m: m[1] + more, words))
        site.reload()

    async def scenario():
        async with market(tmp_path, prepare=prepare, epsilon=30.0) as (live, sites):
            await live.watch(await live.submit(toml, app=bundle))
            paid = charges(sites[0])
            said = await asyncio.to_thread(plan_budget, sites[0].config, str(second), SPEC.length)
            job = await live.watch(await live.submit(other, app=appbundle.pack(second)))
            assert (job.state, job.detail) == ("finished", "")
            return paid, said, charges(sites[0])

    paid, said, line = run(scenario())
    assert (said.dataset, said.refusal) == ("derived", "")
    assert said.budgets[0].dataset_id == line.dataset_id == "credit"
    assert said.budgets[0].spent == paid.spent_epsilon > 0
    assert (line.charges, line.spent_epsilon) == (2 * ROUNDS, said.budgets[0].after)
