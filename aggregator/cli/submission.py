"""Get a job ready to submit: check its file, pack the app, rehearse the task.

The task runs here, on the model owner's machine and in a process of its own, by the very code that
sites run it with; of an app's code the aggregator runs a ServerApp only, confined.
"""

import hashlib
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

from aggregator.cli.app_program import run_app_program
from aggregator.cli.flower_folder import rehearse_app
from privacy.errors import UsageError
from tidegate import appbundle
from tidegate.jobfile import FlowerApp, JobFile, Trees
from tidegate.tree_model import TreeModel, model_spec
from tidegate.v1 import operator_pb2

JOB_FILE = "job.toml"
CHUNK_BYTES = 1 << 20
_NONE: Mapping[str, Path] = MappingProxyType({})


@dataclass(frozen=True)
class Submission:
    """Everything that travels with a job, and the job file as it was read.

    Attributes:
        rehearsal: What was tried with the task, as ``edge_node.tasks.rehearsal`` reports it; empty
            for work without one.
    """

    job: JobFile
    job_toml: bytes
    vector_spec: bytes
    app: bytes
    model: bytes
    rehearsal: Mapping[str, Any] = field(default_factory=dict)

    @property
    def app_sha256(self) -> bytes:
        """Return the digest that sites' policies list."""
        return hashlib.sha256(self.app).digest()

    @property
    def parameters(self) -> int:
        """Return the number of model parameters."""
        return len(self.model) // 4


def prepare(
    folder: Path, overrides: bytes | None = None, base_models: Mapping[str, Path] = _NONE
) -> Submission:
    """Check an app folder, try its task on made-up data, and build its initial model.

    Args:
        folder: The app: ``job.toml``, the task file and what it imports.
        overrides: Another job file to use with the same app.
        base_models: Folder of each base model that the job declares, by name.

    Raises:
        UsageError: The folder, the job file or the task is not fit to submit; says what to mend.
    """
    file = folder / JOB_FILE
    if overrides is None and not file.is_file():
        raise UsageError(f"{file} does not exist: a job needs a folder with a {JOB_FILE}")
    job_toml = file.read_bytes() if overrides is None else overrides
    job = JobFile.parse(job_toml)
    if isinstance(job.work, Trees):
        empty = TreeModel.empty(job.work).to_vector().astype("<f4").tobytes()
        spec_bytes = model_spec(job.work).to_bytes()
        return Submission(job, job_toml, spec_bytes, appbundle.EMPTY, empty)
    app = appbundle.pack(folder)
    if isinstance(job.work, FlowerApp):
        seen = rehearse_app(folder, job_toml, app)
        return Submission(job, job_toml, seen.vector_spec, app, seen.model, seen.report)
    if job.task is None:
        raise UsageError(f"{file}: this version submits jobs with a [task] only")
    with tempfile.TemporaryDirectory(prefix="tidegate-") as scratch:
        out = Path(scratch)
        report = _rehearse(folder, job_toml, out, base_models)
        return Submission(
            job, job_toml, (out / "spec").read_bytes(), app, (out / "model").read_bytes(), report
        )


def requests_of(
    submission: Submission, *, dry_run: bool = False
) -> Iterator[operator_pb2.SubmitJobRequest]:
    """Yield the messages of ``SubmitJob``: the header, then app and model in chunks."""
    yield operator_pb2.SubmitJobRequest(
        header=operator_pb2.SubmitJobHeader(
            job_toml=submission.job_toml,
            vector_spec=submission.vector_spec,
            app_size=len(submission.app),
            app_sha256=submission.app_sha256,
            model_size=len(submission.model),
            model_sha256=hashlib.sha256(submission.model).digest(),
            dry_run=dry_run,
        )
    )
    for payload in (submission.app, submission.model):
        for begin in range(0, len(payload), CHUNK_BYTES):
            yield operator_pb2.SubmitJobRequest(data=payload[begin : begin + CHUNK_BYTES])


def _rehearse(
    folder: Path, job_toml: bytes, out: Path, base_models: Mapping[str, Path]
) -> Mapping[str, Any]:
    """Run the rehearsal in a process of its own; it leaves ``spec`` and ``model`` in ``out``."""
    (out / JOB_FILE).write_bytes(job_toml)
    options = [f"--base-model={name}={path.absolute()}" for name, path in base_models.items()]
    return run_app_program(
        ("edge_node.tasks.rehearsal", str(folder), str(out / JOB_FILE), str(out), *options),
        str(folder),
        "does model() or loss() wait for something?",
    )
