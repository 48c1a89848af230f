"""Statistics over real sites: no app travels, one sum is opened, one event is charged."""

import asyncio
import dataclasses
import json

import grpc
import numpy as np
import pytest
from typer.testing import CliRunner

from aggregator.cli.main import app as command_line
from aggregator.cli.statistics_job import (
    StatisticsRequest,
    read_columns,
    read_summary,
    statistics_submission,
)
from aggregator.cli.submission import requests_of
from tests.support.live_aggregator import app_bundle
from tests.support.live_site import budgets, market
from tidegate import pki
from tidegate.schema import Column, Schema
from tidegate.v1 import operator_pb2 as pb

ROWS = 400
COLUMNS = """
[[columns]]
name = "age"
low = 0.0
high = 100.0
[[columns]]
name = "grade"
levels = 3
[[columns]]
name = "empty"
low = 0.0
high = 1.0
"""
SCHEMA = Schema(
    (
        Column("age", low=0.0, high=100.0),
        Column("grade", low=0.0, high=2.0, levels=3),
        Column("empty", low=0.0, high=1.0),
    )
)


def table(number, rows=ROWS):
    """Make a site's rows: other ages at each site; one column without a single value."""
    random = np.random.default_rng(number)
    return {
        "age": random.normal(30 + 8 * number, 9, rows).astype(np.float32),
        "grade": random.integers(0, 3, rows).astype(np.float32),
        "empty": np.full(rows, np.nan, np.float32),
    }


def surveyed(folder, tables, *, consent=True):
    """Run sites with these tables, one each, and a policy on statistics."""

    def prepare(site, number):
        np.savez(site.folder / "rows.npz", **tables[number])
        policy = site.folder / "policy.toml"
        words = "allow_statistics = true\n" if consent else ""
        policy.write_text(f"{words}{policy.read_text()}alpha = 24\n")

    return market(folder, len(tables), prepare)


def request(mode="record-distributed", max_records=1000):
    return StatisticsRequest("credit", SCHEMA, mode, 1.0, 1e-6, 32, max_records, 5)


async def submit(live, submission):
    async def requests():
        for message in requests_of(submission):
            yield message

    return (await live.api.SubmitJob(requests())).job_id


async def summary_of(live, job_id):
    answer = await live.api.GetJob(pb.GetJobRequest(job_id=job_id))
    chunks = [c async for c in live.api.ExportModel(pb.ExportModelRequest(job_id=job_id))]
    return read_summary(answer.job_toml, chunks)


def run(coroutine):
    return asyncio.run(asyncio.wait_for(coroutine, 90))


def test_statistics_with_privacy_are_charged_once_and_near_the_truth(tmp_path):
    tables = [table(number) for number in range(5)]

    async def scenario():
        async with surveyed(tmp_path, tables) as (live, sites):
            job_id = await submit(live, statistics_submission(request()))
            job = await live.watch(job_id)
            assert (job.state, job.round, job.detail) == ("finished", 1, "")
            found = await summary_of(live, job_id)
            assert job.metrics["records_error"] == pytest.approx(found.noise_std, rel=1e-5)
            assert job.metrics["records"] == pytest.approx(found.records.value, rel=1e-5)
            return found, [budgets(site) for site in sites]

    found, ledgers = run(scenario())
    for (line,) in ledgers:
        assert (line.charges, line.by_tier) == (1, {"enforced": 1})
        assert 0.5 < line.spent_epsilon <= 1.5  # at the budget's own delta and order
    assert abs(found.records.value - 5 * ROWS) < 5 * found.records.error
    ages = np.concatenate([rows["age"] for rows in tables])
    age, grade, empty = found.columns
    assert abs(age.mean.value - ages.mean()) < 5 * age.mean.error
    assert abs(empty.missing.value - 1) < 5 * empty.missing.error
    assert sum(share.value for share in grade.shares) == pytest.approx(1, abs=0.3)


def test_statistics_without_privacy_are_exact_even_where_sites_are_empty(tmp_path):
    tables = [table(0), table(1, 0), table(2, 1), table(3), table(4)]

    async def scenario():
        async with surveyed(tmp_path, tables) as (live, _):
            job_id = await submit(live, statistics_submission(request("none")))
            assert (await live.watch(job_id)).state == "finished"
            return await summary_of(live, job_id)

    found = run(scenario())
    ages = np.clip(np.concatenate([rows["age"] for rows in tables]), 0, 100)
    grades = np.concatenate([rows["grade"] for rows in tables])
    age, grade, empty = found.columns
    assert found.noise_std == 0
    assert found.records.value == len(ages)
    assert age.mean.value == pytest.approx(ages.mean(), abs=1e-2)
    assert age.std.value == pytest.approx(ages.std(), abs=1e-2)
    assert grade.histogram == tuple(np.bincount(grades.astype(int), minlength=3).tolist())
    assert empty.missing.value == 1
    assert np.isnan(empty.mean.value)


def test_a_site_refuses_statistics_without_consent_or_with_more_rows_than_allowed(tmp_path):
    async def scenario(folder, why, **options):
        limit = options.pop("max_records", 1000)
        tables = [table(number, 20) for number in range(5)]
        async with surveyed(folder, tables, **options) as (live, _):
            job_id = await submit(live, statistics_submission(request(max_records=limit)))
            job = await live.watch(job_id)
            assert (job.state, job.round) == ("failed", 0)
            assert why in job.detail

    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    run(scenario(tmp_path / "a", "allow_statistics", consent=False))
    run(scenario(tmp_path / "b", "max_records", max_records=19))


def test_statistics_that_bring_an_app_are_refused_at_submission(tmp_path):
    submission = dataclasses.replace(statistics_submission(request()), app=app_bundle())

    async def scenario():
        async with surveyed(tmp_path, [table(number, 5) for number in range(5)]) as (live, _):
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await submit(live, submission)
            return caught.value.details()

    assert "runs no app" in run(scenario())


def operator_folder(live, folder):
    """Write what ``tidegate init`` writes for the operator."""
    folder.mkdir()
    (folder / "client.toml").write_text(
        f'name = "olga"\naddress = "{live.addresses["operator"]}"\n'
    )
    (folder / "ca.pem").write_bytes(live.authority.certificate_pem())
    pki.write_private(folder / "tls.key", live.operator[1])
    (folder / "tls.pem").write_bytes(live.operator[2])
    return folder


def test_the_command_line_shows_numbers_and_writes_scaling(tmp_path):
    columns, scaling = tmp_path / "columns.toml", tmp_path / "scaling.toml"
    columns.write_text(COLUMNS)
    assert read_columns(columns) == SCHEMA

    async def scenario():
        async with surveyed(tmp_path, [table(number) for number in range(5)]) as (live, _):
            operator = operator_folder(live, tmp_path / "operator")

            def call(*words):
                done = CliRunner().invoke(command_line, ["--operator", str(operator), *words])
                assert done.exit_code == 0, done.output
                return done.output

            options = ["--dataset", "credit", "--columns", str(columns), "--epsilon", "5"]
            options += ["--max-records", "1000", "--scaling", str(scaling)]
            shown = await asyncio.to_thread(call, "--json", "stats", "run", *options)
            found = json.loads(shown)
            text = await asyncio.to_thread(call, "stats", "show", found["job_id"])
            return found, text

    found, text = run(scenario())
    assert found["columns"]["age"]["mean"]["value"] == pytest.approx(46, abs=8)
    assert found["columns"]["empty"]["quantiles"].keys() >= {"0.5"}
    assert "credit" in text
    assert "age" in text
    written = scaling.read_text()
    assert "[columns.age]" in written
    assert "empty" not in written
