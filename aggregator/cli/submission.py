"""Get a job ready to submit: check its file, pack the app, make the initial model.

The task runs here, on the model owner's machine and in a process of its own; the aggregator never
runs an app's code.
"""

import hashlib
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from privacy.errors import UsageError
from tidegate import appbundle
from tidegate.jobfile import JobFile, Trees
from tidegate.tree_model import TreeModel, model_spec
from tidegate.v1 import operator_pb2

JOB_FILE = "job.toml"
CHUNK_BYTES = 1 << 20
BUILD_LIMIT_S = 300


@dataclass(frozen=True)
class Submission:
    """Everything that travels with a job, and the job file as it was read."""

    job: JobFile
    job_toml: bytes
    vector_spec: bytes
    app: bytes
    model: bytes

    @property
    def app_sha256(self) -> bytes:
        """Return the digest that sites' policies list."""
        return hashlib.sha256(self.app).digest()

    @property
    def parameters(self) -> int:
        """Return the number of model parameters."""
        return len(self.model) // 4


def prepare(folder: Path, overrides: bytes | None = None) -> Submission:
    """Check an app folder and build its initial model.

    Args:
        folder: The app: ``job.toml``, the task file and what it imports.
        overrides: Another job file to use with the same app.

    Raises:
        UsageError: The folder, the job file or the task is not fit to submit; says what to mend.
    """
    file = folder / JOB_FILE
    if not file.is_file():
        raise UsageError(f"{file} does not exist: a job needs a folder with a {JOB_FILE}")
    job_toml = file.read_bytes() if overrides is None else overrides
    job = JobFile.parse(job_toml)
    if isinstance(job.work, Trees):
        empty = TreeModel.empty(job.work).to_vector().astype("<f4").tobytes()
        spec_bytes = model_spec(job.work).to_bytes()
        return Submission(job, job_toml, spec_bytes, appbundle.EMPTY, empty)
    app = appbundle.pack(folder)
    task = job.task
    if task is None:
        raise UsageError(f"{file}: this version submits jobs with a [task] only")
    spec, model = _initial_model(folder, task.file, task.seed)
    return Submission(job, job_toml, spec, app, model)


def requests_of(submission: Submission) -> Iterator[operator_pb2.SubmitJobRequest]:
    """Yield the messages of ``SubmitJob``: the header, then app and model in chunks."""
    yield operator_pb2.SubmitJobRequest(
        header=operator_pb2.SubmitJobHeader(
            job_toml=submission.job_toml,
            vector_spec=submission.vector_spec,
            app_size=len(submission.app),
            app_sha256=submission.app_sha256,
            model_size=len(submission.model),
            model_sha256=hashlib.sha256(submission.model).digest(),
        )
    )
    for payload in (submission.app, submission.model):
        for begin in range(0, len(payload), CHUNK_BYTES):
            yield operator_pb2.SubmitJobRequest(data=payload[begin : begin + CHUNK_BYTES])


def _initial_model(folder: Path, task_file: str, seed: int) -> tuple[bytes, bytes]:
    with tempfile.TemporaryDirectory(prefix="tidegate-") as scratch:
        program = [sys.executable, "-m", "aggregator.cli.initial_model"]
        try:
            done = subprocess.run(  # noqa: S603 - our own module, no shell parses the arguments
                [*program, str(folder), task_file, str(seed), scratch],
                capture_output=True,
                text=True,
                timeout=BUILD_LIMIT_S,
                check=False,
            )
        except subprocess.TimeoutExpired as error:
            raise UsageError(
                f"{folder / task_file}: model() did not return within {BUILD_LIMIT_S} s"
            ) from error
        if done.returncode:
            last = done.stderr.strip().splitlines()[-1:] or ["no message"]
            raise UsageError(f"{folder / task_file}: {last[0]}")
        out = Path(scratch)
        return (out / "spec").read_bytes(), (out / "model").read_bytes()
