"""Choose what makes a job's updates, by its kind of work and its privacy mode."""

from pathlib import Path

from edge_node.config import SiteConfig
from edge_node.rounds.cell_counts import CellCounts
from edge_node.rounds.contract import JobAtSite, LocalRound
from edge_node.rounds.plain_training import PlainTraining
from edge_node.rounds.record_sums import RecordSums
from edge_node.rounds.tree_histograms import TreeHistograms
from edge_node.trainer import (
    HealthRules,
    Trainer,
    TrainerConfinement,
    TrainerJob,
    TrainerLimits,
)
from edge_node.trainer_frames import GRADIENTS, STEPS
from privacy.errors import PeerError, Reason
from privacy.pipeline import Mode
from tidegate.confine.sandbox import SandboxMode
from tidegate.jobfile import Statistics, Task, Trees


def make_round(job: JobAtSite, config: SiteConfig, app_folder: Path) -> LocalRound:
    """Make the work place of an accepted job.

    Args:
        job: As this site agreed to it.
        config: The site's settings.
        app_folder: The unpacked app.

    Raises:
        PeerError: POLICY: this version cannot do such work in this mode.
    """
    work, mode = job.job_file.work, job.plan.mode
    if isinstance(work, Task) and mode is Mode.RECORD_DISTRIBUTED:
        return RecordSums(job, _task_trainer(job, work, config, app_folder))
    if isinstance(work, Task) and mode is Mode.NONE:
        return PlainTraining(job, _task_trainer(job, work, config, app_folder))
    if isinstance(work, Statistics):
        return CellCounts(job)
    if isinstance(work, Trees):
        return TreeHistograms(job, work)
    kind = type(work).__name__
    raise PeerError(Reason.POLICY, f"this site cannot run {kind} in mode {mode} yet")


def _task_trainer(job: JobAtSite, task: Task, config: SiteConfig, app_folder: Path) -> Trainer:
    local = job.job_file.local
    batch = task.physical_batch if local is None else max(task.physical_batch, local.batch_size)
    return Trainer(
        TrainerJob(
            app_folder=app_folder,
            task_file=task.file,
            schema=job.schema,
            spec=job.spec,
            metrics_length=job.plan.metrics_length,
            physical_batch=batch,
            serves=GRADIENTS if job.plan.mode is Mode.RECORD_DISTRIBUTED else STEPS,
            seed=task.seed,
        ),
        trainer_limits(config),
        trainer_confinement(config),
    )


def trainer_limits(config: SiteConfig) -> TrainerLimits:
    """Give what the site allows a trainer to use."""
    settings = config.trainer
    return TrainerLimits(
        start_timeout_s=settings.start_time_limit_s,
        request_timeout_s=settings.time_limit_s,
        memory_mib=settings.memory_mib,
        threads=settings.threads,
        device=settings.device,
        precision=settings.precision,
        processes=settings.processes,
        parallel=settings.parallel,
        health=HealthRules(max_restarts=settings.max_restarts, leak_share=settings.leak_share),
    )


def trainer_confinement(config: SiteConfig) -> TrainerConfinement:
    """Give how the site keeps a trainer apart."""
    return TrainerConfinement(mode=SandboxMode(config.trainer.sandbox), hidden=(config.folder,))
