"""``tidegate job``: submit, watch, stop, report."""

import textwrap
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.text import Text

from aggregator.cli.connection import OperatorFolder, operator_api
from aggregator.cli.flower_folder import (
    FlowerOptions,
    describe_rehearsal,
    draft_job,
    is_flower_folder,
)
from aggregator.cli.output import EXIT_REFUSED, Session, as_dict, moment, table_of
from aggregator.cli.progress import job_table, mode_text, person_lines, watch_live
from aggregator.cli.submission import JOB_FILE, Submission, prepare, requests_of
from aggregator.cli.utilisation import Baseline, baseline_of
from privacy.errors import UsageError
from privacy.spec import VectorSpec
from tidegate.convert import dry_run_from_wire, job_status_from_wire
from tidegate.jobfile import NONE, FlowerApp, JobFile
from tidegate.v1 import operator_pb2, operator_pb2_grpc

app = typer.Typer(no_args_is_help=True, help="Submit, watch and stop jobs.")

JobId = Annotated[str, typer.Argument(help="The job's id, as `job submit` printed it.")]
BaseModels = Annotated[
    list[str] | None,
    typer.Option("--base-model", help="NAME=PATH: the folder of a base model that job.toml names."),
]
OtherJob = Annotated[
    Path | None,
    typer.Option("--job", help="Another job file than the folder's job.toml."),
]

_DIGEST_NOTE = (
    "  the digest is of every .py and .toml file in the folder, job.toml too: after a change of one"
    " sites review anew; with --job a job file from elsewhere leaves it as it is"
)
_DETAIL_CHARS = 40  # of a job in the list


def _draft(text: str) -> Any:
    """Make an option of a drafted job file."""
    return typer.Option(
        help=text, rich_help_panel="For a Flower app without job.toml", show_default=False
    )


@app.command()
def submit(  # noqa: PLR0913, PLR0917 - one an option
    context: typer.Context,
    folder: Annotated[
        Path, typer.Argument(help="App folder: job.toml and the task, or an unchanged Flower app.")
    ],
    base_model: BaseModels = None,
    job: OtherJob = None,
    watch: Annotated[bool, typer.Option("--watch", help="Stay and show the progress.")] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only show how large updates would be, and why.")
    ] = False,
    dataset: Annotated[str, _draft("The data set that sites declare.")] = "",
    mode: Annotated[str, _draft("Privacy mode: none or site.")] = "",
    clipping_norm: Annotated[float, _draft("Clip of a site's whole update.")] = 0.0,
    sites: Annotated[int, _draft("Sites wanted in a round.")] = 0,
    rounds: Annotated[int, _draft("Most calls; by default as many as main asks for.")] = 0,
    strategy: Annotated[str, _draft("Tidegate runs this strategy, not the ServerApp.")] = "",
    evaluate_every: Annotated[int, _draft("With --strategy: rounds between evaluations.")] = 0,
    epsilon: Annotated[float, _draft("Mode site: epsilon of the whole job.")] = 0.0,
    delta_dp: Annotated[float, _draft("Mode site: its delta.")] = 0.0,
    metric: Annotated[list[str] | None, _draft("NAME=UPPER of a training metric.")] = None,
    evaluation_metric: Annotated[list[str] | None, _draft("The same of evaluation.")] = None,
    run_config: Annotated[list[str] | None, _draft("KEY=VALUE of the app's settings.")] = None,
    save_job: Annotated[Path | None, _draft("Write the drafted job file here too.")] = None,
) -> None:
    """Submit a job: the sites judge it by their policies, then it trains."""
    session: Session = context.obj
    operator = session.folder()
    options = FlowerOptions(
        dataset=dataset,
        mode=mode,
        clipping_norm=clipping_norm,
        sites=sites,
        rounds=rounds,
        strategy=strategy,
        evaluate_every=evaluate_every,
        epsilon=epsilon,
        delta_dp=delta_dp,
        metrics=tuple(metric or ()),
        evaluation_metrics=tuple(evaluation_metric or ()),
        run_config=tuple(run_config or ()),
    )
    if job is None:
        stated = _drafted(session, folder, options, save_job)
    elif options.given or save_job is not None:
        raise UsageError(f"--job {job}: what other options would say of the job belongs into it")
    else:
        stated = _stated(job)
    submission = prepare(folder, stated, folders_of(base_model))
    if dry_run:
        _show_traffic(session, operator, submission)
        return
    with operator_api(operator) as api:
        job_id = api.SubmitJob(requests_of(submission)).job_id
        job_status = job_status_from_wire(api.GetJob(operator_pb2.GetJobRequest(job_id=job_id)).job)
    session.show(
        {
            "job_id": job_id,
            "epsilon_one_site": job_status.epsilon_one_site,
            "epsilon_person": job_status.epsilon_person,
            "person_sites": job_status.person_sites,
            "app_sha256": submission.app_sha256.hex(),
            "parameters": submission.parameters,
            "rehearsal": dict(submission.rehearsal),
        },
        f"job {job_id} submitted: {submission.parameters} parameters,"
        f" app sha256:{submission.app_sha256.hex()}",
    )
    _show_rehearsal(session, submission)
    for line in [] if session.as_json else person_lines(job_status):
        session.console.print(f"  {line}", markup=False, highlight=False, soft_wrap=True)
    if submission.job.privacy.mode == NONE and not session.as_json:
        session.console.print(Text("NO DIFFERENTIAL PRIVACY: mode none", style="bold red"))
    if watch:
        _watch(session, job_id)


