"""Submit a job to a running consortium and watch it to its end, as the command line does."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import load_file

from aggregator.cli.connection import operator_api
from aggregator.cli.consortium import Consortium
from aggregator.cli.models import write_chunks
from aggregator.cli.submission import Submission, requests_of
from tidegate.v1 import operator_pb2


def run_job(
    consortium: Consortium,
    submission: Submission,
    on_round: Callable[[int], None] = lambda _: None,
) -> Any:
    """Run a job; gives its last status.

    Args:
        consortium: Aggregator and sites, connected.
        submission: What is run.
        on_round: Told of a round that a push shows as committed while the job runs; some rounds
            are skipped.

    Raises:
        RuntimeError: The job did not finish; says why.
    """
    job = operator_pb2.Job()
    seen = 0
    with operator_api(consortium.operator()) as api:
        job_id = api.SubmitJob(requests_of(submission)).job_id
        for update in api.WatchJob(operator_pb2.WatchJobRequest(job_id=job_id)):
            job = update.job
            if job.round > seen and job.state == "running":
                seen = job.round
                on_round(seen)
    consortium.check_alive()
    if job.state != "finished":
        raise RuntimeError(f"the job {job.state}: {job.detail} {' | '.join(job.log)}")
    return job


def tensors_of(consortium: Consortium, job_id: str, scratch: Path) -> dict[str, NDArray[Any]]:
    """Export a job's newest model; float32 arrays by tensor name."""
    file = scratch / f"{job_id}.safetensors"
    with operator_api(consortium.operator()) as api:
        write_chunks(api.ExportModel(operator_pb2.ExportModelRequest(job_id=job_id)), file)
    tensors = {name: np.asarray(array) for name, array in load_file(file).items()}
    file.unlink()
    return tensors
