"""Boosted trees over real sites: no app travels, every sum is charged, the release is usable."""

import asyncio
import json

import numpy as np
import pytest
from safetensors.numpy import load

from aggregator.cli.submission import prepare, requests_of
from benchmarks.tree_consortium import run_job
from tests.support.live_site import budgets, market
from tests.support.tree_jobs import DP, LEVELS, NAMES, NO_DP, TABLES, sites, table, trees_toml
from tidegate import appbundle
from tidegate.jobfile import JobFile
from tidegate.tree_model import TreeModel
from tidegate.tree_xgboost import to_xgboost_json
from tidegate.v1 import operator_pb2 as pb

ROWS = table(1500)


def prepare_site(site, number):
    rows = ROWS[number::5]
    np.savez(site.folder / "rows.npz", **{name: rows[:, at] for at, name in enumerate(NAMES)})
    policy = site.folder / "policy.toml"
    policy.write_text(f"{policy.read_text()}alpha = 12\n")


def submission_of(folder, toml):
    folder.mkdir()
    (folder / "job.toml").write_text(toml)
    return prepare(folder)


async def grow(live, submission):
    async def requests():
        for message in requests_of(submission):
            yield message

    job_id = (await live.api.SubmitJob(requests())).job_id
    job = await live.watch(job_id)
    assert (job.state, job.detail) == ("finished", "")
    chunks = [c.data async for c in live.api.ExportModel(pb.ExportModelRequest(job_id=job_id))]
    return job, TreeModel.from_tensors(load(b"".join(chunks)))


def test_levels_without_privacy_and_tables_with_it(tmp_path):
    plain = submission_of(tmp_path / "plain", trees_toml(LEVELS, NO_DP))
    private = submission_of(tmp_path / "private", trees_toml(TABLES, DP))
    assert plain.app == private.app == appbundle.EMPTY

    async def scenario():
        async with market(tmp_path, prepare=prepare_site) as (live, members):
            found = [await grow(live, plain), await grow(live, private)]
            return found, [budgets(site) for site in members]

    found, ledgers = asyncio.run(asyncio.wait_for(scenario(), 90))
    (job, model), (private_job, noised) = found
    alone = run_job(JobFile.parse(plain.job_toml), sites(ROWS)).model
    assert job.round == 12
    assert np.allclose(model.predict_margin(ROWS[:, 1:]), alone.predict_margin(ROWS[:, 1:]))
    assert private_job.round == 6
    assert private_job.metrics["tree"] == 6
    assert not np.allclose(noised.to_vector(), 0)
    for lines in ledgers:
        assert sum(line.by_tier.get("enforced", 0) for line in lines) == 6
    xgboost = pytest.importorskip("xgboost")
    written = to_xgboost_json(noised, NAMES[1:])
    assert json.loads(written)["learner"]["feature_names"] == ["a", "b", "c"]
    booster = xgboost.Booster()
    booster.load_model(bytearray(written))
    scores = booster.predict(
        xgboost.DMatrix(ROWS[:, 1:], feature_names=list(NAMES[1:])), output_margin=True
    )
    assert np.allclose(scores, noised.predict_margin(ROWS[:, 1:]), atol=1e-5)
