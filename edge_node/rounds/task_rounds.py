"""Make the work place of a job with a task, by its privacy mode."""

from pathlib import Path

from edge_node.config import SiteConfig
from edge_node.rounds.contract import JobAtSite, LocalRound
from edge_node.rounds.local_dp import LocalDp
from edge_node.rounds.plain_training import PlainTraining
from edge_node.rounds.record_sums import RecordSums
from edge_node.rounds.trainer_rules import trainer_confinement, trainer_limits
from edge_node.tasks.base_models import LocalBaseModel
from edge_node.trainer.frames import GRADIENTS, OPTIMISE, STEPS
from edge_node.trainer.trainer import Trainer, TrainerJob
from privacy.errors import PeerError, Reason
from privacy.pipeline import Mode
from tidegate.jobfile import Task
from tidegate.schema import Schema


def make_task_round(job: JobAtSite, task: Task, config: SiteConfig, app_folder: Path) -> LocalRound:
    """Make the work place of a job that trains a task.

    Args:
        job: As this site agreed to it.
        task: Its work.
        config: The site's settings.
        app_folder: The unpacked app.

    Raises:
        PeerError: POLICY: the site lacks a base model of the job, or ends its app's requests before
            the job's time box does.
        UsageError: The job's unit is a user, and its column cannot tell users apart.
    """
    mode, rules = job.plan.mode, job.job_file.local
    own_optimiser = rules is not None and rules.learning_rate is None
    if mode is Mode.RECORD_DISTRIBUTED:
        return RecordSums(job, task_trainer(job, task, config, app_folder, GRADIENTS))
    if mode is not Mode.RECORD_LOCAL:
        _check_time_box(job, config)
        return PlainTraining(job, task_trainer(job, task, config, app_folder, STEPS))
    trainer = task_trainer(job, task, config, app_folder, GRADIENTS)
    # A process of its own, which never sees a record: see `edge_node.rounds.local_dp`.
    optimiser = task_trainer(job, task, config, app_folder, OPTIMISE) if own_optimiser else None
    return LocalDp(job, trainer, optimiser)


def _check_time_box(job: JobAtSite, config: SiteConfig) -> None:
    """Refuse a time box that the site's own limit on a request would cut short in every round."""
    box_s, limit_s = job.job_file.round.time_box_s, config.trainer.time_limit_s
    if box_s is not None and box_s >= limit_s:
        raise PeerError(
            Reason.POLICY,
            f"the job's time box of {box_s:g} s does not fit into this site's [trainer]"
            f" time_limit_s of {limit_s:g} s",
        )


def task_trainer(
    job: JobAtSite, task: Task, config: SiteConfig, app_folder: Path, serves: str
) -> Trainer:
    """Make the confined process that serves one kind of request for a task.

    Args:
        job: As this site agreed to it.
        task: What it runs.
        config: The site's settings.
        app_folder: The unpacked app.
        serves: ``GRADIENTS``, ``STEPS``, ``OPTIMISE`` or ``METRICS``.

    Raises:
        PeerError: POLICY: the site lacks a base model of the job.
    """
    rules = job.job_file.local
    batch = task.physical_batch if rules is None else max(task.physical_batch, rules.batch_size)
    rowless = serves == OPTIMISE
    return Trainer(
        TrainerJob(
            app_folder=app_folder,
            task_file=task.file,
            schema=Schema(()) if rowless else job.schema,
            spec=job.spec,
            metrics_length=0 if rowless else job.job_file.metrics_length,
            physical_batch=1 if rowless else batch,
            serves=serves,
            own_optimiser=rules is not None and rules.learning_rate is None,
            seed=task.seed,
            base_models=base_models_of(task, config),
            architecture=task.architecture,
        ),
        trainer_limits(config),
        trainer_confinement(config),
    )


def base_models_of(task: Task, config: SiteConfig) -> tuple[LocalBaseModel, ...]:
    """Find the folders of the base models that a task names.

    Raises:
        PeerError: POLICY: the site lacks one.
    """
    found = []
    for model in task.base_models:
        if model.name not in config.base_models:
            raise PeerError(
                Reason.POLICY,
                f"this site has no base model {model.name!r}: its site.toml needs a table"
                f" [base_models.{model.name}] with the path of its folder",
            )
        found.append(LocalBaseModel(model.name, config.base_models[model.name], model.sha256))
    return tuple(found)
