"""Choose what asks for a job's exchanges: its server step, or its own ServerApp."""

from aggregator.config import AggregatorConfig
from aggregator.runner import JobRunner, run_steps
from aggregator.server_app_driver import run_server_app
from aggregator.server_app_store import CallStore
from tidegate.jobfile import SERVER_APP, FlowerApp


def drive(runner: JobRunner, calls: CallStore, config: AggregatorConfig) -> None:
    """Run a job to its end; blocks.

    Args:
        runner: Carries its exchanges out.
        calls: Keeps what a ServerApp asks and hears.
        config: The aggregator's.

    Raises:
        PeerError: The job failed or was stopped, with the reason.
        UsageError: It cannot run; says what to mend.
    """
    work = runner.job.file.work
    if isinstance(work, FlowerApp) and work.driver == SERVER_APP:
        run_server_app(runner, calls, config.server_app, config.folder)
    else:
        run_steps(runner)
