"""Run a task on made-up records of the job's schema, to find its mistakes before real ones come.

Every mistake is said for people: the app's own line, what is wrong, the mend. Records are drawn
between the declared bounds, lie at the bounds, and lack values; nothing here has seen a real one.

Shapes: D = coordinates, B = records of a batch, M = metrics a record, W = numbers of a row.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor

from edge_node.tasks.batches import draw_rows, edge_rows, missing_rows, padding_row
from edge_node.tasks.first_weights import zero_weight_notes
from edge_node.tasks.flat_model import FlatModel
from edge_node.tasks.local_steps import LocalSteps, OptimiserSteps
from edge_node.tasks.module_rules import TaskError, check_record_modules
from edge_node.tasks.record_gradients import RecordGradients
from edge_node.tasks.task import Task
from privacy.spec import VectorSpec
from tidegate.app_faults import last_line
from tidegate.jobfile import NONE, SITE, JobFile
from tidegate.schema import Schema

_SEED = 7_041
_FULL_BATCH = 16
_MOST_NUMBERS = 2**27  # of gradients held at once: half a GiB
# What float32 makes of a block that is meant to have norm 1.
_NORM_SLACK = 1e-4
_NO_SCHEMA = "the job declares no [[columns]], so no records could be made up"


@dataclass
class DryRun:
    """What was tried, and what came of it.

    Attributes:
        checks: What was tried, in order, each in a few words.
        notes: What a model owner should know, each a sentence.
        engine: What takes per-record gradients; empty in modes without.
        skipped: Why records were not made up; empty where they were.
    """

    checks: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    engine: str = ""
    skipped: str = ""


@contextmanager
def blamed(app_folder: Path, doing: str = "") -> Iterator[None]:
    """Turn what the app raises into one sentence that names the app's own last line.

    Args:
        app_folder: Whose lines count as the app's.
        doing: What was going on, for the end of the sentence.

    Raises:
        TaskError: The app raised, or broke a rule.
    """
    where = f" ({doing})" if doing else ""
    try:
        yield
    except TaskError as error:
        raise TaskError(f"{error}{where}") from error
    except (Exception, SystemExit) as error:
        line = last_line(error, app_folder)
        place = f"{line}: " if line else ""
        text = " ".join(str(error).split())
        raise TaskError(f"{place}{type(error).__name__}: {text}{where}") from error


def dry_run(task: Task, spec: VectorSpec, job: JobFile, app_folder: Path) -> DryRun:
    """Try all that a site will do with a task.

    Args:
        task: As a site loads it; its parameters are changed.
        spec: Its trainable parameters.
        job: What the job asks of it.
        app_folder: Whose lines count as the app's.

    Raises:
        TaskError: What is wrong, where, and the mend.
    """
    run = DryRun(notes=zero_weight_notes(task.model))
    mode = job.privacy.mode
    _check_functions(task, job)
    if mode not in {NONE, SITE}:
        check_record_modules(task.model)
        run.checks.append("modules")
    if job.schema is None:
        run.skipped = _NO_SCHEMA
    else:
        _try_functions(run, task, job, job.schema, app_folder)
        if mode in {NONE, SITE}:
            _try_local_steps(run, task, spec, job, app_folder)
        else:
            _try_record_gradients(run, task, spec, job, app_folder)
    if _has_own_optimiser(job):
        _try_optimizer(run, task, spec, app_folder)
    return run


def _has_own_optimiser(job: JobFile) -> bool:
    return job.local is not None and job.local.learning_rate is None


def _check_functions(task: Task, job: JobFile) -> None:
    if job.metrics_length and task.metrics is None:
        raise TaskError(
            f"the job has [[metrics]], so {task.file} must define metrics(model, batch)"
        )
    if job.local is not None and task.optimizer is not None and not _has_own_optimiser(job):
        raise task.fault(
            task.optimizer,
            "optimizer(parameters) would not be called, because [local] has a learning_rate for"
            " plain gradient descent: remove one of the two",
        )


def _try_functions(run: DryRun, task: Task, job: JobFile, schema: Schema, app_folder: Path) -> None:
    source = torch.Generator().manual_seed(_SEED)
    kinds = {
        "records drawn between the bounds": draw_rows(schema, _FULL_BATCH, source),
        "a single record": draw_rows(schema, 1, source),
        "records at the bounds": edge_rows(schema),
        "padding alone": torch.from_numpy(padding_row(schema)).repeat(_FULL_BATCH, 1),
    }
    for kind, rows_BW in kinds.items():
        with blamed(app_folder, f"on made-up data: {kind}"):
            losses_B = _losses(task, job, schema, rows_BW)
            if not torch.isfinite(losses_B).all():
                raise task.fault(
                    task.loss,
                    f"loss(model, batch) gave {losses_B[~torch.isfinite(losses_B)][0].item()} for"
                    " values that are all finite: keep logarithms and divisions away from 0",
                )
        run.checks.append(f"loss: {kind}")
    _try_missing(run, task, job, schema, app_folder)


def _try_missing(run: DryRun, task: Task, job: JobFile, schema: Schema, app_folder: Path) -> None:
    rows_BW = missing_rows(schema)
    columns = [column.name for column in schema.columns if column.dtype == "float32"]
    if not columns:
        return
    with blamed(app_folder, "on made-up data: missing values"):
        losses_B = _losses(task, job, schema, rows_BW)
    run.checks.append("loss: missing values")
    pairs = zip(columns, losses_B.tolist(), strict=False)
    lost = [name for name, value in pairs if not torch.isfinite(torch.tensor(value))]
    if lost:
        run.notes.append(
            f"a record without a value of {', '.join(lost[:8])} has no finite loss: it will count"
            " as zero, never as an error; impute it in model() if such records matter"
        )


def _losses(task: Task, job: JobFile, schema: Schema, rows_BW: Tensor) -> Tensor:
    """Evaluate loss and metrics of a batch, and check the metrics' blocks."""
    count = len(rows_BW)
    batch = task.batch(rows_BW, schema)
    with torch.no_grad():
        losses_B = task.losses(batch, count)
    if job.metrics_length:
        _check_blocks(task, job, task.metric_rows(batch, count, job.metrics_length))
    return losses_B


