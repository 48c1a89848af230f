"""Run a job to its end: by its server step, or by its own ServerApp."""

from aggregator.config import AggregatorConfig
from aggregator.jobs import JobState
from aggregator.log import LOGGER
from aggregator.runner import JobRunner, run_steps
from aggregator.server_app.driver import run_server_app
from aggregator.server_app.store import CallStore
from privacy.errors import TidegateError
from tidegate.jobfile import SERVER_APP, FlowerApp


def drive(runner: JobRunner, calls: CallStore, config: AggregatorConfig) -> tuple[JobState, str]:
    """Run a job in its own thread; blocks until it is over.

    Args:
        runner: Carries its exchanges out.
        calls: Keeps what a ServerApp asks and hears.
        config: The aggregator's.

    Returns:
        How it ended, and why, for people.
    """
    work = runner.job.file.work
    try:
        if isinstance(work, FlowerApp) and work.driver == SERVER_APP:
            run_server_app(runner, calls, config.server_app, config.folder)
        else:
            run_steps(runner)
    except TidegateError as error:
        return JobState.FAILED, str(error)
    except Exception as error:  # noqa: BLE001 - the task's boundary: recorded, the job fails
        LOGGER.exception("a job broke")
        return JobState.FAILED, f"internal: {type(error).__name__}: {error}"
    return JobState.FINISHED, ""
