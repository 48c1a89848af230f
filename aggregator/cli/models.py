"""``tidegate model``: fetch a released model, check it, describe it, give it other formats."""

import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from aggregator.cli.connection import OperatorFolder, operator_api
from aggregator.cli.conversion import (
    CONVERTED,
    TASK_FORMATS,
    TREE_FORMAT,
    SubmittedApp,
    convert_task_model,
    convert_trees,
)
from aggregator.cli.output import Session, data_size
from privacy.errors import PeerError, Reason, UsageError
from tidegate.jobfile import Evaluation, JobFile, Statistics, Trees
from tidegate.v1 import operator_pb2

if TYPE_CHECKING:
    from aggregator.cli.model_file import CheckedModel

app = typer.Typer(no_args_is_help=True, help="Fetch, check and describe released models.")

JobId = Annotated[str, typer.Argument(help="The job's id, as `job submit` printed it.")]
ModelFile = Annotated[Path, typer.Argument(help="A model that `model export` wrote.")]


@app.command()
def export(
    context: typer.Context,
    job_id: JobId,
    out: Annotated[
        Path,
        typer.Option(
            help="The file to write: .safetensors; .pt2 (torch.export) or .onnx of a task;"
            " .json (XGBoost) of trees."
        ),
    ],
    app_folder: Annotated[
        Path | None, typer.Option("--app", help="For .pt2 and .onnx: the app folder as submitted.")
    ] = None,
    base_model: Annotated[
        list[str] | None, typer.Option(help="For .pt2 and .onnx: NAME=PATH of a base model.")
    ] = None,
) -> None:
    """Write a job's model: safetensors with signed provenance, or a format made from it."""
    session: Session = context.obj
    if out.exists():
        raise UsageError(f"{out} exists: name another file")
    operator = session.folder()
    made: Mapping[str, Any] = {"format": "safetensors"}
    with operator_api(operator) as api, tempfile.TemporaryDirectory(prefix="tidegate-") as scratch:
        answer = api.GetJob(operator_pb2.GetJobRequest(job_id=job_id))
        require_model(answer.job, answer.job_toml, out.suffix)
        if out.suffix in TASK_FORMATS and app_folder is None:
            raise UsageError(f"{out.suffix} needs the model's code: add --app FOLDER")
        converted = out.suffix in CONVERTED
        file = Path(scratch) / "model.safetensors" if converted else out
        request = operator_pb2.ExportModelRequest(job_id=job_id)
        write_chunks(api.ExportModel(request), file)
        if converted:
            checked = _checked(file, operator)
            if app_folder is None:
                convert_trees(answer.job_toml, checked.tensors, out)
                made = {"format": "xgboost"}
            else:
                app = SubmittedApp(app_folder, answer.job_toml, tuple(base_model or ()))
                made = convert_task_model(app, checked.provenance.facts, file, out)
    size = out.stat().st_size
    session.show({"job_id": job_id, "file": str(out), "bytes": size, **made}, _written(out, made))


@app.command()
def verify(context: typer.Context, file: ModelFile) -> None:
    """Check a model file's tensors and provenance by the consortium's CA; asks nobody."""
    from aggregator.cli.model_file import read_model  # noqa: PLC0415 - heavy, for this one alone

    session: Session = context.obj
    checked = read_model(file, (session.folder().path / "ca.pem").read_bytes()).provenance
    facts = {name: value for name, value in checked.facts.items() if name != "vector_spec"}
    lines = [f"{file}: as job {facts.get('job', '?')} released it; signed by {checked.aggregator}"]
    lines += [f"  {name}: {value}" for name, value in sorted(facts.items())]
    session.show({"file": str(file), "signed_by": checked.aggregator, **facts}, "\n".join(lines))


@app.command()
def card(
    context: typer.Context,
    job_id: JobId,
    out: Annotated[Path, typer.Option(help="The Markdown file to write.")] = Path("MODEL_CARD.md"),
) -> None:
    """Write a model card with the privacy statement of the job that made the model."""
    from aggregator.cli.job_facts import fetch_facts  # noqa: PLC0415 - heavy, for this one alone
    from aggregator.cli.model_card import write  # noqa: PLC0415

    session: Session = context.obj
    with operator_api(session.folder()) as api:
        answer = api.GetJob(operator_pb2.GetJobRequest(job_id=job_id))
        require_model(answer.job, answer.job_toml)
        facts = fetch_facts(api, job_id)
    write(out, facts)
    session.show({"job_id": job_id, "file": str(out)}, f"{out}: the model's card")


def require_model(job: operator_pb2.Job, job_toml: bytes, suffix: str = "") -> None:
    """Refuse a job that has no model of its own to describe, or none of a format.

    Raises:
        UsageError: It trained nothing, or not yet; or it grew trees, which have no code.
    """
    work = JobFile.parse(job_toml).work
    if isinstance(work, Statistics):
        raise UsageError(f"{job.job_id} published statistics: see `tidegate stats show`")
    if isinstance(work, Evaluation):
        raise UsageError(f"{job.job_id} only measured the model of job {work.of_job or '?'}")
    if not job.round:
        raise UsageError(f"{job.job_id} is {job.state} and has trained no model yet")
    if isinstance(work, Trees) and suffix in TASK_FORMATS:
        raise UsageError(f"trees have no code for {suffix}: write {TREE_FORMAT} (XGBoost)")


def _checked(file: Path, operator: OperatorFolder) -> "CheckedModel":
    from aggregator.cli.model_file import read_model  # noqa: PLC0415 - heavy, for few commands

    return read_model(file, (operator.path / "ca.pem").read_bytes())


def _written(out: Path, made: Mapping[str, Any]) -> str:
    line = f"{out}: {data_size(out.stat().st_size)}, {made['format']}"
    if "inputs" in made:
        line += f"; inputs {', '.join(made['inputs'])}"
        line += f"; run again, it differs by {made['difference']:.1g}"
    return line


def write_chunks(chunks: Iterable[operator_pb2.ExportModelResponse], out: Path) -> int:
    """Write a streamed model; the file appears only when whole.

    Raises:
        PeerError: The stream ended before the announced size.
    """
    partial = out.with_name(out.name + ".part")
    announced = written = 0
    with partial.open("wb") as file:
        for chunk in chunks:
            announced = chunk.size
            written += file.write(chunk.data)
    if written != announced or not written:
        partial.unlink()
        raise PeerError(
            Reason.MALFORMED, f"the model ended after {written} of {announced} bytes: try again"
        )
    partial.replace(out)
    return written