def _show_traffic(session: Session, operator: OperatorFolder, submission: Submission) -> None:
    """Have the aggregator derive the job's plan, and show what its updates take."""
    from aggregator.cli.traffic import traffic_of  # noqa: PLC0415 - heavy, for this one alone
    from privacy.pipeline import EncodingPlan  # noqa: PLC0415

    with operator_api(operator) as api:
        answer = api.SubmitJob(requests_of(submission, dry_run=True))
    traffic = traffic_of(submission.job, EncodingPlan.from_bytes(dry_run_from_wire(answer)))
    session.show(as_dict(traffic), traffic.table())


@app.command()
def check(
    context: typer.Context,
    folder: Annotated[Path, typer.Argument(help="App folder with job.toml and the task.")],
    base_model: BaseModels = None,
    job: OtherJob = None,
) -> None:
    """Check an app folder without submitting it; prints the digest that sites' policies list."""
    session: Session = context.obj
    submission = prepare(folder, _stated(job), folders_of(base_model))
    digest = submission.app_sha256.hex()
    session.show(
        {
            "app_sha256": digest,
            "parameters": submission.parameters,
            "rehearsal": dict(submission.rehearsal),
        },
        f"{folder} is fit to submit: {submission.parameters} parameters, app sha256:{digest}",
    )
    _show_rehearsal(session, submission)
    if submission.job.runs_app and not session.as_json:
        session.console.print(_DIGEST_NOTE, markup=False, highlight=False, soft_wrap=True)


@app.command("list")
def list_jobs(context: typer.Context) -> None:
    """List the jobs; `job show` gives the whole detail of one."""
    session: Session = context.obj
    with operator_api(session.folder()) as api:
        answer = api.ListJobs(operator_pb2.ListJobsRequest())
    jobs = [job_status_from_wire(job) for job in answer.jobs]
    rows = [
        (
            job.job_id,
            mode_text(job),
            job.state,
            f"{job.round}/{job.rounds}",
            moment(job.submitted_at_s),
            textwrap.shorten(job.detail, _DETAIL_CHARS, placeholder=" ..."),
        )
        for job in jobs
    ]
    columns = ("job", "mode", "state", "#round", "submitted (UTC)", "detail")
    session.show([as_dict(job) for job in jobs], table_of("jobs", columns, rows))


@app.command()
def show(context: typer.Context, job_id: JobId) -> None:
    """Show one job: its progress, each site's part and its last log lines."""
    session: Session = context.obj
    with operator_api(session.folder()) as api:
        answer = api.GetJob(operator_pb2.GetJobRequest(job_id=job_id))
        baseline = _baseline(api, job_id)
    job = job_status_from_wire(answer.job)
    session.show(as_dict(job), job_table(job, baseline))
    if not session.as_json:
        for line in job.log:
            session.console.print(f"  {line}", markup=False, highlight=False, soft_wrap=True)


@app.command()
def watch(context: typer.Context, job_id: JobId) -> None:
    """Watch a job until it ends; with --json one object at the end."""
    _watch(context.obj, job_id)