def _check_blocks(task: Task, job: JobFile, metrics_BM: Tensor) -> None:
    begin = 0
    for metric in job.metrics.metrics:
        block = metrics_BM[:, begin : begin + metric.length].double()
        begin += metric.length
        norm = float(torch.nan_to_num(block.norm(dim=1), nan=0.0).max())
        if norm > 1 + _NORM_SLACK:
            raise task.fault(
                task.metrics,
                f"metrics(model, batch) gave the block of {metric.name!r} a norm of {norm:.4g}; it"
                " must be at most 1 for each record (a mean: value / upper, cut to 0..1; an AUC:"
                " one 1.0 among zeros), or its sum would be cut short",
            )


def _try_record_gradients(
    run: DryRun, task: Task, spec: VectorSpec, job: JobFile, app_folder: Path
) -> None:
    schema, work = job.schema, job.task
    if schema is None or work is None:
        return
    rows = -(-work.physical_batch // 16) * 16
    while rows > 16 and rows * spec.length > _MOST_NUMBERS:
        rows //= 2
    with blamed(app_folder, "on made-up data: per-record gradients"):
        engine = RecordGradients(task, spec, schema, job.metrics_length)
        run.engine = engine.engine
        first, second = (
            (torch.empty(rows, spec.length), torch.empty(rows, job.metrics_length))
            for _ in range(2)
        )
        engine.check(first, second)
    run.checks += [
        "gradients: as a loop over single records",
        f"gradients: same bits in each of {rows} places",
    ]


def _try_local_steps(
    run: DryRun, task: Task, spec: VectorSpec, job: JobFile, app_folder: Path
) -> None:
    local, schema = job.local, job.schema
    if local is None or schema is None:
        return
    own = _has_own_optimiser(job)
    with blamed(app_folder, "on made-up data: one local step"):
        steps = LocalSteps(task, spec, schema, job.metrics_length, own_optimiser=own)
        rows = draw_rows(schema, _FULL_BATCH, torch.Generator().manual_seed(_SEED))
        metrics = torch.empty(_FULL_BATCH, job.metrics_length)
        steps.step(rows, local.learning_rate or 0.0, metrics)
    run.checks.append("one local step")


def _try_optimizer(run: DryRun, task: Task, spec: VectorSpec, app_folder: Path) -> None:
    with blamed(app_folder, "one step of optimizer(parameters)"):
        before_D = FlatModel(task.model, spec).vector_D.clone()
        stepped_D = before_D.clone()
        steps = OptimiserSteps(task, spec)
        for _ in range(2):
            steps.step(stepped_D, torch.full_like(stepped_D, 1e-3))
        if not torch.isfinite(stepped_D).all():
            raise task.fault(task.optimizer, "its step gave values that are not finite")
        if torch.equal(stepped_D, before_D):
            raise task.fault(task.optimizer, "its step does not move the parameters")
    run.checks.append("optimizer")
