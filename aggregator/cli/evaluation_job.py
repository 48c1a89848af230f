"""Build an evaluation job from one that trained: its task, its newest model, its metrics.

The app is taken from the operator's own folder and must be, byte by byte, the one that the job ran:
what is evaluated is what sites reviewed.
"""

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open

from aggregator.cli.submission import Submission, prepare
from aggregator.cli.toml_text import toml_text
from privacy.errors import PeerError, Reason, UsageError
from privacy.spec import VectorSpec
from tidegate.jobfile import NONE, JobFile, Task


@dataclass(frozen=True)
class EvaluationRequest:
    """What the operator asks for.

    Attributes:
        of_job: The job whose model is evaluated.
        dataset: As the sites call it; empty for the one it was trained on.
        mode: ``record-distributed`` or ``none``.
        epsilon: Of the one release; not used in mode none.
        delta_dp: Its delta.
        sampling_rate: Share of the records that are evaluated, by secret coins.
        max_records: Public bound on the records of one site.
    """

    of_job: str
    dataset: str
    mode: str
    epsilon: float
    delta_dp: float
    sampling_rate: float
    max_records: int


def evaluation_submission(
    request: EvaluationRequest,
    job_toml: bytes,
    app: Path,
    model_file: Path,
    base_models: Mapping[str, Path],
) -> Submission:
    """Get an evaluation job ready.

    Args:
        request: What is asked for.
        job_toml: The job that trained, as ``GetJob`` gives it.
        app: Its app folder.
        model_file: Its model, as ``ExportModel`` gives it.
        base_models: Folder of each base model that the job declares, by name.

    Raises:
        UsageError: The job has no task or no metrics, or the folder is not its app.
        PeerError: The model is not one of that task.
    """
    metadata, tensors = _read_model(model_file)
    version = metadata.get("version", "0")
    if not version.isdecimal():
        raise PeerError(Reason.MALFORMED, "the model's file states no version")
    evaluation = evaluation_toml(request, job_toml, int(version))
    submission = prepare(app, evaluation.encode(), base_models)
    if submission.app_sha256.hex() != metadata.get("app_sha256"):
        raise UsageError(
            f"{app} is not the app of job {request.of_job}: its digest is"
            f" sha256:{submission.app_sha256.hex()}, the job's sha256:{metadata.get('app_sha256')}"
        )
    model = VectorSpec.from_bytes(submission.vector_spec).flatten(tensors)
    return replace(submission, model=model.astype("<f4").tobytes())


def evaluation_toml(request: EvaluationRequest, job_toml: bytes, version: int) -> str:
    """Write the job file of an evaluation.

    Args:
        request: What is asked for.
        job_toml: The job that trained.
        version: Of its model.

    Raises:
        UsageError: The job has no task or no metrics.
    """
    job = JobFile.parse(job_toml)
    if not isinstance(job.work, Task):
        raise UsageError(
            f"job {request.of_job} is no [task] job: a Flower app is evaluated by its own evaluate"
            " (evaluate_every), trees and statistics have no metrics()"
        )
    if not job.metrics.length:
        raise UsageError(f"job {request.of_job} has no [[metrics]], so its task has no metrics()")
    trained: Mapping[str, Any] = tomllib.loads(job_toml.decode())
    privacy: dict[str, Any] = {"mode": request.mode, "max_records": request.max_records}
    if request.mode != NONE:
        privacy |= {
            "epsilon": request.epsilon,
            "delta_dp": request.delta_dp,
            "sampling_rate": request.sampling_rate,
        }
    document = {
        "job": {
            "name": f"{job.name[:50]} evaluation",
            "dataset": request.dataset or job.dataset,
        },
        "task": trained.get("task", {}),
        "evaluation": {"of_job": request.of_job, "version": version},
        "privacy": privacy,
        "round": trained["round"],
        "metrics": trained["metrics"],
    }
    if "columns" in trained:
        document["columns"] = trained["columns"]
    return toml_text(document)


def _read_model(file: Path) -> tuple[Mapping[str, str], dict[str, Any]]:
    try:
        with safe_open(file, framework="numpy") as opened:
            tensors = {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118
            return opened.metadata() or {}, tensors
    except (OSError, SafetensorError) as error:
        raise PeerError(Reason.MALFORMED, f"the model is no safetensors file: {error}") from error
