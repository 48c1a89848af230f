"""Choose what makes a job's updates, by its kind of work and its privacy mode."""

from pathlib import Path

from edge_node.config import SiteConfig
from edge_node.rounds.cell_counts import CellCounts
from edge_node.rounds.contract import JobAtSite, LocalRound
from edge_node.rounds.evaluation import EvaluationSums
from edge_node.rounds.flower import FlowerSite, make_flower_round
from edge_node.rounds.task_rounds import make_task_round, task_trainer
from edge_node.rounds.tree_histograms import TreeHistograms
from edge_node.trainer.frames import METRICS
from privacy.errors import PeerError, Reason
from tidegate.jobfile import Evaluation, FlowerApp, Statistics, Task, Trees


def make_round(
    job: JobAtSite, config: SiteConfig, app_folder: Path, flower: FlowerSite
) -> LocalRound:
    """Make the work place of an accepted job.

    Args:
        job: As this site agreed to it.
        config: The site's settings.
        app_folder: The unpacked app.
        flower: What unchanged Flower apps are told of the site.

    Raises:
        PeerError: POLICY: this version cannot do such work in this mode.
    """
    work = job.job_file.work
    if isinstance(work, Task):
        return make_task_round(job, work, config, app_folder)
    if isinstance(work, Statistics):
        return CellCounts(job)
    if isinstance(work, Trees):
        return TreeHistograms(job, work)
    if isinstance(work, FlowerApp):
        return make_flower_round(job, work, config, app_folder, flower)
    if isinstance(work, Evaluation):
        trainer = task_trainer(job, work.task, config, app_folder, METRICS)
        return EvaluationSums(job, trainer, work.task.physical_batch)
    kind = type(work).__name__
    raise PeerError(Reason.POLICY, f"this site cannot run {kind} in mode {job.plan.mode} yet")
