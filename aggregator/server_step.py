"""Choose what turns sums into models, by the job's kind of work."""

from aggregator.evaluation_step import EvaluationStep
from aggregator.optimiser import Optimiser
from aggregator.secure_rounds import ServerStep
from aggregator.statistics_step import StatisticsStep
from aggregator.tree_step import TreeStep
from privacy.errors import UsageError
from privacy.spec import VectorSpec
from tidegate.jobfile import Evaluation, FlowerApp, JobFile, Statistics, Task, Trees


def make_step(job: JobFile, spec: VectorSpec, min_sites: int) -> ServerStep:
    """Make a job's server step.

    Args:
        job: The job file.
        spec: Of the model.
        min_sites: The fewest sites that can make a cohort.

    Raises:
        UsageError: This version cannot run such a job.
    """
    if isinstance(job.work, Task | FlowerApp) and job.strategy is not None:
        app = job.work if isinstance(job.work, FlowerApp) else None
        return Optimiser(job.strategy.name, job.strategy.options, spec, min_sites, app)
    if isinstance(job.work, Evaluation):
        return EvaluationStep(job.metrics)
    if isinstance(job.work, Statistics):
        return StatisticsStep()
    if isinstance(job.work, Trees):
        return TreeStep(job.work)
    raise UsageError(f"this aggregator cannot run {type(job.work).__name__} yet")
