"""Statistics and evaluation jobs as the operator's command line writes and reads them."""

import io
import json
import tomllib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console
from safetensors.numpy import save, save_file

from aggregator.cli import evaluation_job
from aggregator.cli.evaluation_job import (
    EvaluationRequest,
    evaluation_submission,
    evaluation_toml,
)
from aggregator.cli.statistics_job import (
    StatisticsRequest,
    read_columns,
    read_summary,
    scaling_toml,
    statistics_submission,
)
from aggregator.cli.statistics_report import as_json, statistics_table
from aggregator.cli.submission import Submission
from aggregator.cli.toml_text import toml_text
from privacy.errors import PeerError, UsageError
from privacy.spec import TensorSpec, VectorSpec
from tests.support.live_aggregator import app_bundle, job_toml
from tidegate import appbundle
from tidegate.jobfile import Evaluation, JobFile, Statistics
from tidegate.schema import Column, Schema
from tidegate.v1 import operator_pb2

SCHEMA = Schema(
    (
        Column("age", low=0.0, high=100.0),
        Column("grade", low=0.0, high=29.0, levels=30),
        Column("years", "int64", low=-3.0, high=3.0),
    )
)
SCALARS = st.one_of(
    st.booleans(),
    st.integers(-(2**53), 2**53),
    st.floats(allow_nan=False, allow_infinity=False),
    st.text(st.characters(blacklist_categories=("Cs",)), max_size=12),
)
TABLES = st.recursive(
    st.dictionaries(st.text(max_size=8).filter(str.isprintable), SCALARS, max_size=4),
    lambda inner: st.dictionaries(
        st.text('abcXYZ_-." é', min_size=1, max_size=6),
        st.one_of(
            SCALARS, inner, st.lists(SCALARS, max_size=3), st.lists(inner, min_size=1, max_size=3)
        ),
        max_size=4,
    ),
    max_leaves=12,
)
METRICS = '[[metrics]]\nname = "loss"\nkind = "mean"\nupper = 4.0\n'


@given(TABLES)
def test_what_is_written_reads_the_same(document):
    assert tomllib.loads(toml_text(document)) == document


def request(mode="record-distributed", **changes):
    fields = {"dataset": "credit", "schema": SCHEMA, "mode": mode, "epsilon": 0.5}
    fields |= {"delta_dp": 1e-6, "bins": 16, "max_records": 5000, "target_sites": 4}
    return StatisticsRequest(**{**fields, **changes})


@pytest.mark.parametrize("mode", ["record-distributed", "none"])
def test_a_statistics_job_says_what_was_asked(mode):
    made = statistics_submission(request(mode))
    assert made.job.schema == SCHEMA
    assert made.job.work == Statistics(16)
    assert made.job.privacy.max_records == 5000
    assert made.app == appbundle.EMPTY
    assert not any(made.model)


@pytest.mark.parametrize(
    "change", [{"epsilon": -1.0}, {"delta_dp": 0.5}, {"bins": 1}, {"dataset": 'a"\n[x]'}]
)
def test_numbers_out_of_range_are_refused(change):
    with pytest.raises(UsageError):
        statistics_submission(request(**change))


def chunks_of(data):
    half = len(data) // 2
    return [
        operator_pb2.ExportModelResponse(size=len(data), data=part)
        for part in (data[:half], data[half:])
    ]


def summary_of(records, noise):
    made = statistics_submission(request())
    spec = VectorSpec.from_bytes(made.vector_spec)
    tensors = {tensor.name: np.zeros(tensor.shape, np.float32) for tensor in spec.tensors}
    tensors["records"][:] = records
    tensors["noise_std"][:] = noise
    tensors["age/histogram"][9] = records * 0.9
    tensors["age/histogram"][-1] = records * 0.1
    tensors["age/moments"][:] = records * 0.0, records * 0.9 * 0.04
    tensors["grade/histogram"][7] = records
    return read_summary(made.job_toml, chunks_of(save(tensors))), made.job


def test_a_model_is_read_as_it_is_streamed():
    summary, _ = summary_of(1000.0, 2.0)
    assert summary.columns[0].mean.value == pytest.approx(50.0)
    assert summary.columns[0].std.value == pytest.approx(10.0, rel=1e-3)
    assert summary.columns[0].missing.value == pytest.approx(0.1)


def test_what_is_no_model_is_refused():
    job_toml_ = statistics_submission(request()).job_toml
    for data in (b"", b"\x00" * 40, save({"records": np.zeros(1, np.float32)})):
        with pytest.raises(PeerError):
            read_summary(job_toml_, chunks_of(data))
    with pytest.raises(UsageError, match="statistics"):
        read_summary(job_toml(), chunks_of(b""))


