"""Write a released model in another format; an app's code runs in a process of its own."""

import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from aggregator.cli.app_program import run_app_program
from privacy.errors import UsageError
from tidegate import appbundle
from tidegate.jobfile import JobFile, Trees
from tidegate.tree_model import TreeModel
from tidegate.tree_xgboost import to_xgboost_json

TASK_FORMATS = (".pt2", ".onnx")
TREE_FORMAT = ".json"
CONVERTED = (*TASK_FORMATS, TREE_FORMAT)


@dataclass(frozen=True)
class SubmittedApp:
    """The code of a job.

    Attributes:
        folder: The app folder that the job was submitted from.
        job_toml: The job file.
        bases: ``NAME=PATH`` of each base model.
    """

    folder: Path
    job_toml: bytes
    bases: tuple[str, ...] = ()


def convert_task_model(
    app: SubmittedApp, facts: Mapping[str, str], model: Path, out: Path
) -> Mapping[str, Any]:
    """Give a task's model the format that the file's name ends with.

    Args:
        app: The code that made the model.
        facts: The model's provenance: the app must be the one it names.
        model: The released model, safetensors.
        out: ``.pt2`` or ``.onnx``.

    Returns:
        What was written: format, names of the inputs, largest difference seen on running it again.

    Raises:
        UsageError: The app is another one, or the model cannot be converted; says why.
    """
    if appbundle.digest(appbundle.pack(app.folder)).hex() != facts.get("app_sha256"):
        raise UsageError(
            f"{app.folder} is not the app that made this model"
            f" (sha256:{facts.get('app_sha256')}): name the folder as it was submitted"
        )
    with tempfile.TemporaryDirectory(prefix="tidegate-") as scratch:
        job_file = Path(scratch) / "job.toml"
        job_file.write_bytes(app.job_toml)
        arguments = [str(path) for path in (app.folder, job_file, model, out.absolute())]
        return run_app_program(
            ("edge_node.tasks.model_formats", *arguments, *app.bases),
            str(out),
            "does model() wait for something?",
        )


def convert_trees(job_toml: bytes, tensors: Mapping[str, NDArray[np.float32]], out: Path) -> None:
    """Write boosted trees as a model file of XGBoost.

    Args:
        job_toml: The job file, which names the features.
        tensors: The released model's.
        out: The file.

    Raises:
        UsageError: The job grew no trees.
    """
    work = JobFile.parse(job_toml).work
    if not isinstance(work, Trees):
        raise UsageError(f"{out}: {TREE_FORMAT} is XGBoost's format, for jobs with [trees] only")
    out.write_bytes(to_xgboost_json(TreeModel.from_tensors(tensors), work.features))