@app.command()
def stop(
    context: typer.Context,
    job_id: JobId,
    why: Annotated[str, typer.Option(help="The reason, for the record.")] = "stopped by operator",
) -> None:
    """Stop a job; what it has released stays."""
    session: Session = context.obj
    with operator_api(session.folder()) as api:
        api.StopJob(operator_pb2.StopJobRequest(job_id=job_id, why=why))
    session.show({"job_id": job_id, "state": "stopped"}, f"job {job_id} is stopped: {why}")


@app.command()
def report(
    context: typer.Context,
    job_id: JobId,
    out: Annotated[Path, typer.Option(help="The HTML file to write.")] = Path("report.html"),
) -> None:
    """Write a job's report: one self-contained page with curves, sites, traffic, time, privacy."""
    from aggregator.cli.job_facts import fetch_facts  # noqa: PLC0415 - heavy, for this one alone
    from aggregator.cli.report import write  # noqa: PLC0415

    session: Session = context.obj
    with operator_api(session.folder()) as api:
        facts = fetch_facts(api, job_id)
    write(out, facts)
    session.show({"job_id": job_id, "file": str(out)}, f"{out}: open it in a browser")


def folders_of(base_models: list[str] | None) -> dict[str, Path]:
    """Read NAME=PATH options."""
    folders = {}
    for text in base_models or []:
        name, equals, path = text.partition("=")
        if not (name and equals and path):
            raise UsageError(f"--base-model {text}: write NAME=PATH")
        folders[name] = Path(path)
    return folders


def _stated(job: Path | None) -> bytes | None:
    """Read the job file that is named in place of the folder's; None where none is."""
    if job is None:
        return None
    try:
        return job.read_bytes()
    except OSError as error:
        raise UsageError(f"--job {job}: {error.strerror}") from error


def _drafted(
    session: Session, folder: Path, options: FlowerOptions, save_job: Path | None
) -> bytes | None:
    """Draft the job file of a Flower app that has none, and show it; None where there is one."""
    if (folder / JOB_FILE).is_file() or not is_flower_folder(folder):
        if options.given or save_job is not None:
            raise UsageError(
                f"{folder} has a {JOB_FILE}, or is no Flower app: what options would say belongs"
                f" into {JOB_FILE}"
            )
        return None
    drafted = draft_job(folder, options)
    if not session.as_json:
        session.console.print(drafted.decode(), markup=False, highlight=False, soft_wrap=True)
    if save_job is not None:
        if save_job.exists():
            raise UsageError(f"{save_job} exists: name another file")
        save_job.write_bytes(drafted)
    return drafted


def _show_rehearsal(session: Session, submission: Submission) -> None:
    """Say what was tried with the task; --json has it already."""
    report = submission.rehearsal
    if not report or session.as_json:
        return
    if isinstance(submission.job.work, FlowerApp):
        for line in describe_rehearsal(report):
            session.console.print(f"  {line}", markup=False, highlight=False, soft_wrap=True)
        return
    tried = (
        f"tried on made-up data ({report['device']}): {'; '.join(report['checks']) or 'nothing'}"
    )
    lines = [tried]
    if report["architecture"]:
        lines.append(f"architecture {report['architecture']}")
    if report["engine"]:
        lines.append(f"per-record gradients by {report['engine']}")
    if report["skipped"]:
        lines.append(f"dry run skipped: {report['skipped']}")
    for line in (*lines, *report["notes"]):
        session.console.print(f"  {line}", markup=False, highlight=False, soft_wrap=True)


def _baseline(api: operator_pb2_grpc.OperatorServiceStub, job_id: str) -> Baseline | None:
    """Fetch what a job's bytes are compared with."""
    job_toml = api.GetJob(operator_pb2.GetJobRequest(job_id=job_id)).job_toml
    spec = api.GetHistory(operator_pb2.GetHistoryRequest(job_id=job_id)).vector_spec
    return baseline_of(JobFile.parse_received(job_toml), VectorSpec.from_bytes(spec).length)


def _watch(session: Session, job_id: str) -> None:
    with operator_api(session.folder()) as api:
        baseline = _baseline(api, job_id)
        updates = api.WatchJob(operator_pb2.WatchJobRequest(job_id=job_id))
        job = watch_live(updates, None if session.as_json else session.console, baseline)[-1]
    if session.as_json:
        session.show(as_dict(job), "")
    if job.state != "finished":
        if not session.as_json:
            session.console.print(f"job {job_id} {job.state}: {job.detail}", markup=False)
        raise typer.Exit(EXIT_REFUSED)