@pytest.mark.parametrize(("records", "noise"), [(1000.0, 2.0), (1000.0, 0.0), (-4.0, 50.0)])
def test_the_report_and_json_stand_whatever_the_numbers_are(records, noise):
    summary, job = summary_of(records, noise)
    file = io.StringIO()
    Console(width=80, file=file).print(statistics_table(summary, job))
    text = file.getvalue()
    assert "age" in text
    assert "10 more" in text
    assert max(map(len, text.splitlines())) <= 80
    numbers = json.dumps(as_json(summary), allow_nan=False)
    assert json.loads(numbers)["noise_std"] == noise


def test_scaling_is_toml_of_the_columns_that_have_a_mean():
    summary, _ = summary_of(1000.0, 2.0)
    columns = tomllib.loads(scaling_toml(summary, "From a test."))["columns"]
    assert columns["age"]["mean"] == pytest.approx(50.0)
    assert (columns["age"]["low"], columns["age"]["high"]) == (0.0, 100.0)
    assert "grade" not in columns


@pytest.mark.parametrize("text", ["", "a = 1", "[[columns]]\nname = 'a'\nlow = 0.0", "x = ["])
def test_columns_without_bounds_or_with_other_keys_are_refused(tmp_path, text):
    path = tmp_path / "columns.toml"
    path.write_text(text)
    with pytest.raises(UsageError, match="columns"):
        read_columns(path)
    with pytest.raises(UsageError, match="cannot read"):
        read_columns(tmp_path / "absent.toml")


def evaluating(**changes):
    fields = {"of_job": "credit-1", "dataset": "", "mode": "record-distributed", "epsilon": 0.5}
    fields |= {"delta_dp": 1e-6, "sampling_rate": 1.0, "max_records": 5000}
    return EvaluationRequest(**{**fields, **changes})


def test_an_evaluation_takes_over_task_columns_metrics_and_cohort():
    trained = job_toml() + METRICS.encode() + b'[[columns]]\nname = "a"\nlow = 0.0\nhigh = 1.0\n'
    trained = trained.replace(b"clipping_norm = 10.0", b"clipping_norm = 10.0\nmetrics_norm = 1.0")
    made = JobFile.parse(evaluation_toml(evaluating(), trained, 7).encode())
    original = JobFile.parse(trained)
    assert made.work == Evaluation(original.task, "credit-1", 7)
    assert (made.metrics, made.schema) == (original.metrics, original.schema)
    assert (made.dataset, made.rounds, made.privacy.epsilon) == (original.dataset, 1, 0.5)
    other = JobFile.parse(evaluation_toml(evaluating(dataset="held-out"), trained, 7).encode())
    assert other.dataset == "held-out"


def test_jobs_without_metrics_or_task_cannot_be_evaluated():
    with pytest.raises(UsageError, match="metrics"):
        evaluation_toml(evaluating(), job_toml(), 0)
    with pytest.raises(UsageError, match=r"no .task. job"):
        evaluation_toml(evaluating(), statistics_submission(request()).job_toml, 0)


def test_what_is_evaluated_is_the_jobs_own_app_and_model(tmp_path, monkeypatch):
    spec = VectorSpec((TensorSpec("w", (3,)), TensorSpec("b", (2,))))
    trained = (job_toml() + METRICS.encode()).replace(
        b"clipping_norm = 10.0", b"clipping_norm = 10.0\nmetrics_norm = 1.0"
    )

    def prepare(_folder, evaluation, _base_models):
        job = JobFile.parse(evaluation)
        return Submission(job, evaluation, spec.to_bytes(), app_bundle(), bytes(20))

    monkeypatch.setattr(evaluation_job, "prepare", prepare)
    file = tmp_path / "model.safetensors"
    tensors = {"b": np.array([4, 5], np.float32), "w": np.array([1, 2, 3], np.float32)}
    metadata = {"version": "7", "app_sha256": appbundle.digest(app_bundle()).hex()}
    save_file(tensors, file, metadata)
    made = evaluation_submission(evaluating(), trained, tmp_path, file, {})
    assert np.frombuffer(made.model, "<f4").tolist() == [1, 2, 3, 4, 5]
    assert made.job.work.version == 7
    save_file(tensors, file, {**metadata, "app_sha256": "ab" * 32})
    with pytest.raises(UsageError, match="is not the app"):
        evaluation_submission(evaluating(), trained, tmp_path, file, {})
    save_file({"w": tensors["w"]}, file, metadata)
    with pytest.raises(PeerError, match="tensors"):
        evaluation_submission(evaluating(), trained, tmp_path, file, {})
