"""``tidegate job evaluate``: measure a model on the sites' data, noised and charged on its own."""

import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import typer

from aggregator.cli.connection import operator_api
from aggregator.cli.evaluation_job import EvaluationRequest, evaluation_submission
from aggregator.cli.jobs import BaseModels, JobId, folders_of
from aggregator.cli.models import require_model, write_chunks
from aggregator.cli.output import EXIT_REFUSED, Session, table_of
from aggregator.cli.progress import watch_live
from aggregator.cli.submission import requests_of
from privacy.errors import UsageError
from tidegate.jobfile import NONE, RECORD_DISTRIBUTED
from tidegate.v1 import operator_pb2

_ERROR = "_error"


def evaluate(  # noqa: PLR0913 - an argument for each option
    context: typer.Context,
    job_id: JobId,
    *,
    folder: Annotated[Path, typer.Option("--app", help="The job's app folder, unchanged.")],
    epsilon: Annotated[float, typer.Option(help="Epsilon of this one release.")] = 0.0,
    delta_dp: Annotated[float, typer.Option(help="Its delta.")] = 1e-6,
    dataset: Annotated[str, typer.Option(help="Data set; default: the one of the job.")] = "",
    mode: Annotated[str, typer.Option(help="record-distributed or none.")] = RECORD_DISTRIBUTED,
    sampling_rate: Annotated[float, typer.Option(help="Share of records, by secret coins.")] = 1.0,
    max_records: Annotated[
        int, typer.Option(help="Public bound on the records of one site.")
    ] = 1_000_000,
    base_model: BaseModels = None,
) -> None:
    """Measure a job's newest model by its own metrics, in one secure sum with one charge."""
    session: Session = context.obj
    if mode != NONE and epsilon <= 0:
        raise UsageError("--epsilon must be given: what may this release cost each record?")
    terms = (mode, epsilon, delta_dp, sampling_rate, max_records)
    request = EvaluationRequest(job_id, dataset, *terms)
    with (
        operator_api(session.folder()) as api,
        tempfile.TemporaryDirectory(prefix="tidegate-") as scratch,
    ):
        answer = api.GetJob(operator_pb2.GetJobRequest(job_id=job_id))
        require_model(answer.job, answer.job_toml)
        model = Path(scratch) / "model.safetensors"
        write_chunks(api.ExportModel(operator_pb2.ExportModelRequest(job_id=job_id)), model)
        submission = evaluation_submission(
            request, answer.job_toml, folder, model, folders_of(base_model)
        )
        evaluating = api.SubmitJob(requests_of(submission)).job_id
        watched = api.WatchJob(operator_pb2.WatchJobRequest(job_id=evaluating))
        job = watch_live(watched, None if session.as_json else session.console)[-1]
    result = {"job_id": evaluating, "of_job": job_id, "state": job.state, "detail": job.detail}
    if job.state != "finished":
        session.show(result, f"job {evaluating} {job.state}: {job.detail}")
        raise typer.Exit(EXIT_REFUSED)
    columns = ("metric", "#value", "#± noise")
    table = table_of(submission.job.dataset, columns, _rows(job.metrics))
    session.show({**result, "metrics": dict(job.metrics)}, table)


def _rows(metrics: Mapping[str, float]) -> list[tuple[str, str, str]]:
    """Pair each metric with its standard error."""
    names = [name for name in metrics if not name.endswith(_ERROR)]
    return [
        (
            name,
            f"{metrics[name]:,.0f}" if name == "records" else f"{metrics[name]:.5g}",
            f"{metrics.get(name + _ERROR, 0.0):.2g}",
        )
        for name in sorted(names)
    ]
