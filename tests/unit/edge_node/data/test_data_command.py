"""`edge-node data check`: what an administrator sees before any job comes."""

import json

import numpy as np
import pytest
from typer.testing import CliRunner

from edge_node.cli import app
from edge_node.config import load_config
from edge_node.data.fingerprints import remember
from edge_node.data.loading import load_dataset
from tests.support.live_aggregator import job_toml

SITE = """
[site]
id = "bank-a"
folder = "state"
[policy]
file = "policy.toml"
[datasets.credit]
dataset_id = "loans-2026"
loader = "npz"
path = "x.npz"
users = ["who"]
[datasets.gone]
loader = "csv"
path = "gone.csv"
"""


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "site.toml").write_text(SITE)
    save(tmp_path, [20, 30, 40, 50])
    return tmp_path


def save(folder, age):
    who = np.array(["ann", "bob", "ann", ""])
    town = np.array(["x"] * 4)
    np.savez(folder / "x.npz", age=age, income=[1.5, np.nan, 3, 4], who=who, town=town)


def check(folder, *arguments):
    command = ["data", "check", "--config", folder / "site.toml", *arguments]
    return CliRunner().invoke(app, [str(word) for word in command], env={"COLUMNS": "200"})


def job(folder, *columns):
    text = job_toml().decode()
    for column in columns:
        text += "\n[[columns]]\n" + "\n".join(f"{k} = {v}" for k, v in column.items()) + "\n"
    (folder / "job.toml").write_text(text)
    return folder / "job.toml"


def test_columns_kinds_ranges_and_gaps_are_shown(folder):
    result = check(folder, "credit")
    assert result.exit_code == 0, result.output
    for words in ("4 rows", "loans-2026", "age", "whole", "20", "50", "real", "25.00%"):
        assert words in result.output
    assert "users: who, 2 of them" in result.output
    assert "left out: town (text)" in result.output
    assert "ann" not in result.output


def test_one_that_cannot_be_opened_is_named_and_the_others_are_shown(folder):
    result = check(folder)
    assert result.exit_code == 2
    assert "gone cannot be opened" in result.output
    assert "gone.csv" in result.output
    assert "4 rows" in result.output


def test_a_job_is_held_against_the_data(folder):
    good = job(folder, {"name": '"age"', "dtype": '"int64"', "low": 25, "high": 99})
    result = check(folder, "--schema", good)
    assert result.exit_code == 0, result.output
    assert "fits the job's columns" in result.output
    assert "outside the job's bounds: age 25.00%" in result.output
    bad = job(folder, {"name": '"incom"'}, {"name": '"income"', "dtype": '"int64"'})
    result = check(folder, "credit", "--schema", bad)
    assert result.exit_code == 2
    assert "nearest: 'income'" in result.output
    assert "some are not whole numbers, 1 are missing" in result.output


def test_mistakes_are_one_line(folder):
    for arguments, says in (
        (["crdit"], "it has: credit, gone"),
        (["gone", "--schema", job(folder)], "the job asks for data set 'credit'"),
        (["--schema", folder / "none.toml"], "cannot read"),
    ):
        result = check(folder, *arguments)
        assert result.exit_code == 2
        assert says in result.stderr
        assert result.stderr.count("\n") == 1


def test_json_is_for_programs_and_nothing_is_left_behind(folder):
    result = check(folder, "credit", "--json")
    (found,) = json.loads(result.stdout)
    assert found["facts"][0] == {
        "column": "age",
        "kind": "whole",
        "shape": [],
        "low": 20.0,
        "high": 50.0,
        "missing": 0.0,
        "infinite": 0,
    }
    assert list((folder / "state").iterdir()) == []


def test_a_change_since_the_daemon_last_saw_it_is_said(folder):
    config = load_config(folder / "site.toml")
    assert check(folder, "credit").exit_code == 0  # makes the folder
    seen = load_dataset("credit", config.datasets["credit"].plug, folder)
    remember(config.folder, seen, 0.0)
    assert "changed" not in check(folder, "credit").output
    save(folder, [20, 30, 40, 51])
    result = check(folder, "credit")
    assert result.exit_code == 0
    assert "changed since 1970-01-01T00:00:00+00:00" in result.output
    assert "budget goes on under loans-2026" in result.output


def test_a_data_set_of_flower_apps_alone_is_checked_for_what_it_shows(folder):
    with (folder / "site.toml").open("a") as file:
        file.write('[datasets.shown.flower]\nreadable = ["here"]\n')
    result = check(folder, "shown")
    assert result.exit_code != 0
    assert "there is no file or folder" in result.output
    (folder / "here").mkdir()
    result = check(folder, "shown")
    assert result.exit_code == 0, result.output
