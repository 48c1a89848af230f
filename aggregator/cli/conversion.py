"""Write a released model in another format; an app's code runs in a process of its own."""

import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from privacy.errors import UsageError
from tidegate import appbundle

CONVERTED = (".pt2", ".onnx")
_LIMIT_S = 600


def convert_task_model(
    app: Path, facts: dict[str, str], job_toml: bytes, model: Path, out: Path, bases: Sequence[str]
) -> dict[str, Any]:
    """Give a task's model the format that the file's name ends with.

    Args:
        app: The app folder that the job was submitted from.
        facts: The model's provenance: the app must be the one it names.
        job_toml: The job file.
        model: The released model, safetensors.
        out: ``.pt2`` or ``.onnx``.
        bases: ``NAME=PATH`` of each base model.

    Returns:
        What was written: format, names of the inputs, largest difference seen on running it again.

    Raises:
        UsageError: The app is another one, or the model cannot be converted; says why.
    """
    if appbundle.digest(appbundle.pack(app)).hex() != facts.get("app_sha256"):
        raise UsageError(
            f"{app} is not the app that made this model (sha256:{facts.get('app_sha256')}): name"
            " the folder as it was submitted"
        )
    with tempfile.TemporaryDirectory(prefix="tidegate-") as scratch:
        job_file = Path(scratch) / "job.toml"
        job_file.write_bytes(job_toml)
        program = [sys.executable, "-m", "edge_node.model_formats"]
        arguments = [str(path) for path in (app, job_file, model, out.absolute())]
        try:
            done = subprocess.run(  # noqa: S603 - our own module, no shell parses the arguments
                [*program, *arguments, *bases],
                capture_output=True,
                text=True,
                timeout=_LIMIT_S,
                check=False,
            )
        except subprocess.TimeoutExpired as error:
            raise UsageError(f"the conversion did not end within {_LIMIT_S} s") from error
    if done.returncode:
        last = done.stderr.strip().splitlines()[-1:] or ["no message"]
        raise UsageError(f"{out}: {last[0]}")
    written: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return written
