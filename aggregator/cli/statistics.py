"""``tidegate stats``: publish noised statistics of the sites' columns, and read them."""

from pathlib import Path
from typing import Annotated

import typer

from aggregator.cli.connection import OperatorFolder, operator_api
from aggregator.cli.output import EXIT_REFUSED, Session
from aggregator.cli.progress import watch_live
from aggregator.cli.statistics_job import (
    StatisticsRequest,
    read_columns,
    read_summary,
    scaling_toml,
    statistics_submission,
)
from aggregator.cli.statistics_report import as_json, statistics_table
from aggregator.cli.submission import requests_of
from privacy.errors import UsageError
from tidegate.convert import site_record_from_wire
from tidegate.jobfile import NONE, RECORD_DISTRIBUTED, JobFile
from tidegate.v1 import operator_pb2

app = typer.Typer(no_args_is_help=True, help="Publish noised statistics of the sites' columns.")

Scaling = Annotated[
    Path | None,
    typer.Option(help="Also write bounds, means and standard deviations for an app to scale by."),
]


@app.command()
def run(  # noqa: PLR0913 - an argument for each option
    context: typer.Context,
    *,
    dataset: Annotated[str, typer.Option(help="The data set, as the sites call it.")],
    columns: Annotated[Path, typer.Option(help="TOML file that names columns with public bounds.")],
    epsilon: Annotated[float, typer.Option(help="Epsilon of this one release.")] = 0.0,
    delta_dp: Annotated[float, typer.Option(help="Its delta.")] = 1e-6,
    mode: Annotated[str, typer.Option(help="record-distributed or none.")] = RECORD_DISTRIBUTED,
    sites: Annotated[int, typer.Option(help="Sites that are waited for; 0: all enrolled.")] = 0,
    bins: Annotated[int, typer.Option(help="Histogram bins of a column.")] = 64,
    max_records: Annotated[
        int, typer.Option(help="Public bound on the records of one site.")
    ] = 1_000_000,
    wait: Annotated[bool, typer.Option(help="Wait for the numbers and show them.")] = True,
    scaling: Scaling = None,
) -> None:
    """Count, average and rank columns over all sites, in one secure sum with one charge."""
    session: Session = context.obj
    operator = session.folder()
    if mode != NONE and epsilon <= 0:
        raise UsageError("--epsilon must be given: what may this release cost each record?")
    _check_new(scaling)
    request = StatisticsRequest(
        dataset=dataset,
        schema=read_columns(columns),
        mode=mode,
        epsilon=epsilon,
        delta_dp=delta_dp,
        bins=bins,
        max_records=max_records,
        target_sites=sites or _enrolled(operator),
    )
    submission = statistics_submission(request)
    with operator_api(operator) as api:
        job_id = api.SubmitJob(requests_of(submission)).job_id
        if wait:
            watched = api.WatchJob(operator_pb2.WatchJobRequest(job_id=job_id))
            job = watch_live(watched, None if session.as_json else session.console)[-1]
            if job.state != "finished":
                session.show(
                    {"job_id": job_id, "state": job.state, "detail": job.detail},
                    f"job {job_id} {job.state}: {job.detail}",
                )
                raise typer.Exit(EXIT_REFUSED)
    if wait:
        _show(session, operator, job_id, scaling)
    else:
        session.show({"job_id": job_id}, f"job {job_id} submitted; see `tidegate stats show`")


@app.command()
def show(
    context: typer.Context,
    job_id: Annotated[str, typer.Argument(help="The job's id, as `stats run` printed it.")],
    scaling: Scaling = None,
) -> None:
    """Show the numbers of a finished statistics job."""
    session: Session = context.obj
    _check_new(scaling)
    _show(session, session.folder(), job_id, scaling)


def _show(session: Session, operator: OperatorFolder, job_id: str, scaling: Path | None) -> None:
    with operator_api(operator) as api:
        answer = api.GetJob(operator_pb2.GetJobRequest(job_id=job_id))
        if answer.job.round < 1:
            raise UsageError(f"job {job_id} is {answer.job.state} and has published nothing yet")
        chunks = api.ExportModel(operator_pb2.ExportModelRequest(job_id=job_id))
        summary = read_summary(answer.job_toml, chunks)
    job = JobFile.parse(answer.job_toml)
    if scaling is not None:
        scaling.write_text(scaling_toml(summary, f"From `tidegate stats`, job {job_id}."))
    session.show({"job_id": job_id, **as_json(summary)}, statistics_table(summary, job))


def _check_new(scaling: Path | None) -> None:
    if scaling is not None and scaling.exists():
        raise UsageError(f"{scaling} exists: name another file")


def _enrolled(operator: OperatorFolder) -> int:
    with operator_api(operator) as api:
        answer = api.ListSites(operator_pb2.ListSitesRequest())
    states = [site_record_from_wire(site).state for site in answer.sites]
    return sum(state in ("enrolled", "connected") for state in states)
